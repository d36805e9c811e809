"""The admin plane of ``headgate serve``: whether there is one, and how it runs with the decision plane."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headgate.core.errors import HeadgateError, InvalidRule, UsageError
from headgate.messages import not_installed
from headgate.server.ports import Port, listen
from headgate.server.settings import Settings
from headgate.server.supervisor import CannotStart

if TYPE_CHECKING:
    from headgate.admin.plane import AdminPlane, Begun
    from headgate.server.node import Node


EMBEDDED = "headgate.db"
"""The database of a service without rules and database options, in its working directory."""
_EMBEDDED_HINT = (
    f"without --rules and --database, rules are kept in {EMBEDDED} in the working directory, which must be writable"
)
_MOST_SERVICES = 16
"""Services on one machine that follow the same database."""
_LOG = logging.getLogger("headgate.admin")


class ServedAdmin(NamedTuple):
    plane: AdminPlane
    port: Port
    begun: Begun
    settings: Settings
    """Of the service, which gets its rules from this plane."""

    def beside_node(self, node: Node) -> AbstractAsyncContextManager[object]:
        reports = node.recorder
        taken = reports.take_use, reports.take_refusals
        return self.plane.serving(self.port.sockets[0], node.engine, reports.hot_keys, reports.worker_counts, *taken)

    @asynccontextmanager
    async def beside_workers(self, folder: Path) -> AsyncIterator[None]:
        """Serve in the process that supervises workers, which share a store and their counters."""
        from headgate.engine import AsyncEngine  # noqa: PLC0415  needed only with an admin plane
        from headgate.observe.workers import CounterFiles  # noqa: PLC0415
        from headgate.policy.live import LivePolicy  # noqa: PLC0415
        from headgate.server.configuration import rules_of  # noqa: PLC0415

        settings = self.settings
        with LivePolicy(rules_of(settings), enforcing=settings.enforcement) as policy:
            mode, shares = settings.on_store_failure, settings.shares
            engine = AsyncEngine(policy, store=settings.store_address, on_store_failure=mode, nodes=shares)
            counters = CounterFiles(folder)
            try:
                taken = counters.take_use, counters.take_refusals
                async with self.plane.serving(self.port.sockets[0], engine, counters.hot_keys, counters.read, *taken):
                    yield
            finally:
                counters.close()
                await engine.close()


def open_admin(settings: Settings, stack: ExitStack) -> ServedAdmin | None:
    """Return the admin plane, if there is one: with a database, or with a key and a rules file to show.

    Raises UsageError, and CannotStart without any rules.
    """
    if not has_admin(settings):
        return None
    try:
        from headgate.admin.plane import AdminPlane  # noqa: PLC0415  an extra, slow to load
    except ModuleNotFoundError as error:
        if not is_embedded(settings):
            raise UsageError(not_installed(error.name, "admin")) from None
        _LOG.warning("starting with example rules, without an admin plane: %s", not_installed(error.name, "admin"))
        return None
    from headgate.policy.snapshot import snapshot_folder  # noqa: PLC0415  slow to load as well
    from headgate.server.configuration import deprecations_of, rules_of  # noqa: PLC0415

    port = listen("admin", settings.admin_host, settings.admin_port)
    stack.callback(port.close)
    url = database_url(settings)
    own = replace(settings, database=url, data_dir=_claim_folder(url, settings.data_dir, stack) if url else "")
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
        raise CannotStart(f"there are no rules to start with: {error}{hint}") from None
    return ServedAdmin(plane, port, begun, own)


def examine_admin(settings: Settings) -> tuple[int | None, str, str] | None:
    """Examine the database without changing it; None if there is none. Raises UsageError.

    Returns the number of rules (None: those of the example), what the service would do first, and why it cannot use the
    database now.
    """
    if not has_admin(settings):
        return None
    url = database_url(settings)
    try:
        from headgate.admin.database import Database  # noqa: PLC0415  an extra, slow to load
        from headgate.admin.plane import AdminPlane  # noqa: PLC0415
        from headgate.policy.snapshot import RULES, snapshot_folder  # noqa: PLC0415
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
        has_rules = (snapshot_folder(url, settings.data_dir) / RULES).exists()
        would = "would start, with the last valid rules" if has_rules else "could not start: there are no rules"
        return 0, "", f"it {would}: {error}"
    if not found.is_empty:
        return found.rules, "", ""
    hint = (
        f"{name} is empty: tables would be created, without rules; add them: headgate rules apply FILE --database URL"
    )
    if is_embedded(settings):
        hint = f"{name} is empty or does not exist: it would be created with the example rules"
    return None if is_embedded(settings) else 0, hint, ""


def is_embedded(settings: Settings) -> bool:
    return not (settings.rules or settings.database or settings.envoy_config)


def has_admin(settings: Settings) -> bool:
    looks = settings.rules and os.environ.get("HEADGATE_ADMIN_KEY")
    return bool(settings.database or is_embedded(settings) or looks)


def database_url(settings: Settings) -> str:
    """Return the URL of the database with an absolute path; empty for none."""
    url = f"sqlite:///{EMBEDDED}" if is_embedded(settings) else settings.database
    scheme, found, path = url.partition("sqlite:///")
    return f"sqlite:///{Path(path).absolute()}" if found and not scheme and path else url


def _claim_folder(url: str, given: str, stack: ExitStack) -> str:
    """Return a data folder that no other service uses at the same time, even with the same options.

    Two services that follow the same database would write the same files; the second one starts with a copy.
    """
    from headgate.policy.snapshot import (  # noqa: PLC0415  slow to load
        RULES,
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
            raise UsageError(f"{folder / 'lock'}: {error.strerror}; set another --data-dir") from None
        if number > 1:
            _LOG.warning("another service uses %s: this one keeps its rules in %s", first, folder)
            if not (folder / RULES).exists():
                with suppress(InvalidRule, OSError):
                    SnapshotWriter(folder, str(first)).write(SnapshotReader(first).read())
        return base
    raise UsageError(f"{_MOST_SERVICES} services already keep their rules in {first.parent}: set another --data-dir")
