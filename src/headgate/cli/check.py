"""``headgate check`` and ``headgate reset``: a request to a running service."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from typing import Any

import msgspec

from headgate.cli.command import (
    JSON,
    NO,
    OK,
    Commands,
    Terminal,
    add_principal_options,
    add_request_options,
    attributes_of,
    option,
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
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND
from headgate.engine import Ruling
from headgate.messages import printable
from headgate.policy.request import Request
from headgate.server.api.answers import CheckAnswers

_STATES = {Pressure.NORMAL: "green", Pressure.WARNING: "yellow", Pressure.THROTTLED: "red"}


COMMANDS = Commands()


@COMMANDS.command(
    "check",
    option("PATH?", "the path of the request, such as /api/v1/orders"),
    add_request_options,
    option("--rule ID", "check one rule by its id, regardless of the path"),
    option("--peek", "return the decision without taking anything"),
    option("--idempotency-key KEY", "count requests with this key once"),
    add_service_options,
    JSON,
)
def _check(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Send a check to a running service; it counts like any other.

    Exit codes: 0 allowed, 1 refused, 2 usage error, or the service did not decide.

    Examples:
      headgate check --user 42 --method POST /api/v1/orders
      headgate check --rule orders-user --user 42
      headgate check --url https://limits.example.com --ca ca.pem --ip 192.0.2.7 /
    """
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
        if arguments.path is None and not named:
            raise UsageError("name the caller and the path: headgate check --user 42 --method POST /api/v1/orders")
        return request_of(arguments, **about)
    if arguments.path is not None:
        raise UsageError(f"--rule checks {arguments.rule} by its id: leave out the path {arguments.path!r}")
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
        terminal.write(printable(note), "yellow")
    write_unmatched(ruling, terminal)
    for limit in (*ruling.limits, *ruling.shadow):
        decision, is_shadow = limit.decision, limit in ruling.shadow
        name = terminal.styled(printable(limit.rule_id), "dim" if is_shadow else "bold")
        state = terminal.styled(decision.state, _STATES[decision.state])
        refused = "" if decision.allowed else f", refused {wait_of(decision)}"
        aside = ", a shadow that refuses nothing" if is_shadow else ""
        full = datetime.fromtimestamp(-(-(now + decision.reset_after_us) // SECOND), UTC)
        left = f"{decision.remaining} of {decision.limit} left"
        terminal.write(f"  {name}: {left}, {state}{refused}, all of it at {full:%Y-%m-%d %H:%M:%S} UTC{aside}")


@COMMANDS.command(
    "reset",
    option("PATH?", "only reset limits that apply to this path"),
    add_principal_options,
    option("--method METHOD", "with a path: the HTTP method", ""),
    option("--rule ID", "only reset the limits of this rule"),
    add_service_options,
    JSON,
)
def _reset(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Reset the usage of a caller in a running service.

    Without a path and --rule, all limits that count by the given principals are reset; with a path, those
    that apply to the request. Limits shared with other callers are reset only if --rule names their rule.

    Exit codes: 0 limits were reset, 1 nothing was reset, 2 usage error, or the service did not respond.

    Examples:
      headgate reset --user 42
      headgate reset --user 42 --method POST /api/v1/orders
      headgate reset --rule everybody
    """
    named, rule = {**principal_of(arguments), **attributes_of(arguments)}, arguments.rule or ""
    if not (named or rule):
        raise UsageError("name a caller or a rule: --user 42, --ip 192.0.2.7, --apikey NAME, or --rule ID")
    has_path = arguments.path is not None
    request = request_of(arguments, rule_id=rule) if has_path else Request(named, rule_id=rule)
    answer = call_service(
        arguments, lambda client: client.reset(request) if rule or has_path else client.reset_all(request)
    )
    if arguments.json:
        terminal.write_json({"success": bool(answer), **msgspec.to_builtins(answer)})
        return OK if answer.rules else NO
    if answer.rules:
        terminal.write(f"reset: {printable(', '.join(answer.rules))}", "green")
    else:
        reason = answer.reason or "no rule counts by these principals alone"
        terminal.write(f"nothing was reset: {printable(reason)}", "yellow")
    if answer.shared:
        terminal.write(
            f"not reset, since other callers share them (name one with --rule): {printable(', '.join(answer.shared))}"
        )
    return OK if answer.rules else NO
