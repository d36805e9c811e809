"""The admin plane of ``headgate serve``: whether there is one, and how it runs beside what serves."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headgate.core.errors import HeadgateError, InvalidRule, UsageError, not_installed
from headgate.server.ports import Port, listen
from headgate.server.settings import Settings
from headgate.server.supervisor import CannotStart

if TYPE_CHECKING:
    from headgate.admin.plane import AdminPlane, Begun
    from headgate.server.node import Node


EMBEDDED = "headgate.db"
"""The database of a service that was given neither rules nor a database, in the folder where it is started."""
_EMBEDDED_HINT = (
    f"without --rules and --database they are kept in {EMBEDDED}, in the folder where the service is started, which it "
    "must be able to write"
)
_MOST_SERVICES = 16
"""Services on one machine that follow the same database."""
_LOG = logging.getLogger("headgate.admin")


class ServedAdmin(NamedTuple):
    """The admin plane of a service."""

    plane: AdminPlane
    port: Port
    begun: Begun
    settings: Settings
    """Of the service, which gets its rules from this plane."""

    def beside_node(self, node: Node) -> AbstractAsyncContextManager[object]:
        """Serve in the process of the only node."""
        taken = node.taken_use, node.taken_refusals
        return self.plane.serving(self.port.sockets[0], node.engine, node.hot_keys, node.counted, *taken)

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
                taken = slots.taken_use, slots.taken_refusals
                async with self.plane.serving(self.port.sockets[0], engine, slots.hot_keys, slots.read, *taken):
                    yield
            finally:
                slots.close()
                await engine.close()


def admin_of(settings: Settings, stack: ExitStack) -> ServedAdmin | None:
    """Return the admin plane, if there is one: with a database, or, to look at a file of rules, with a key.

    Raises UsageError, and CannotStart where there are no rules to begin with.
    """
    if not has_admin(settings):
        return None
    try:
        from headgate.admin.plane import AdminPlane  # noqa: PLC0415  an extra, slow to load
    except ModuleNotFoundError as error:
        if not is_embedded(settings):
            raise UsageError(not_installed(error.name, "admin")) from None
        _LOG.warning("there is no admin plane, and the rules are an example: %s", not_installed(error.name, "admin"))
        return None
    from headgate.policy.snapshot import snapshot_folder  # noqa: PLC0415  slow to load as well
    from headgate.server.configuration import deprecations_of, rules_of  # noqa: PLC0415

    port = listen("admin", settings.admin_host, settings.admin_port)
    stack.callback(port.close)
    url = database_url(settings)
    own = replace(settings, database=url, data_dir=_claimed(url, settings.data_dir, stack) if url else "")
    plane = AdminPlane(
        url,
        folder=snapshot_folder(url, own.data_dir) if url else None,
        key=os.environ.get("HEADGATE_ADMIN_KEY", ""),
        rules_file=settings.rules,
        tls=(settings.tls_cert, settings.tls_key),
        audit_days=settings.audit_days,
        limits=(settings.admin_reads, settings.admin_writes),
        deprecations=deprecations_of(settings),
        store=settings.store_name,
    )
    try:
        begun = plane.begin(rules_of(settings).read if is_embedded(settings) else None)
    except OSError as error:
        raise CannotStart(f"{error.filename or snapshot_folder(url, own.data_dir)}: {error.strerror}") from None
    except UsageError:
        raise
    except HeadgateError as error:
        hint = f"; {_EMBEDDED_HINT}" if is_embedded(settings) else ""
        raise CannotStart(f"there are no rules to begin with: {error}{hint}") from None
    return ServedAdmin(plane, port, begun, own)


class ExaminedAdmin(NamedTuple):
    """What a service would find in its database."""

    rules: int | None
    """How many rules there are; None: those of the example would be."""
    hint: str = ""
    """What it would do that is worth saying."""
    problem: str = ""
    """Why it could not use the database now."""


def examine_admin(settings: Settings) -> ExaminedAdmin | None:
    """Look at the database without changing anything; None if there is none. Raises UsageError."""
    if not has_admin(settings):
        return None
    url = database_url(settings)
    try:
        from headgate.admin.database import Database  # noqa: PLC0415  an extra, slow to load
        from headgate.admin.plane import AdminPlane  # noqa: PLC0415
        from headgate.policy.snapshot import WHOLE, snapshot_folder  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if is_embedded(settings):
            return None
        raise UsageError(not_installed(error.name, "admin")) from None
    plane = AdminPlane(url, key=os.environ.get("HEADGATE_ADMIN_KEY", ""))
    if not url:
        return None
    name = Database(url).name
    try:
        found = plane.examine()
    except UsageError:
        raise
    except HeadgateError as error:
        has_rules = (snapshot_folder(url, settings.data_dir) / WHOLE).exists()
        would = "would start, with the last good rules" if has_rules else "could not start: there are no rules"
        return ExaminedAdmin(0, problem=f"it {would}: {error}")
    if not found.is_empty:
        return ExaminedAdmin(found.rules)
    hint = f"{name} is empty: it would get tables, and no rules: headgate rules apply FILE --database URL"
    if is_embedded(settings):
        hint = f"{name} is empty or not there yet: it would get tables and the example rules"
    return ExaminedAdmin(None if is_embedded(settings) else 0, hint)


def is_embedded(settings: Settings) -> bool:
    """Whether the rules are in a database in this folder."""
    return not (settings.rules or settings.database or settings.envoy_config)


def has_admin(settings: Settings) -> bool:
    """Whether there is an admin plane."""
    looks = settings.rules and os.environ.get("HEADGATE_ADMIN_KEY")
    return bool(settings.database or is_embedded(settings) or looks)


def database_url(settings: Settings) -> str:
    """Return the URL of the database, whatever the folder in which a process runs; empty for none."""
    url = f"sqlite:///{EMBEDDED}" if is_embedded(settings) else settings.database
    scheme, found, path = url.partition("sqlite:///")
    return f"sqlite:///{Path(path).absolute()}" if found and not scheme and path else url


def _claimed(url: str, given: str, stack: ExitStack) -> str:
    """Return a folder for what this service keeps that no other one uses meanwhile, even if it was given the same.

    Two that follow the same database would write the same files; the second one begins with a copy.
    """
    from headgate.policy.snapshot import (  # noqa: PLC0415  slow to load
        WHOLE,
        SnapshotReader,
        SnapshotWriter,
        data_dir,
        snapshot_folder,
    )

    first = snapshot_folder(url, given)
    for number in range(1, _MOST_SERVICES + 1):
        base = given if number == 1 else str(data_dir(given) / f"service-{number}")
        folder = snapshot_folder(url, base)
        try:
            lock = stack.enter_context((folder / "lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        except OSError as error:
            raise UsageError(f"{folder / 'lock'}: {error.strerror}; see --data-dir") from None
        if number > 1:
            _LOG.warning("another service keeps its rules in %s: this one does in %s", first, folder)
            if not (folder / WHOLE).exists():
                with suppress(InvalidRule, OSError):
                    SnapshotWriter(folder, str(first)).write(SnapshotReader(first).read())
        return base
    raise UsageError(f"{_MOST_SERVICES} services keep their rules in {first.parent} already: see --data-dir")
