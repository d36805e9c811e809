"""``headgate check`` and ``headgate reset``: one question to a running service, from the terminal."""

from __future__ import annotations

import argparse
import json
import ssl
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar, Unpack

import msgspec

from headgate.cli.command import (
    NO,
    OK,
    WRONG_USAGE,
    Command,
    Commands,
    Terminal,
    add_command,
    add_principal_options,
    add_request_options,
    attributes_of,
    principal_of,
)
from headgate.cli.service import NoAnswer, add_service_options
from headgate.clock import SystemClock
from headgate.core.errors import StoreError, StoreUnavailable, UsageError
from headgate.core.numbers import printable
from headgate.policy.request import Request
from headgate.sdk.clients import Client
from headgate.sdk.settings import ClientOptions
from headgate.sdk.transport import CallerRefused, Unanswered
from headgate.sdk.verbs import Step
from headgate.server.api.answers import CheckAnswers

_STATES = {"normal": "green", "warning": "yellow", "throttled": "red"}

_Time = Annotated[int, msgspec.Meta(ge=0, le=253_402_300_799)]
"""Unix time in seconds, up to the year 9999."""
T = TypeVar("T")


class ShownLimit(msgspec.Struct, frozen=True):
    """What one limit says."""

    rule_id: str
    allowed: bool
    limit: int
    remaining: int
    reset_at: _Time
    retry_after: float
    state: str


class ShownDecision(msgspec.Struct, frozen=True):
    """What the service decided; more members are welcome."""

    allowed: bool
    rule_id: str | None = None
    retry_after: float | None = None
    state: str = ""
    degraded: bool | str | None = None
    reason: str | None = None
    matched: bool = True
    delay: float = 0.0
    limits: tuple[ShownLimit, ...] = ()
    shadow: tuple[ShownLimit, ...] = ()
    unmatched_principals: tuple[str, ...] = ()


def add(commands: Commands) -> None:
    """Add the commands."""
    parser = add_command(
        commands,
        "check",
        answered(_check),
        summary="ask a running service about one request, which is counted",
        more="Exit codes: 0 it may pass, 1 it is refused, 2 wrong usage, or the service did not decide.",
        examples="headgate check --user 42 --method POST /api/v1/orders\n"
        "headgate check --user 42 --peek --json /api/v1/orders\n"
        "headgate check --rule orders-user --user 42\n"
        "headgate check --url https://limits.example.com --ca ca.pem --ip 192.0.2.7 /",
    )
    parser.add_argument("endpoint", metavar="PATH", nargs="?", help="the path of the request, such as /api/v1/orders")
    add_request_options(parser)
    parser.add_argument("--rule", metavar="ID", help="ask one rule by its id, whatever the path")
    parser.add_argument("--peek", action="store_true", help="only ask, take nothing")
    parser.add_argument("--idempotency-key", metavar="KEY", help="count this once, however often it is sent")
    reset = add_command(
        commands,
        "reset",
        answered(_reset),
        summary="let a running service forget what somebody has used",
        more="Without a path and --rule: of every limit that is counted by who is named. With a path, of those that\n"
        "apply to such a request. A limit that others share is reset only if --rule names it.\n\n"
        "Exit codes: 0 something was reset, 1 nothing was, 2 wrong usage, or the service did not answer.",
        examples="headgate reset --user 42\n"
        "headgate reset --user 42 --method POST /api/v1/orders\n"
        "headgate reset --ip 192.0.2.7 --rule small-ip\n"
        "headgate reset --rule everybody",
    )
    reset.add_argument("endpoint", metavar="PATH", nargs="?", help="only what applies to this path")
    add_principal_options(reset, "whose limits")
    reset.add_argument("--method", default="", help="with a path: the HTTP method")
    reset.add_argument("--rule", metavar="ID", help="only the limits of this rule")
    for each in (parser, reset):
        add_service_options(each)
        each.add_argument("--json", action="store_true", help="write the service's answer as JSON, for programs")


def answered(run: Command) -> Command:
    """Return the command, which says why a service did not answer rather than raise it."""

    def told(arguments: argparse.Namespace, terminal: Terminal) -> int:
        try:
            return run(arguments, terminal)
        except NoAnswer as error:
            first, *more = str(error).split("\n")
        terminal.complain(terminal.styled(f"headgate: {printable(first)}", "red", err=True))
        for line in more:
            terminal.complain(printable(line))
        return WRONG_USAGE

    return told


class _Direct(Client):
    """A client that says why the service did not decide, rather than stand in for it."""

    def __init__(self, address: str, **options: Unpack[ClientOptions]) -> None:
        super().__init__(address, **options)
        self._stands_in = False

    def _do(self, step: Step) -> Sequence[Any]:
        outcomes = super()._do(step)
        for each in outcomes:
            if isinstance(each, Unanswered):
                raise NoAnswer(f"{each.error}{_hint(each.error)}")
        return outcomes


def _hint(error: StoreError) -> str:
    """Return what may help, as a line of its own."""
    match error.__cause__:
        case ssl.SSLCertVerificationError():
            return "\n  the authority that signed it goes into --ca, and the name that it is for into --url"
        case ssl.SSLError():
            return "\n  a service without TLS is at http://"
    return "\n  start one with headgate serve" if isinstance(error, StoreUnavailable) else ""


def told_by_service(arguments: argparse.Namespace, ask: Callable[[Client], T]) -> T:
    """Return what the service says, asked by a client. Raises NoAnswer, and UsageError where it says that."""
    given = {name: getattr(arguments, name) for name in ("ca", "cert", "key", "caller_key")}
    options: Any = {name: value for name, value in given.items() if value is not None}
    if options.get("caller_key") == "":
        raise UsageError("a caller key is not empty")
    with _Direct(arguments.url, timeout=arguments.timeout, **options) as client:
        try:
            return ask(client)
        except CallerRefused as error:
            raise NoAnswer(f"{error}\n  the key goes into HEADGATE_CALLER_KEY") from None


def _check(arguments: argparse.Namespace, terminal: Terminal) -> int:
    request, key = _request(arguments), arguments.idempotency_key
    now = SystemClock().now()
    if arguments.peek:
        ruling = told_by_service(arguments, lambda client: client.peek(request))
    elif key is not None:
        ruling = told_by_service(arguments, lambda client: client.check_once(request, key))
    else:
        ruling = told_by_service(arguments, lambda client: client.check(request))
    body = CheckAnswers().body(ruling, now)
    if arguments.json:
        terminal.say_json(json.loads(body))
    else:
        _tell(msgspec.json.decode(body, type=ShownDecision), terminal, peeked=arguments.peek)
    return OK if ruling.allowed else NO


def _request(arguments: argparse.Namespace) -> Request:
    """Return what the service is asked."""
    principal, attributes = principal_of(arguments), attributes_of(arguments)
    about: Any = {"cost": arguments.cost, "tier": arguments.tier or ""}
    if arguments.rule is None:
        if arguments.endpoint is None and not (principal or attributes):
            raise UsageError("say who asks for what: headgate check --user 42 --method POST /api/v1/orders")
        endpoint = "/" if arguments.endpoint is None else arguments.endpoint
        return Request(principal, endpoint, arguments.method.upper(), attributes, **about)
    if arguments.endpoint is not None:
        raise UsageError(f"--rule asks {arguments.rule} by its id: leave out the path {arguments.endpoint!r}")
    named = {**principal, **attributes}
    if len(named) != 1:
        raise UsageError(
            "--rule takes one who is counted, such as --user 42, --ip 192.0.2.7 or --attribute tenant=acme"
        )
    return Request(named, rule_id=arguments.rule, **about)


def _tell(answer: ShownDecision, terminal: Terminal, *, peeked: bool) -> None:
    passes, refused = ("would pass", "would be refused") if peeked else ("allowed", "refused")
    word = terminal.styled(passes, "green") if answer.allowed else terminal.styled(refused, "red")
    terminal.say(f"{word}{printable(_because(answer))}")
    if answer.delay:
        terminal.say(f"its turn comes in {answer.delay:g} s")
    if answer.degraded:
        told = f"degraded: the store did not decide this{printable(_why(answer))}; what was used there is not known"
        terminal.say(terminal.styled(told, "yellow"))
    if answer.unmatched_principals:
        names = ", ".join(answer.unmatched_principals)
        terminal.say(terminal.styled(printable(f"no rule knows {names}: nothing limits by that"), "yellow"))
    for limit in answer.limits:
        _tell_limit(limit, terminal)
    for limit in answer.shadow:
        _tell_limit(limit, terminal, shadow=True)


def _why(answer: ShownDecision) -> str:
    reason = answer.reason or (answer.degraded if isinstance(answer.degraded, str) else "")
    return f" ({reason})" if reason else ""


def _because(answer: ShownDecision) -> str:
    if answer.limits and not answer.allowed:
        again = f", for another {answer.retry_after:g} s" if answer.retry_after else ""
        return f": rule {answer.rule_id}{again}"
    if answer.limits:
        return f": rule {answer.rule_id} is the most restrictive"
    if answer.reason and not answer.degraded:
        return f": {answer.reason}"
    return ": only shadows apply, which refuse nothing" if answer.matched else ": no rule applies"


def _tell_limit(limit: ShownLimit, terminal: Terminal, *, shadow: bool = False) -> None:
    name = terminal.styled(printable(limit.rule_id), "dim" if shadow else "bold")
    state = terminal.styled(printable(limit.state), _STATES.get(limit.state, "dim"))
    again = f", refused for another {limit.retry_after:g} s" if not limit.allowed else ""
    aside = ", a shadow that refuses nothing" if shadow else ""
    whole = datetime.fromtimestamp(limit.reset_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    terminal.say(f"  {name}: {limit.remaining} of {limit.limit} left, {state}{again}, all of it at {whole}{aside}")


def _reset(arguments: argparse.Namespace, terminal: Terminal) -> int:
    principal, attributes = principal_of(arguments), attributes_of(arguments)
    if not (principal or attributes or arguments.rule):
        raise UsageError("say whose limits: --user 42, --ip 192.0.2.7, --apikey NAME, or --rule ID")
    if arguments.endpoint is None:
        request = Request({**principal, **attributes}, rule_id=arguments.rule or "")
        answer = told_by_service(
            arguments, lambda client: client.reset(request) if arguments.rule else client.reset_all(request)
        )
    else:
        about: Any = {"rule_id": arguments.rule or ""}
        request = Request(principal, arguments.endpoint, arguments.method.upper(), attributes, **about)
        answer = told_by_service(arguments, lambda client: client.reset(request))
    if arguments.json:
        terminal.say_json({"success": bool(answer), **msgspec.to_builtins(answer)})
        return OK if answer.rules else NO
    if answer.rules:
        terminal.say(terminal.styled(f"reset: {printable(', '.join(answer.rules))}", "green"))
    else:
        reason = answer.reason or "no rule counts by that alone"
        terminal.say(terminal.styled(f"nothing was reset: {printable(reason)}", "yellow"))
    if answer.shared:
        terminal.say(
            f"others share these, which were left alone (name one with --rule): {printable(', '.join(answer.shared))}"
        )
    return OK if answer.rules else NO
