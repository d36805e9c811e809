"""``headgate check`` and ``headgate reset``: a request to a running service."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from typing import Any

import msgspec

from headgate.cli.command import (
    NO,
    OK,
    Commands,
    Terminal,
    add_command,
    add_principal_options,
    add_request_options,
    attributes_of,
    principal_of,
)
from headgate.cli.service import (
    add_service_options,
    call_service,
    request_of,
    wait_of,
    write_outcome,
    write_unmatched,
)
from headgate.clock import SystemClock
from headgate.core.errors import UsageError
from headgate.core.numbers import printable
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND
from headgate.engine import Ruling
from headgate.engine.ruling import RuleDecision
from headgate.policy.request import Request
from headgate.server.api.answers import CheckAnswers

_STATES = {Pressure.NORMAL: "green", Pressure.WARNING: "yellow", Pressure.THROTTLED: "red"}


def add(commands: Commands) -> None:
    parser = add_command(
        commands,
        "check",
        _check,
        "check a request with a running service, which counts it",
        more="Exit codes: 0 allowed, 1 refused, 2 wrong usage, or the service did not decide.",
        examples="headgate check --user 42 --method POST /api/v1/orders\n"
        "headgate check --user 42 --peek --json /api/v1/orders\n"
        "headgate check --rule orders-user --user 42\n"
        "headgate check --url https://limits.example.com --ca ca.pem --ip 192.0.2.7 /",
    )
    parser.add_argument("endpoint", metavar="PATH", nargs="?", help="the path of the request, such as /api/v1/orders")
    add_request_options(parser)
    parser.add_argument("--rule", metavar="ID", help="check one rule by its id, whatever the path")
    parser.add_argument("--peek", action="store_true", help="take nothing")
    parser.add_argument("--idempotency-key", metavar="KEY", help="count repetitions with this key only once")
    reset = add_command(
        commands,
        "reset",
        _reset,
        "reset what a caller has used of a running service's limits",
        more="Without a path and --rule: every limit that counts by the given principals. With a path: limits that\n"
        "apply to such a request. A limit shared with others is reset only if --rule names it.\n\n"
        "Exit codes: 0 something was reset, 1 nothing was, 2 wrong usage, or the service did not answer.",
        examples="headgate reset --user 42\n"
        "headgate reset --user 42 --method POST /api/v1/orders\n"
        "headgate reset --ip 192.0.2.7 --rule small-ip\n"
        "headgate reset --rule everybody",
    )
    reset.add_argument("endpoint", metavar="PATH", nargs="?", help="only limits that apply to this path")
    add_principal_options(reset, "the caller")
    reset.add_argument("--method", default="", help="with a path: the HTTP method")
    reset.add_argument("--rule", metavar="ID", help="only the limits of this rule")
    for each in (parser, reset):
        add_service_options(each)
        each.add_argument("--json", action="store_true", help="write the service's response as JSON")


def _check(arguments: argparse.Namespace, terminal: Terminal) -> int:
    request, key = _request(arguments), arguments.idempotency_key
    now = SystemClock().now()
    if arguments.peek:
        ruling = call_service(arguments, lambda client: client.peek(request))
    elif key is not None:
        ruling = call_service(arguments, lambda client: client.check_once(request, key))
    else:
        ruling = call_service(arguments, lambda client: client.check(request))
    if arguments.json:
        terminal.write_json(json.loads(CheckAnswers().response(ruling, now).body))
    else:
        _write(ruling, now, terminal, peeked=arguments.peek)
    return OK if ruling.allowed else NO


def _request(arguments: argparse.Namespace) -> Request:
    named = {**principal_of(arguments), **attributes_of(arguments)}
    about: Any = {"cost": arguments.cost, "tier": arguments.tier}
    if arguments.rule is None:
        if arguments.endpoint is None and not named:
            raise UsageError("name the caller and the path: headgate check --user 42 --method POST /api/v1/orders")
        return request_of(arguments, **about)
    if arguments.endpoint is not None:
        raise UsageError(f"--rule checks {arguments.rule} by its id: leave out the path {arguments.endpoint!r}")
    if len(named) != 1:
        raise UsageError("--rule takes one principal, such as --user 42, --ip 192.0.2.7 or --attribute tenant=acme")
    return Request(named, rule_id=arguments.rule, **about)


def _write(ruling: Ruling, now: int, terminal: Terminal, *, peeked: bool) -> None:
    passes, refused = ("would pass", "would be refused") if peeked else ("allowed", "refused")
    write_outcome(ruling, terminal, passes, refused)
    if ruling.decision is not None and ruling.decision.delay_us:
        terminal.write(f"delayed by {ruling.decision.delay:g} s")
    if ruling.degraded:
        note = f"degraded: the store did not decide ({ruling.degraded}), so the usage recorded there is unknown"
        terminal.write(terminal.styled(printable(note), "yellow"))
    write_unmatched(ruling, terminal)
    for limit in ruling.limits:
        _write_limit(limit, now, terminal)
    for limit in ruling.shadow:
        _write_limit(limit, now, terminal, shadow=True)


def _write_limit(limit: RuleDecision, now: int, terminal: Terminal, *, shadow: bool = False) -> None:
    decision = limit.decision
    name = terminal.styled(printable(limit.rule_id), "dim" if shadow else "bold")
    state = terminal.styled(decision.state, _STATES[decision.state])
    refused = "" if decision.allowed else f", refused {wait_of(decision)}"
    aside = ", a shadow that refuses nothing" if shadow else ""
    whole = datetime.fromtimestamp(-(-(now + decision.reset_after_us) // SECOND), UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    left = f"{decision.remaining} of {decision.limit} left"
    terminal.write(f"  {name}: {left}, {state}{refused}, all of it at {whole}{aside}")


def _reset(arguments: argparse.Namespace, terminal: Terminal) -> int:
    named, rule = {**principal_of(arguments), **attributes_of(arguments)}, arguments.rule or ""
    if not (named or rule):
        raise UsageError("name a caller or a rule: --user 42, --ip 192.0.2.7, --apikey NAME, or --rule ID")
    has_path = arguments.endpoint is not None
    request = request_of(arguments, rule_id=rule) if has_path else Request(named, rule_id=rule)
    answer = call_service(
        arguments, lambda client: client.reset(request) if rule or has_path else client.reset_all(request)
    )
    if arguments.json:
        terminal.write_json({"success": bool(answer), **msgspec.to_builtins(answer)})
        return OK if answer.rules else NO
    if answer.rules:
        terminal.write(terminal.styled(f"reset: {printable(', '.join(answer.rules))}", "green"))
    else:
        reason = answer.reason or "no rule counts by these principals alone"
        terminal.write(terminal.styled(f"nothing was reset: {printable(reason)}", "yellow"))
    if answer.shared:
        terminal.write(
            f"not reset, since others share them (name one with --rule): {printable(', '.join(answer.shared))}"
        )
    return OK if answer.rules else NO
