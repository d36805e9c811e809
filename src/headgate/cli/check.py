"""``headgate check``: one request to a running service, from the terminal."""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from typing import Any

from headgate.cli.asking import CHECK, Answer, Limit, NoAnswer, answer_of, ask
from headgate.cli.command import NO, OK, WRONG_USAGE, Commands, add_command
from headgate.cli.request_options import add_request_options, attributes_of, principal_of
from headgate.cli.service_options import Target, add_service_options, parse_target, tls_of, url
from headgate.cli.terminal import Terminal, safe
from headgate.core.errors import UsageError

_STATES = {"normal": "green", "warning": "yellow", "throttled": "red"}


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "check",
        _check,
        summary="ask a running service about one request, which is counted",
        more="Exit codes: 0 it may pass, 1 it is refused, 2 wrong usage, or the service did not decide.",
        examples="headgate check --user 42 --method POST /api/v1/orders\n"
        "headgate check --user 42 --peek --json /api/v1/orders\n"
        "headgate check --rule orders-user --user 42\n"
        "headgate check --url https://limits.example.com --ca ca.pem --ip 192.0.2.7 /",
    )
    parser.add_argument("endpoint", metavar="PATH", nargs="?", help="the path of the request, such as /api/v1/orders")
    parser.add_argument("--url", default=url(), help="where the service is; or HEADGATE_URL [%(default)s]")
    add_request_options(parser)
    parser.add_argument("--rule", metavar="ID", help="ask one rule by its id, whatever the path")
    parser.add_argument("--peek", action="store_true", help="only ask, take nothing")
    parser.add_argument("--idempotency-key", metavar="KEY", help="count this once, however often it is sent")
    add_service_options(parser, timeout="seconds to wait for the service [%(default)g]")
    parser.add_argument("--json", action="store_true", help="write the service's answer as JSON, for programs")


def _check(arguments: argparse.Namespace, terminal: Terminal) -> int:
    question = _question(arguments)
    try:
        target, body = asked(arguments, question)
        answer = answer_of(target, body)
    except NoAnswer as error:
        return not_answered(error, terminal)
    if arguments.json:
        terminal.say(json.dumps(json.loads(body), indent=2))
    else:
        _tell(answer, terminal, peeked=arguments.peek)
    return OK if answer.allowed else NO


def asked(arguments: argparse.Namespace, question: dict[str, Any], path: str = CHECK) -> tuple[Target, bytes]:
    """Ask the service that the arguments name; returns its address, and what it answers. Raises NoAnswer."""
    target = parse_target(arguments.url)
    tls = tls_of(arguments, target)
    if not 0 < arguments.timeout <= 3600:
        raise UsageError(f"--timeout is in seconds, up to 3600, not {arguments.timeout:g}")
    return target, ask(target, question, path, tls=tls, caller_key=arguments.caller_key, timeout=arguments.timeout)


def not_answered(error: NoAnswer, terminal: Terminal) -> int:
    """Say why there is no answer; returns the exit code."""
    first, *more = str(error).split("\n")
    terminal.complain(terminal.styled(f"headgate: {safe(first)}", "red", err=True))
    for line in more:
        terminal.complain(safe(line))
    return WRONG_USAGE


def _question(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what the service is asked."""
    principal, attributes = principal_of(arguments), attributes_of(arguments)
    question: dict[str, Any] = {"consume": False} if arguments.peek else {}
    if arguments.idempotency_key is not None:
        question["idempotency_key"] = arguments.idempotency_key
    if arguments.tier:
        question["tier"] = arguments.tier
    if arguments.rule is None:
        if arguments.endpoint is None and not (principal or attributes):
            raise UsageError("say who asks for what: headgate check --user 42 --method POST /api/v1/orders")
        endpoint = "/" if arguments.endpoint is None else arguments.endpoint
        asked = {"principal": principal, "endpoint": endpoint, "method": arguments.method.upper()}
        return {**asked, "cost": arguments.cost, "attributes": attributes, **question}
    if arguments.endpoint is not None:
        raise UsageError(f"--rule asks {arguments.rule} by its id: leave out the path {arguments.endpoint!r}")
    named = {**principal, **attributes}
    if len(named) != 1:
        raise UsageError(
            "--rule takes one who is counted, such as --user 42, --ip 192.0.2.7 or --attribute tenant=acme"
        )
    ((dimension, value),) = named.items()
    return {
        "key_type": "api_key" if dimension == "apikey" else dimension,
        "key_value": value,
        "rule_id": arguments.rule,
        "request_count": arguments.cost,
        **question,
    }


def _tell(answer: Answer, terminal: Terminal, *, peeked: bool) -> None:
    passes, refused = ("would pass", "would be refused") if peeked else ("allowed", "refused")
    word = terminal.styled(passes, "green") if answer.allowed else terminal.styled(refused, "red")
    terminal.say(f"{word}{safe(_because(answer))}")
    if answer.delay:
        terminal.say(f"its turn comes in {answer.delay:g} s")
    if answer.degraded:
        told = f"degraded: the store did not decide this{safe(_why(answer))}; what was used there is not known"
        terminal.say(terminal.styled(told, "yellow"))
    if answer.unmatched_principals:
        names = ", ".join(answer.unmatched_principals)
        terminal.say(terminal.styled(safe(f"no rule knows {names}: nothing limits by that"), "yellow"))
    for limit in answer.limits:
        _tell_limit(limit, terminal)
    for limit in answer.shadow:
        _tell_limit(limit, terminal, shadow=True)


def _why(answer: Answer) -> str:
    reason = answer.reason or (answer.degraded if isinstance(answer.degraded, str) else "")
    return f" ({reason})" if reason else ""


def _because(answer: Answer) -> str:
    if answer.limits and not answer.allowed:
        again = f", for another {answer.retry_after:g} s" if answer.retry_after else ""
        return f": rule {answer.rule_id}{again}"
    if answer.limits:
        return f": rule {answer.rule_id} is the most restrictive"
    if answer.reason and not answer.degraded:
        return f": {answer.reason}"
    return ": only shadows apply, which refuse nothing" if answer.matched else ": no rule applies"


def _tell_limit(limit: Limit, terminal: Terminal, *, shadow: bool = False) -> None:
    name = terminal.styled(safe(limit.rule_id), "dim" if shadow else "bold")
    state = terminal.styled(safe(limit.state), _STATES.get(limit.state, "dim"))
    again = f", refused for another {limit.retry_after:g} s" if not limit.allowed else ""
    aside = ", a shadow that refuses nothing" if shadow else ""
    whole = datetime.fromtimestamp(limit.reset_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    terminal.say(f"  {name}: {limit.remaining} of {limit.limit} left, {state}{again}, all of it at {whole}{aside}")
