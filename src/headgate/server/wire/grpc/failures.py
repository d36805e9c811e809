"""How a call ends whose method raised something."""

from __future__ import annotations

import logging

from headgate.server.wire.grpc.status import Code, RpcError

_log = logging.getLogger(__name__)


def told(error: BaseException, path: bytes) -> RpcError:
    """Return what the client is told; what a method did not mean to raise is logged."""
    if isinstance(error, RpcError):
        return error
    _log.error("%s failed", path.decode(errors="replace"), exc_info=error)
    return RpcError(Code.INTERNAL, "The call failed. It is logged.")
