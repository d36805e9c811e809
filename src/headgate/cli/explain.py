"""``headgate explain``: which rules a request meets, why, and what would be decided. Nothing is taken."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Sequence
from typing import Any

from headgate.cli.command import (
    NO,
    OK,
    Commands,
    Terminal,
    add_command,
    add_request_options,
    named,
)
from headgate.cli.rule_files import for_envoy
from headgate.cli.service import (
    add_service_options,
    posted,
    request_of,
    tell_outcome,
    tell_unmatched,
    told_by_service,
    wait_of,
)
from headgate.core.decision import Decision
from headgate.core.errors import UsageError
from headgate.core.numbers import printable
from headgate.engine import Engine, Explained
from headgate.engine.descriptors import AsyncDescriptorEngine
from headgate.engine.ruling import explained_data
from headgate.policy.envoy import Descriptor, DescriptorPolicy
from headgate.policy.explain import MATCHES, Considered
from headgate.policy.loading import load_file
from headgate.policy.request import GLOBAL


def add(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "explain",
        _explain,
        "say which rules a request meets, why, and what would be decided; takes nothing",
        more="By the rules of a file and what is used in a store, or by those of a running service, with --url.\n\n"
        "Exit codes: 0 it would pass, 1 it would be refused, 2 wrong usage, or the service did not answer.",
        examples="headgate explain --rules rules.yaml --user 42 --method POST /api/v1/orders\n"
        "headgate explain --rules ratelimit --domain edge --entry remote_address=192.0.2.7\n"
        "headgate explain --rules rules.yaml --store redis://localhost:6379/0 --user 42 /api/v1/orders --json\n"
        "headgate explain --url http://127.0.0.1:8080 --user 42 --method POST /api/v1/orders\n"
        "headgate explain --url http://127.0.0.1:8080 --domain edge --entry remote_address=192.0.2.7",
    )
    parser.add_argument("endpoint", metavar="PATH", nargs="?", help="the path of the request, such as /api/v1/orders")
    store = os.environ.get("HEADGATE_STORE", "memory")
    parser.add_argument(
        "--rules",
        metavar="FILE",
        help="the rules, or a folder of envoyproxy/ratelimit; or HEADGATE_RULES",
    )
    parser.add_argument("--store", metavar="ADDRESS", default=store, help="where the state is; default: memory (empty)")
    add_request_options(parser)
    add_service_options(parser, is_optional=True)
    descriptors = parser.add_argument_group("for files of envoyproxy/ratelimit")
    descriptors.add_argument("--domain", help="that Envoy asks for; not needed where the files have just one")
    descriptors.add_argument(
        "--entry", metavar="KEY=VALUE", action="append", default=[], help="of the descriptor, in order; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="write JSON, for programs")


def _explain(arguments: argparse.Namespace, terminal: Terminal) -> int:
    rules = arguments.rules or (None if arguments.url else os.environ.get("HEADGATE_RULES"))
    arguments.url = arguments.url or (None if rules else os.environ.get("HEADGATE_URL"))
    if rules and arguments.url:
        raise UsageError("--rules explains by a file, --url by a running service: say one of them")
    if not (rules or arguments.url):
        raise UsageError("say by which --rules FILE, or at which --url a service runs, such as http://127.0.0.1:8080")
    descriptors = for_envoy(rules) if rules else None
    if descriptors is not None or (arguments.url and (arguments.domain or arguments.entry)):
        return _explain_descriptor(descriptors, arguments, terminal)
    if arguments.endpoint is None:
        raise UsageError("say which PATH is asked for, such as /api/v1/orders")
    request = request_of(arguments, cost=arguments.cost, tier=arguments.tier)
    if rules:
        with Engine(load_file(rules), store=arguments.store) as engine:
            explained = engine.explain(request)
    else:
        explained = told_by_service(arguments, lambda client: client.explain(request))
    if arguments.json:
        terminal.say_json(explained_data(explained))
    else:
        _tell(explained, terminal)
    return OK if explained.ruling.allowed else NO


def _explain_descriptor(policy: DescriptorPolicy | None, arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Say what Envoy would be answered about one descriptor, by files or by a running service."""
    domains = [] if policy is None else [*policy.domains]
    domain = arguments.domain or (domains[0] if len(domains) == 1 else "")
    if not (domain and arguments.entry):
        where = "" if policy is None else f" ({', '.join(domains)})"
        raise UsageError(
            f"descriptors of envoyproxy/ratelimit: give --domain{where} and the --entry KEY=VALUE of a descriptor, "
            "such as --entry remote_address=192.0.2.7"
        )
    entries = tuple([named(text, "--entry", "remote_address=192.0.2.7") for text in arguments.entry])
    if policy is None:
        pairs = [{"key": key, "value": value} for key, value in entries]
        question = {"domain": domain, "descriptors": [{"entries": pairs, "hits_addend": arguments.cost}]}
        (told,) = posted(arguments, "/json/explain", question)["descriptors"] or [None]
        if told is None:
            raise UsageError("this service has no files of envoyproxy/ratelimit: give the PATH of a request")
    else:
        told = asyncio.run(_explained_by(policy, arguments.store, domain, Descriptor(entries, arguments.cost)))
    if arguments.json:
        terminal.say_json(told)
        return OK if told["allowed"] else NO
    word, colour = ("would pass", "green") if told["allowed"] else ("would be over the limit", "red")
    why = told["problem"] or told["rule"] or "no descriptor is for it"
    shadow = ", a shadow that refuses nothing" if told["shadow_mode"] else ""
    terminal.say(f"{terminal.styled(word, colour)} ({told['outcome']}): {printable(why)}{shadow}")
    _tell_degraded(told["degraded"], terminal)
    for limit in told["limits"]:
        name = f" ({printable(limit['name'])})" if limit["name"] else ""
        terminal.say(f"  {limit['quota']}{name}: {limit['remaining']} of {limit['limit']} left")
    return OK if told["allowed"] else NO


async def _explained_by(policy: DescriptorPolicy, store: str, domain: str, descriptor: Descriptor) -> dict[str, Any]:
    async with AsyncDescriptorEngine(policy, store=store) as engine:
        (told,) = await engine.explain(domain, [descriptor])
    return told


def _tell_degraded(reason: str, terminal: Terminal) -> None:
    if reason:
        told = f"the store does not answer ({reason}): what was used is not known, nor what it would decide"
        terminal.say(terminal.styled(told, "yellow"))


def _tell(explained: Explained, terminal: Terminal) -> None:
    explanation, ruling = explained.explanation, explained.ruling
    tell_outcome(ruling, terminal, "would pass", "would be refused")
    facts = ", ".join(f"{name} {value}" for name, value in explanation.facts.items() if name != GLOBAL)
    tier = f", tier {explanation.tier}" if explanation.tier else ""
    terminal.say(printable(f"as seen by the rules: {facts}{tier}"))
    tell_unmatched(ruling, terminal)
    _tell_degraded(ruling.degraded, terminal)
    for considered in sorted(explanation.rules, key=lambda each: not each.applies):
        terminal.say()
        _tell_rule(considered, explained.states.get(considered.rule, ()), terminal)


def _tell_rule(considered: Considered, states: Sequence[Decision], terminal: Terminal) -> None:
    mark = "applies" if considered.applies else "does not apply"
    name = terminal.styled(printable(considered.rule), "bold" if considered.applies else "dim")
    terminal.say(f"{name} {mark}" + (f": {printable(considered.reason)}" if considered.reason != MATCHES else ""))
    for limit, state in zip(considered.limits, states, strict=False):
        principal = limit.principal if isinstance(limit.principal, str) else f"digest {limit.principal.hex()}"
        refused = "" if state.allowed else f", refused {wait_of(state)}"
        used = f"{state.remaining} of {state.limit} left"
        terminal.say(printable(f"  {limit.quota} ({considered.source}): {used}, {state.state}{refused}"))
        terminal.say(terminal.styled(printable(f"  key {limit.space} of {principal}"), "dim"))
