"""``headgate explain``: which rules a request meets, why, and what would be decided. Nothing is taken."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any

from headgate.cli.command import NO, OK, Commands, add_command
from headgate.cli.request_options import add_request_options, attributes_of, principal_of
from headgate.cli.terminal import Terminal, safe
from headgate.core.decision import Decision
from headgate.engine import Engine, Explained
from headgate.policy.explain import Considered
from headgate.policy.loading import load_file
from headgate.policy.request import Request


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "explain",
        _explain,
        summary="say which rules a request meets, why, and what would be decided; takes nothing",
        more="Exit codes: 0 it would pass, 1 it would be refused, 2 wrong usage.",
        examples="headgate explain --rules rules.yaml --user 42 --method POST /api/v1/orders\n"
        "headgate explain --rules rules.yaml --store redis://localhost:6379/0 --user 42 /api/v1/orders --json",
    )
    parser.add_argument("endpoint", metavar="PATH", help="the path of the request, such as /api/v1/orders")
    rules = os.environ.get("HEADGATE_RULES")
    store = os.environ.get("HEADGATE_STORE", "memory")
    parser.add_argument(
        "--rules", metavar="FILE", default=rules, required=rules is None, help="the rules; or HEADGATE_RULES"
    )
    parser.add_argument(
        "--store", metavar="ADDRESS", default=store, help="where the state is; memory (empty) unless told"
    )
    add_request_options(parser)
    parser.add_argument("--json", action="store_true", help="write JSON, for programs")


def _explain(arguments: argparse.Namespace, terminal: Terminal) -> int:
    with Engine(load_file(arguments.rules), store=arguments.store) as engine:
        explained = engine.explain(_request(arguments))
    if arguments.json:
        terminal.say(json.dumps(_data(explained), indent=2))
    else:
        _tell(explained, terminal)
    return OK if explained.ruling.allowed else NO


def _request(arguments: argparse.Namespace) -> Request:
    principal, attributes = principal_of(arguments), attributes_of(arguments)
    return Request(
        principal, arguments.endpoint, arguments.method, attributes, cost=arguments.cost, tier=arguments.tier
    )


def _tell(explained: Explained, terminal: Terminal) -> None:
    explanation, ruling = explained.explanation, explained.ruling
    word, colour = ("would pass", "green") if ruling.allowed else ("would be refused", "red")
    terminal.say(f"{terminal.styled(word, colour)}{safe(_because(explained))}")
    facts = ", ".join(f"{name} {value}" for name, value in explanation.facts.items())
    terminal.say(safe(f"as seen by the rules: {facts}" + (f", tier {explanation.tier}" if explanation.tier else "")))
    if ruling.unmatched_principals:
        names = ", ".join(ruling.unmatched_principals)
        terminal.say(terminal.styled(safe(f"no rule knows {names}: nothing limits by that"), "yellow"))
    if ruling.degraded:
        terminal.say(
            terminal.styled(f"the store does not answer ({ruling.degraded}): states are those of here", "yellow")
        )
    for considered in sorted(explanation.rules, key=lambda each: not each.applies):
        terminal.say()
        _tell_rule(considered, explained.states.get(considered.rule, ()), terminal)


def _because(explained: Explained) -> str:
    ruling = explained.ruling
    if ruling.reason:
        return f": {ruling.reason}"
    if not ruling.matched:
        return ": no rule applies"
    if ruling.decision is None:
        return ": nothing is enforced"
    if not ruling.allowed:
        return f": rule {ruling.rule_id}, for another {ruling.decision.retry_after:g} s"
    return f": rule {ruling.rule_id} is the most restrictive"


def _tell_rule(considered: Considered, states: Sequence[Decision], terminal: Terminal) -> None:
    mark = "applies" if considered.applies else "does not apply"
    name = terminal.styled(safe(considered.rule), "bold" if considered.applies else "dim")
    terminal.say(f"{name} {mark}: {safe(considered.reason)}")
    for limit, state in zip(considered.limits, states, strict=False):
        principal = limit.principal if isinstance(limit.principal, str) else f"digest {limit.principal.hex()}"
        used = f"{state.remaining} of {state.limit} left"
        again = f", refused for another {state.retry_after:g} s" if not state.allowed else ""
        terminal.say(safe(f"  {limit.quota} ({considered.source}): {used}, {state.state}{again}"))
        terminal.say(terminal.styled(safe(f"  key {limit.space} of {principal}"), "dim"))


def _data(explained: Explained) -> dict[str, Any]:
    explanation, ruling = explained.explanation, explained.ruling
    return {
        "allowed": ruling.allowed,
        "verdict": ruling.verdict,
        "rule_id": ruling.rule_id,
        "reason": ruling.reason,
        "degraded": ruling.degraded,
        "unmatched_principals": list(ruling.unmatched_principals),
        "facts": dict(explanation.facts),
        "tier": explanation.tier,
        "rules": [_rule_data(each, explained.states.get(each.rule, ())) for each in explanation.rules],
    }


def _rule_data(considered: Considered, states: Sequence[Decision]) -> dict[str, Any]:
    limits = [
        {
            "quota": str(limit.quota),
            "space": limit.space,
            "principal": limit.principal if isinstance(limit.principal, str) else {"digest": limit.principal.hex()},
            "allowed": state.allowed,
            "limit": state.limit,
            "remaining": state.remaining,
            "retry_after": state.retry_after,
            "reset_after": state.reset_after,
            "state": state.state,
        }
        for limit, state in zip(considered.limits, states, strict=False)
    ]
    return {
        "id": considered.rule,
        "applies": considered.applies,
        "reason": considered.reason,
        "enforced": considered.is_enforced,
        "source": considered.source,
        "limits": limits,
    }
