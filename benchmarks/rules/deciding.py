"""Measures whole decisions by rules, in memory, beside the same limits without rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.contenders import FLOOR
from benchmarks.contenders.headgate_memory import quotas
from benchmarks.decisions import WrongPath
from benchmarks.rules.cases import for_endpoint, rules_of_endpoints
from benchmarks.rules.figures import Decided
from benchmarks.scenarios import ALLOWING, Kind, Path
from benchmarks.timing import Pace, Round, alternate, time_calls
from headgate import Limiter
from headgate.engine.sync import Engine
from headgate.policy.request import Request

CALLS = ALLOWING[0].units
"""A round takes a fresh user from untouched to used up."""
APART = 65_535
"""The number of a user that no round has: who has used up everything, or on the allow path the one to verify with."""


def tasks() -> list[tuple[int, Path]]:
    """Return what is measured: how many rules match, and the answer."""
    return [(matching, path) for path in Path for matching in (1, 2)]


def measure(rules: int, pace: Pace) -> Iterator[Decided]:
    """Yield what a decision takes with so many rules, of which one or two match."""
    policy = rules_of_endpoints(rules)
    for matching, path in tasks():
        limits = ALLOWING[:matching]
        with Engine(policy) as engine, Limiter(quotas(Kind.GCRA, limits)) as limiter:
            request = partial(_request, rules // 2, matching)
            calls: dict[str, tuple[Callable[[Any], object], Callable[[int], object]]] = {
                "floor": (FLOOR.open(Kind.GCRA, limits).call, _key),
                "limiter": (limiter.check, _key),
                "plan": (partial(policy.plan, now=0), request),
                "engine": (engine.check, request),
            }
            if path is Path.DENY:
                for _ in range(CALLS):
                    limiter.check(_key(APART))
                    engine.check(request(APART))
            rounds = {name: _round(call, ask, path) for name, (call, ask) in calls.items()}
            figures = alternate(rounds, pace)
            for _ in range(CALLS):
                answers = limiter.check(_key(APART)).allowed, engine.check(request(APART)).allowed
                if answers != (path is Path.ALLOW,) * 2:
                    raise WrongPath(f"{matching} matching rules: Limiter and Engine answered {answers}, not {path}")
        yield Decided(matching, path, **figures)


def _round(call: Callable[[Any], object], ask: Callable[[int], object], path: Path) -> Round:
    return lambda number: time_calls(call, [ask(number if path is Path.ALLOW else APART)] * CALLS)


def _key(number: int) -> str:
    return f"user:{number}"


def _request(rule: int, matching: int, number: int) -> Request:
    principal = {"user": _key(number)}
    if matching > 1:
        principal["ip"] = f"203.0.{number >> 8}.{number & 255}"
    return for_endpoint(rule, principal)
