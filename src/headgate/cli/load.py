"""``headgate load``: how many checks a running service answers, and how fast."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

from headgate.cli.command import NO, OK, Commands, add_command
from headgate.cli.load_summary import tell_progress, tell_summary, to_data
from headgate.cli.service_options import add_service_options, tls_of, url
from headgate.cli.terminal import Terminal
from headgate.core.errors import UsageError
from headgate.load_generator.http1 import Http1
from headgate.load_generator.http2 import Http2
from headgate.load_generator.machine import Machine
from headgate.load_generator.questions import MOST_USERS, Asked, Service, grpc_method, http_question
from headgate.load_generator.running import MOST_REQUESTS, MOST_SECONDS, MOST_STREAMS, Plan, Run
from headgate.load_generator.statistics import Summary
from headgate.load_generator.targets import Target, parse_target

_INTERRUPTED = 130
_MOST_COST = 100_000
_SECONDS, _SECONDS_FOR_REQUESTS = 5.0, 60.0


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "load",
        _load,
        summary="ask a running service as much as it can answer, for a short time, and say how it did",
        more="Without --rate each connection asks again when it was answered (a closed loop). With --rate, requests\n"
        "are due at a constant rate, whether the service keeps up or not, and latencies count from when they are\n"
        "due (an open loop). It ends after --requests or --seconds, whatever comes first; Ctrl-C ends it earlier.\n\n"
        "Exit codes: 0 all was decided or shed, 1 there were errors, or the service went away, 2 wrong usage, or\n"
        "nothing listens there.",
        examples="headgate load\n"
        "headgate load http://127.0.0.1:8080 --requests 10000 --connections 16\n"
        "headgate load http://127.0.0.1:8080 --rate 5000 --seconds 10\n"
        "headgate load grpc://127.0.0.1:8081 --service rls --connections 2 --streams 32",
    )
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        default=url(),
        help="http://, https://, grpc:// or grpcs://HOST:PORT; or HEADGATE_URL [%(default)s]",
    )
    much = parser.add_argument_group("how much")
    much.add_argument("--requests", metavar="N", type=int, help=f"in all, up to {MOST_REQUESTS:,}")
    much.add_argument(
        "--seconds",
        metavar="S",
        type=float,
        help=f"up to {MOST_SECONDS:,.0f} [{_SECONDS:g}, or {_SECONDS_FOR_REQUESTS:g} if --requests is given]",
    )
    much.add_argument("--rate", metavar="R", type=float, help="requests in a second, whether they are answered or not")
    much.add_argument("--connections", metavar="N", type=int, default=16, help="open at once [%(default)s]")
    much.add_argument(
        "--streams", metavar="N", type=int, default=32, help="gRPC: calls at once on each connection [%(default)s]"
    )
    _add_asked(parser.add_argument_group("what is asked"))
    add_service_options(parser, timeout="seconds until an answer counts as missing [%(default)g]")
    parser.add_argument("--yes-remote", action="store_true", help="load a service that is not on this machine")
    parser.add_argument("--json", action="store_true", help="write JSON, for programs")


def _add_asked(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--users", metavar="N", type=int, default=1000, help="how many different ones ask [%(default)s]")
    group.add_argument("--path", default="/api/v1/orders", help="the path that they ask for [%(default)s]")
    group.add_argument("--method", default="GET", help="the method [%(default)s]")
    group.add_argument("--cost", type=int, default=1, help="what each request takes [%(default)s]")
    group.add_argument(
        "--service",
        choices=list(Service),
        default=Service.HEADGATE,
        help="gRPC: headgate.v1, or Envoy's rate limit service [%(default)s]",
    )
    group.add_argument("--domain", default="headgate", help="rls: the domain of the descriptors [%(default)s]")


def _load(arguments: argparse.Namespace, terminal: Terminal) -> int:
    target = parse_target(arguments.target)
    if not (target.is_here or arguments.yes_remote):
        raise UsageError(
            f"{target.host} is not on this machine; if it is yours, and may be loaded, say so with --yes-remote"
        )
    plan, machine, tls = _plan(arguments), _machine(arguments, target), tls_of(arguments, target)
    if tls is not None and target.grpc:
        tls.set_alpn_protocols(["h2"])
    watch = (lambda progress: tell_progress(progress, terminal)) if terminal.err.isatty() else None
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        summary = runner.run(_run(lambda: Run(target, plan, machine, tls=tls, watch=watch)))
    if arguments.json:
        terminal.say(json.dumps(to_data(summary), indent=2))
    else:
        tell_summary(summary, terminal)
    if summary.interrupted:
        return _INTERRUPTED
    return NO if summary.failed or summary.gone else OK


def _plan(arguments: argparse.Namespace) -> Plan:
    seconds = _SECONDS if arguments.requests is None else _SECONDS_FOR_REQUESTS
    return Plan(
        requests=MOST_REQUESTS if arguments.requests is None else arguments.requests,
        seconds=seconds if arguments.seconds is None else arguments.seconds,
        connections=arguments.connections,
        users=_within("users", arguments.users, MOST_USERS),
        rate=arguments.rate,
        timeout=arguments.timeout,
    )


def _machine(arguments: argparse.Namespace, target: Target) -> Callable[[], Machine]:
    """Return what makes the client's end of a connection."""
    _within("cost", arguments.cost, _MOST_COST)
    asked = Asked(arguments.path, arguments.method.upper(), arguments.cost, arguments.domain)
    if not target.grpc:
        question = http_question(target, asked, arguments.caller_key)
        return lambda: Http1(question)
    method = grpc_method(Service(arguments.service), asked)
    streams = _within("streams", arguments.streams, MOST_STREAMS)
    return lambda: Http2(target, method, streams, arguments.caller_key)


def _within(name: str, value: int, most: int) -> int:
    if not 1 <= value <= most:
        raise UsageError(f"--{name} should be 1 to {most:,}, not {value}")
    return value


async def _run(make: Callable[[], Run]) -> Summary:
    """Run; Ctrl-C ends it, and what was found so far is the summary."""
    run = make()
    if threading.current_thread() is threading.main_thread():
        with suppress(NotImplementedError):  # there Ctrl-C ends the program
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, run.interrupt)
    return await run.run()


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes the fastest loop that is installed."""
    try:
        import uvloop  # noqa: PLC0415  an extra
    except ImportError:
        return None
    return uvloop.new_event_loop
