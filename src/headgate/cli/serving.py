"""What ``headgate serve`` does, apart from its options: binds the ports, and serves until it is told to end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack
from tempfile import TemporaryDirectory

from headgate.cli import greeting
from headgate.cli.command import NO, OK, WRONG_USAGE
from headgate.cli.terminal import Terminal, safe, silence
from headgate.core.errors import StoreError
from headgate.observe import logs
from headgate.server import process
from headgate.server.configuration import described_store, examined, identifier_of, meet_store
from headgate.server.node import Node
from headgate.server.ports import Port, examine, listen
from headgate.server.settings import LOG_FORMATS, Settings
from headgate.server.supervisor import CannotStart, Supervisor

_LOG = logging.getLogger("headgate.server")


def check(settings: Settings, terminal: Terminal) -> int:
    """Say whether a service could start with these settings, and decide: its files, its ports, its store."""
    rules = examined(settings)
    store = described_store(settings)
    taken = [port for name, port in _numbers(settings) if not examine(name, settings.host, port)]
    try:
        meet_store(settings)
    except StoreError as error:
        terminal.complain(f"headgate: it would start, and decide without its store {safe(store)}: {safe(str(error))}")
        return NO
    ports = " and ".join(map(str, taken))
    if taken:
        terminal.say(f"port {ports} is in use now: if not by the service that this one replaces, choose another")
    when = f"it could start once port {ports} is free" if taken else "it could start"
    terminal.say(terminal.styled(f"{when}: {rules} rules, {safe(store)}", "yellow" if taken else "green"))
    return OK


def run(settings: Settings, terminal: Terminal) -> int:
    """Serve; returns the exit code."""
    process.ignore_switches()
    logs.setup(settings.log_format, settings.log_level)
    if not settings.enforcement:
        process.log_enforcement(_LOG, enforcing=False)
    store = described_store(settings)
    identifier_of(settings)  # what is wrong with it is said before there are ports and workers
    with ExitStack() as stack:
        ports = _ports(settings, stack)

        def greet(rules: int) -> None:
            numbers = {port.name: port.number for port in ports}
            if settings.log_format == LOG_FORMATS[0]:
                _greet(lambda: greeting.tell(settings, numbers, rules, store, terminal), terminal)
            else:
                facts = logs.fields(rules=rules, store=store, workers=settings.workers, **numbers)
                _LOG.info("serving", extra=facts)

        try:
            _run(settings, ports, greet)
        except CannotStart as error:
            terminal.complain(f"headgate: {error}")
            return WRONG_USAGE if error.is_usage else NO
    _LOG.info("ended")
    return OK


def _greet(tell: Callable[[], None], terminal: Terminal) -> None:
    """Say that it serves. If nobody can hear that, it serves all the same."""
    try:
        tell()
    except OSError as error:
        silence(terminal.out)
        _LOG.warning("serving; that cannot be told on the standard output: %s", error)


def _run(settings: Settings, ports: list[Port], greet: Callable[[int], None]) -> None:
    if settings.workers > 1:
        with TemporaryDirectory(prefix="headgate-") as folder:
            asyncio.run(Supervisor(settings, ports, folder, lambda report: greet(report.rules)).run())
        return

    def serving(node: Node) -> None:
        greet(node.rules)

    sockets = {port.name: port.sockets[0] for port in ports}
    process.run(process.serve(settings, sockets, serving))


def _numbers(settings: Settings) -> tuple[tuple[str, int], ...]:
    return ("http", settings.http_port), ("grpc", settings.grpc_port)


def _ports(settings: Settings, stack: ExitStack) -> list[Port]:
    ports = []
    for name, number in _numbers(settings):
        port = listen(name, settings.host, number, settings.workers)
        stack.callback(port.close)
        ports.append(port)
    return ports
