"""Run ``headgate serve``: bind the ports, and serve until a signal.

A process that only supervises workers does not load the decision plane, so workers start sooner.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial

from headgate.cli.admin_plane import ServedAdmin, examine_admin, has_admin, open_admin
from headgate.cli.command import NO, OK, WRONG_USAGE, Terminal, discard_output
from headgate.core.errors import StoreError
from headgate.messages import printable
from headgate.observe import logs
from headgate.server import process
from headgate.server.ports import Port, examine, listen
from headgate.server.private_folder import PrivateFolder
from headgate.server.settings import LOG_FORMATS, Settings
from headgate.server.supervisor import CannotStart, Supervisor
from headgate.stores import open_store

_LOG = logging.getLogger("headgate.server")
_TRIES = 3


def check(settings: Settings, terminal: Terminal) -> int:
    """Report whether a service could start with these settings, and decide: its files, its ports, its store."""
    from headgate.server.configuration import Configuration  # noqa: PLC0415  slow to load

    examined = examine_admin(settings)
    # the last valid rules may be old
    files = Configuration(settings if examined is None else replace(settings, database=""))
    known, hint, problem = examined or (None, "", "")
    rules = len(files.rules.value.rules) if known is None else known
    found = [f"{rules} rules"] if rules or files.descriptors is None else []
    if files.descriptors is not None:
        found.append(f"{len(files.descriptors.value.described())} descriptors with limits")
    store = _described_store(settings)
    if settings.tracing:
        from headgate.observe.tracing import Tracing  # noqa: PLC0415

        Tracing().close()
    listening = [(name, settings.host, number) for name, number in _numbers(settings)]
    listening += [("admin", settings.admin_host, settings.admin_port)] if has_admin(settings) else []
    taken = [port for name, host, port in listening if not examine(name, host, port)]
    try:
        _check_store(settings)
    except StoreError as error:
        why = printable(f"{store}: {error}")
        terminal.write_error(f"headgate: it would start, but decide without the store {why}")
        return NO
    if problem:
        terminal.write_error(f"headgate: {printable(problem)}")
        return NO
    ports = " and ".join(map(str, taken))
    if taken:
        terminal.write(f"port {ports} is in use: choose another, unless the replaced service uses it")
    if hint:
        terminal.write(printable(hint))
    when = f"it could start once port {ports} is free" if taken else "it could start"
    terminal.write(f"{when}: {', '.join([*found, printable(store)])}", "yellow" if taken else "green")
    return OK


def run(settings: Settings, terminal: Terminal) -> int:
    process.ignore_switches()
    logs.setup(settings.log_format, settings.log_level)
    if not settings.enforcement:
        process.log_enforcement(_LOG, enforcing=False)
    store = _described_store(settings)
    if settings.identity:  # report its problems before there are ports and workers
        from headgate.server.configuration import live_identity  # noqa: PLC0415

        live_identity(settings)
    with ExitStack() as stack:
        ports = []
        for name, number in _numbers(settings):
            ports.append(listen(name, settings.host, number, settings.workers))
            stack.callback(ports[-1].close)
        try:
            admin = open_admin(settings, stack)
            if admin is not None:
                settings = admin.settings
            _run(settings, ports, _greeting(settings, ports, store, terminal, admin), admin)
        except CannotStart as error:
            terminal.write_error(f"headgate: {error}")
            return WRONG_USAGE if error.is_usage else NO
    _LOG.info("ended")
    return OK


def _greeting(
    settings: Settings, ports: list[Port], store: str, terminal: Terminal, admin: ServedAdmin | None
) -> Callable[[int], None]:
    """Return a function that announces the service, given the number of its rules."""
    numbers = {port.name: port.number for port in (*ports, *([admin.port] if admin else ()))}
    if settings.log_format != LOG_FORMATS[0]:
        extra = {"store": store, "workers": settings.workers, **numbers}

        def log(rules: int) -> None:
            _LOG.info("serving", extra=logs.fields(rules=rules, **extra))
            if admin is not None and admin.begun.first_key:  # not in the log, which is kept and sent elsewhere
                from headgate.cli import greeting  # noqa: PLC0415  slow to load

                with suppress(OSError):
                    greeting.write_first_key(admin.begun.first_key, terminal)

        return log

    def prepare() -> Callable[[int], None]:
        from headgate.cli import greeting  # noqa: PLC0415  slow to load

        return greeting.prepare(settings, numbers, store, terminal, admin.begun if admin else None)

    ready = prepare() if settings.workers == 1 else None  # early, since requests would wait for it later

    def write(rules: int) -> None:
        try:
            (ready or prepare())(rules)
        except OSError as error:  # standard output is broken, but the service runs
            discard_output(terminal.out)
            _LOG.warning("serving; cannot write to standard output: %s", error)

    return write


def _run(settings: Settings, ports: list[Port], serving: Callable[[int], None], admin: ServedAdmin | None) -> None:
    if settings.workers > 1:
        with PrivateFolder() as folder:
            beside = partial(admin.beside_workers, folder.path) if admin else nullcontext
            asyncio.run(Supervisor(settings, ports, folder, lambda report: serving(report.rules), beside).run())
    else:
        sockets = {port.name: port.sockets[0] for port in ports}
        beside_node = admin.beside_node if admin else None
        process.run(process.serve(settings, sockets, lambda node: serving(node.rules), beside=beside_node))


def _numbers(settings: Settings) -> tuple[tuple[str, int], ...]:
    return ("http", settings.http_port), ("grpc", settings.grpc_port)


def _check_store(settings: Settings) -> None:
    """Check that the store can decide. Raises StoreError.

    It retries: a store that is only busy now works.
    """
    store = open_store(settings.store)
    try:
        for tries_left in reversed(range(_TRIES)):
            try:
                store.ready()
            except StoreError:
                if not tries_left:
                    raise
            else:
                return
    finally:
        store.close()


def _described_store(settings: Settings) -> str:
    """Return the name of the store, without its password. Raises UsageError if the address is invalid."""
    open_store(settings.store_address).close()  # nothing is connected
    return settings.store_name
