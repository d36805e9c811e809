"""``headgate explain``: which rules apply to a request, why, and the decision. Nothing is taken."""

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
    call_service,
    post_json,
    request_of,
    wait_of,
    write_outcome,
    write_unmatched,
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
    parser = add_command(
        commands,
        "explain",
        _explain,
        "show which rules apply to a request, why, and the decision; takes nothing",
        more="With the rules of a file and the state of a store, or with those of a running service (--url).\n\n"
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
    parser.add_argument(
        "--store", metavar="ADDRESS", default=store, help="the store of the state; default: memory (empty)"
    )
    add_request_options(parser)
    add_service_options(parser, is_optional=True)
    descriptors = parser.add_argument_group("for files of envoyproxy/ratelimit")
    descriptors.add_argument("--domain", help="the domain of the request; optional if the files have only one")
    descriptors.add_argument(
        "--entry", metavar="KEY=VALUE", action="append", default=[], help="of the descriptor, in order; may be repeated"
    )
    parser.add_argument("--json", action="store_true", help="write JSON, for programs")


def _explain(arguments: argparse.Namespace, terminal: Terminal) -> int:
    rules = arguments.rules or (None if arguments.url else os.environ.get("HEADGATE_RULES"))
    arguments.url = arguments.url or (None if rules else os.environ.get("HEADGATE_URL"))
    if rules and arguments.url:
        raise UsageError("--rules explains with a file, --url with a running service: give one of them")
    if not (rules or arguments.url):
        raise UsageError("give --rules FILE, or the --url of a running service, such as http://127.0.0.1:8080")
    descriptors = for_envoy(rules) if rules else None
    if descriptors is not None or (arguments.url and (arguments.domain or arguments.entry)):
        return _explain_descriptor(descriptors, arguments, terminal)
    if arguments.endpoint is None:
        raise UsageError("give the PATH of the request, such as /api/v1/orders")
    request = request_of(arguments, cost=arguments.cost, tier=arguments.tier)
    if rules:
        with Engine(load_file(rules), store=arguments.store) as engine:
            explained = engine.explain(request)
    else:
        explained = call_service(arguments, lambda client: client.explain(request))
    if arguments.json:
        terminal.write_json(explained_data(explained))
    else:
        _write(explained, terminal)
    return OK if explained.ruling.allowed else NO


def _explain_descriptor(policy: DescriptorPolicy | None, arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Explain the decision about one descriptor, with files or a running service."""
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
        (answer,) = post_json(arguments, "/json/explain", question)["descriptors"] or [None]
        if answer is None:
            raise UsageError("this service has no files of envoyproxy/ratelimit: give the PATH of a request")
    else:
        answer = asyncio.run(_explained_by(policy, arguments.store, domain, Descriptor(entries, arguments.cost)))
    if arguments.json:
        terminal.write_json(answer)
        return OK if answer["allowed"] else NO
    word, colour = ("would pass", "green") if answer["allowed"] else ("would be over the limit", "red")
    why = answer["problem"] or answer["rule"] or "no descriptor matches"
    shadow = ", a shadow that refuses nothing" if answer["shadow_mode"] else ""
    terminal.write(f"{terminal.styled(word, colour)} ({answer['outcome']}): {printable(why)}{shadow}")
    _write_degraded(answer["degraded"], terminal)
    for limit in answer["limits"]:
        name = f" ({printable(limit['name'])})" if limit["name"] else ""
        terminal.write(f"  {limit['quota']}{name}: {limit['remaining']} of {limit['limit']} left")
    return OK if answer["allowed"] else NO


async def _explained_by(policy: DescriptorPolicy, store: str, domain: str, descriptor: Descriptor) -> dict[str, Any]:
    async with AsyncDescriptorEngine(policy, store=store) as engine:
        (answer,) = await engine.explain(domain, [descriptor])
    return answer


def _write_degraded(reason: str, terminal: Terminal) -> None:
    if reason:
        answer = f"the store does not answer ({reason}): the recorded usage and the decision are unknown"
        terminal.write(terminal.styled(answer, "yellow"))


def _write(explained: Explained, terminal: Terminal) -> None:
    explanation, ruling = explained.explanation, explained.ruling
    write_outcome(ruling, terminal, "would pass", "would be refused")
    facts = ", ".join(f"{name} {value}" for name, value in explanation.facts.items() if name != GLOBAL)
    tier = f", tier {explanation.tier}" if explanation.tier else ""
    terminal.write(printable(f"as seen by the rules: {facts}{tier}"))
    write_unmatched(ruling, terminal)
    _write_degraded(ruling.degraded, terminal)
    for considered in sorted(explanation.rules, key=lambda each: not each.applies):
        terminal.write()
        _write_rule(considered, explained.states.get(considered.rule, ()), terminal)


def _write_rule(considered: Considered, states: Sequence[Decision], terminal: Terminal) -> None:
    mark = "applies" if considered.applies else "does not apply"
    name = terminal.styled(printable(considered.rule), "bold" if considered.applies else "dim")
    terminal.write(f"{name} {mark}" + (f": {printable(considered.reason)}" if considered.reason != MATCHES else ""))
    for limit, state in zip(considered.limits, states, strict=False):
        principal = limit.principal if isinstance(limit.principal, str) else f"digest {limit.principal.hex()}"
        refused = "" if state.allowed else f", refused {wait_of(state)}"
        used = f"{state.remaining} of {state.limit} left"
        terminal.write(printable(f"  {limit.quota} ({considered.source}): {used}, {state.state}{refused}"))
        terminal.write(terminal.styled(printable(f"  key {limit.space} of {principal}"), "dim"))
