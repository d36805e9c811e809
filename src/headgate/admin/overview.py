"""The present state of the fleet, as the API and the console show it: sums, histories, and each node."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from headgate.admin.attention import attention, is_behind, is_gone
from headgate.admin.live import FRESH_US, Fleet, NodeFigures
from headgate.admin.usage import UsagePoint
from headgate.config.times import moment_text
from headgate.observe.hot_keys import HotKey, HotList, merged_lists
from headgate.observe.rates import MOST_KEYS, MOST_RULES, STEP_SECONDS, STEPS, Figures, Point, Rates, RuleRates

_SHOWN_NODES = 200


def overview(fleet: Fleet) -> dict[str, Any]:
    fresh = fleet.fresh
    rules = _rules(fresh)
    refusing = sorted((each for each in rules if each["refused"]), key=lambda each: -each["refused"])
    shadows = sorted((each for each in rules if each["shadow_refused"]), key=lambda each: -each["shadow_refused"])
    hot = merged_lists([HotList(each.hot, each.denied, each.would_refuse) for each in fresh], MOST_KEYS)
    return {
        "at": moment_text(fleet.now),
        "scope": "node" if fleet.reason else "fleet",
        "reason": fleet.reason,
        "rates": _rates(fresh),
        "history": {"step_seconds": STEP_SECONDS, "points": _history(fleet)},
        "hour": {"step_seconds": 60, "points": [usage_point(each) for each in fleet.hour]},
        "busiest_rules": rules[:MOST_RULES],
        "refusing_rules": refusing[:MOST_RULES],
        "shadow_rules": shadows[:MOST_RULES],
        "hot_keys": _keys(hot.hot),
        "refused_keys": _keys(hot.denied),
        "shadow_refused_keys": _keys(hot.would_refuse),
        "attention": attention(fleet),
        "revision": fleet.revision,
        "nodes": {
            "total": len(fleet.nodes),
            "reporting": len(fresh),
            "items": [_node(each, fleet) for each in fleet.nodes[:_SHOWN_NODES]],
        },
    }


def _rates(fresh: list[Figures]) -> dict[str, float]:
    sums = {name: _sum(getattr(each.rates, name) for each in fresh) for name in Rates.__struct_fields__}
    return {**sums, "refused_share": share(sums["refused"], sums["allowed"])}


def share(refused: float, allowed: float) -> float:
    """Return the share of refusals, from 0 to 1."""
    return round(refused / (refused + allowed), 4) if refused else 0.0


def _sum(numbers: Iterable[float]) -> float:
    return round(sum(numbers), 2)


def _rules(fresh: list[Figures]) -> list[dict[str, Any]]:
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    names = RuleRates.__struct_fields__[1:]
    for each in fresh:
        for rule in each.rules:
            for name in names:
                sums[rule.rule_id][name] += getattr(rule, name)
    found = [
        {
            "rule_id": rule,
            **{name: round(rates[name], 2) for name in names},
            "refused_share": share(rates["refused"], rates["allowed"]),
        }
        for rule, rates in sums.items()
    ]
    outcomes = ("allowed", "refused", "shadow_allowed", "shadow_refused")
    return sorted(found, key=lambda rule: -sum(rule[name] for name in outcomes))


def _history(fleet: Fleet) -> list[dict[str, Any]]:
    """Return ten minutes of the fleet, up to the last step that all reporting nodes have written."""
    last = min((each.history[-1].at for each in fleet.fresh if each.history), default=0)
    first = last - (STEPS - 1) * STEP_SECONDS
    names = Point.__struct_fields__[1:]
    sums: dict[int, list[float]] = {}
    for each in (*[node.figures for node in fleet.nodes if node.figures is not None], *fleet.past):
        for at, *rates in map(msgspec.structs.astuple, each.history):
            if first <= at <= last:
                known = sums.setdefault(at, [0.0] * len(names))
                for place, rate in enumerate(rates):
                    known[place] += rate
    return [
        {"at": moment_text(at * 1_000_000), **{name: round(rate, 2) for name, rate in zip(names, rates, strict=True)}}
        for at, rates in sorted(sums.items())
    ]


def usage_point(point: UsagePoint) -> dict[str, Any]:
    return {**point._asdict(), "at": moment_text(point.at)}


def usage_total(points: Iterable[UsagePoint]) -> dict[str, Any]:
    """Return the sums of a series, and the shares that rules refused, or would have refused in shadow."""
    sums = {name: sum(getattr(each, name) for each in points) for name in UsagePoint._fields[1:]}
    shadow = share(sums["shadow_denied"], sums["shadow_allowed"])
    return {**sums, "refused_share": share(sums["denied"], sums["allowed"]), "shadow_refused_share": shadow}


def _keys(keys: tuple[HotKey, ...]) -> list[dict[str, Any]]:
    return [{"rule_id": each.rule, "key": each.key, "per_second": each.per_second} for each in keys]


def _node(node: NodeFigures, fleet: Fleet) -> dict[str, Any]:
    status, known = node.status, node.figures or Figures()
    is_fresh = known.at > fleet.now - FRESH_US
    store = known if is_fresh else Figures()
    state = "gone" if is_gone(node, fleet) else "behind" if is_behind(node, fleet) else "ok"
    return {
        "id": status.id,
        "host": status.host,
        "process": status.process,
        "is_this": status.id == fleet.own,
        "state": state,
        "started_at": moment_text(status.started_at),
        "seen_at": moment_text(status.seen_at),
        "revision": status.revision,
        "error": status.error,
        "version": known.version,
        "workers": known.workers,
        "enforcing": known.enforcing,
        "store": {
            "name": store.store,
            "state": _store_state(store),
            "circuits": store.circuits,
            "since": moment_text(store.troubled_since) if store.troubled_since else None,
        },
        "rates": msgspec.structs.asdict(known.rates) if is_fresh else None,
    }


def _store_state(figures: Figures) -> str:
    if not figures.store:
        return "unknown"
    return ("down" if "open" in figures.circuits.values() else "recovering") if figures.circuits else "up"
