"""``headgate explain``: which rules apply to a request, why, and the decision. Nothing is taken."""

from __future__ import annotations

import argparse
import asyncio
import os
from functools import partial
from typing import Any

from headgate.cli.command import JSON, NO, OK, Commands, Terminal, add_request_options, heading, option, split_pair
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
from headgate.core.errors import UsageError
from headgate.engine import Engine, Explained
from headgate.engine.descriptors import AsyncDescriptorEngine
from headgate.engine.ruling import explanation_data
from headgate.messages import printable
from headgate.policy.envoy import Descriptor, DescriptorPolicy
from headgate.policy.explain import MATCHES
from headgate.policy.loading import load_file
from headgate.policy.request import GLOBAL

COMMANDS = Commands()


@COMMANDS.command(
    "explain",
    option("PATH?", "the path of the request, such as /api/v1/orders"),
    option("--rules FILE", "the rules, or a folder of envoyproxy/ratelimit; or HEADGATE_RULES"),
    option("--store ADDRESS", "the address of the store; or HEADGATE_STORE; default: memory, which is empty"),
    add_request_options,
    partial(add_service_options, is_optional=True),
    heading(
        "for files of envoyproxy/ratelimit",
        None,
        option("--domain DOMAIN", "the domain of the request; optional if the files have only one"),
        option("--entry KEY=VALUE ...", "an entry of the descriptor; repeat it for others, in their order"),
    ),
    JSON,
)
def _explain(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Show the rules that apply to a request, and the decision, without taking anything.

    Rules and state are those of a file and a store, or those of a running service (--url).

    Exit codes: 0 it would pass, 1 it would be refused, 2 usage error, or the service did not respond.

    Examples:
      headgate explain --rules rules.yaml --user 42 --method POST /api/v1/orders
      headgate explain --rules ratelimit --domain edge --entry remote_address=192.0.2.7
      headgate explain --rules rules.yaml --store redis://localhost:6379/0 --user 42 /api/v1/orders --json
      headgate explain --url http://127.0.0.1:8080 --domain edge --entry remote_address=192.0.2.7
    """
    arguments.store = arguments.store or os.environ.get("HEADGATE_STORE", "memory")
    rules = arguments.rules or (None if arguments.url else os.environ.get("HEADGATE_RULES"))
    arguments.url = arguments.url or (None if rules else os.environ.get("HEADGATE_URL"))
    if rules and arguments.url:
        raise UsageError("--rules is for a file, and --url for a running service: use one of them")
    if not (rules or arguments.url):
        raise UsageError("set --rules FILE, or the --url of a running service, such as http://127.0.0.1:8080")
    descriptors = for_envoy(rules) if rules else None
    if descriptors is not None or (arguments.url and (arguments.domain or arguments.entry)):
        return _explain_descriptor(descriptors, arguments, terminal)
    if arguments.path is None:
        raise UsageError("give the PATH of the request, such as /api/v1/orders")
    request = request_of(arguments, cost=arguments.cost, tier=arguments.tier)
    if rules:
        with Engine(load_file(rules), store=arguments.store) as engine:
            explained = engine.explain(request)
    else:
        explained = call_service(arguments, lambda client: client.explain(request))
    if arguments.json:
        terminal.write_json(explanation_data(explained))
    else:
        _write(explained, terminal)
    return OK if explained.ruling.allowed else NO


def _explain_descriptor(policy: DescriptorPolicy | None, arguments: argparse.Namespace, terminal: Terminal) -> int:
    domains = [] if policy is None else [*policy.domains]
    domain = arguments.domain or (domains[0] if len(domains) == 1 else "")
    if not (domain and arguments.entry):
        where = "" if policy is None else f" ({', '.join(domains)})"
        raise UsageError(
            f"descriptors of envoyproxy/ratelimit: give --domain{where} and the --entry KEY=VALUE of a descriptor, "
            "such as --entry remote_address=192.0.2.7"
        )
    entries = tuple([split_pair(text, "--entry", "remote_address=192.0.2.7") for text in arguments.entry])
    if policy is None:
        pairs = [{"key": key, "value": value} for key, value in entries]
        request = {"domain": domain, "descriptors": [{"entries": pairs, "hits_addend": arguments.cost}]}
        (answer,) = post_json(arguments, "/json/explain", request)["descriptors"] or [None]
        if answer is None:
            raise UsageError("this service has no files of envoyproxy/ratelimit: give the PATH of a request")
    else:

        async def explained() -> dict[str, Any]:
            async with AsyncDescriptorEngine(policy, store=arguments.store) as engine:
                (found,) = await engine.explain(domain, [Descriptor(entries, arguments.cost)])
                return found

        answer = asyncio.run(explained())
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


def _write_degraded(reason: str, terminal: Terminal) -> None:
    if reason:
        text = f"the store did not decide ({reason}), so the usage recorded there is unknown"
        terminal.write(text, "yellow")


def _write(explained: Explained, terminal: Terminal) -> None:
    explanation, ruling = explained.explanation, explained.ruling
    write_outcome(ruling, terminal, "would pass", "would be refused")
    facts = ", ".join(f"{name} {value}" for name, value in explanation.facts.items() if name != GLOBAL)
    tier = f", tier {explanation.tier}" if explanation.tier else ""
    terminal.write(printable(f"the request, for the rules: {facts}{tier}"))
    write_unmatched(ruling, terminal)
    _write_degraded(ruling.degraded, terminal)
    for considered in sorted(explanation.rules, key=lambda each: not each.applies):
        mark = "applies" if considered.applies else "does not apply"
        name = terminal.styled(printable(considered.rule), "bold" if considered.applies else "dim")
        reason = f": {printable(considered.reason)}" if considered.reason != MATCHES else ""
        terminal.write(f"\n{name} {mark}{reason}")
        for limit, state in zip(considered.limits, explained.states.get(considered.rule, ()), strict=False):
            principal = limit.principal if isinstance(limit.principal, str) else f"digest {limit.principal.hex()}"
            refused = "" if state.allowed else f", refused {wait_of(state)}"
            used = f"{state.remaining} of {state.limit} left"
            terminal.write(printable(f"  {limit.quota} ({considered.source}): {used}, {state.state}{refused}"))
            terminal.write(printable(f"  key {limit.space} of {principal}"), "dim")
