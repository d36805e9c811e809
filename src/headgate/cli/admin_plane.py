"""The admin plane of ``headgate serve``: whether there is one, and how it runs beside what serves."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headgate.core.errors import UsageError, not_installed
from headgate.server.ports import Port, listen
from headgate.server.settings import Settings

if TYPE_CHECKING:
    from headgate.admin.plane import AdminPlane, Begun
    from headgate.server.node import Node


class ServedAdmin(NamedTuple):
    """The admin plane of a service."""

    plane: AdminPlane
    port: Port
    begun: Begun
    settings: Settings
    """Of the service, which gets its rules from this plane."""

    def beside_node(self, node: Node) -> AbstractAsyncContextManager[object]:
        """Serve in the process of the only node."""
        return self.plane.serving(self.port.sockets[0], node.engine, node.hot_keys, node.counted)

    @asynccontextmanager
    async def beside_workers(self, folder: str) -> AsyncIterator[None]:
        """Serve in the process that supervises workers, who share their state by a store, and their counters there."""
        from headgate.engine import AsyncEngine  # noqa: PLC0415  a supervisor without an admin plane does not need it
        from headgate.observe.workers import Slots  # noqa: PLC0415
        from headgate.policy.live import LivePolicy  # noqa: PLC0415
        from headgate.server.configuration import rules_of  # noqa: PLC0415

        settings = self.settings
        with LivePolicy(rules_of(settings), enforcing=settings.enforcement) as policy:
            mode, shares = settings.on_store_failure, settings.shares
            engine = AsyncEngine(policy, store=settings.store_address, on_store_failure=mode, nodes=shares)
            slots = Slots(folder)
            try:
                async with self.plane.serving(self.port.sockets[0], engine, counted=slots.read):
                    yield
            finally:
                slots.close()
                await engine.close()


def admin_of(settings: Settings, stack: ExitStack) -> ServedAdmin | None:
    """Return the admin plane, if there is one: with a database, or, to look at a file of rules, with a key.

    Raises UsageError, and DatabaseError where there are no rules to begin with.
    """
    key = os.environ.get("HEADGATE_ADMIN_KEY", "")
    is_embedded = not (settings.rules or settings.database or settings.envoy_config)
    if not (settings.database or is_embedded or (settings.rules and key)):
        return None
    try:
        from headgate.admin.plane import EMBEDDED, AdminPlane  # noqa: PLC0415  an extra, slow to load
    except ModuleNotFoundError as error:
        if is_embedded:
            return None
        raise UsageError(not_installed(error.name, "admin")) from None
    from headgate.policy.snapshot import snapshot_folder  # noqa: PLC0415  slow to load as well
    from headgate.server.configuration import rules_of  # noqa: PLC0415

    url = f"sqlite:///{Path(EMBEDDED).absolute()}" if is_embedded else settings.database
    plane = AdminPlane(
        url,
        folder=snapshot_folder(url, settings.data_dir) if url else None,
        key=key,
        rules_file=settings.rules,
        tls=(settings.tls_cert, settings.tls_key),
        audit_days=settings.audit_days,
    )
    port = listen("admin", settings.admin_host, settings.admin_port)
    stack.callback(port.close)
    begun = plane.begin(rules_of(settings).read if is_embedded else None)
    return ServedAdmin(plane, port, begun, replace(settings, database=url))
