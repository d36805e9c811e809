"""What is answered to requests that a handler fails to answer, or that are not let in."""

from __future__ import annotations

import logging

from headgate.server.wire.admission import Refusal
from headgate.server.wire.http1.responses import of_problem
from headgate.server.wire.messages import Response

_log = logging.getLogger(__name__)


def of_failure(error: BaseException, method: bytes, target: bytes) -> Response:
    """Return what the client is told, and log the rest; of the target without its query, which may hold secrets."""
    path = target.partition(b"?")[0]
    _log.error("%s %s failed", method.decode(), path.decode(errors="replace"), exc_info=error)
    return of_problem(500, "The request failed. It is logged.")


def of_refusal(refusal: Refusal) -> Response:
    """Return what a client is told that is not let in."""
    return of_problem(refusal.status, refusal.detail, refusal.headers)
