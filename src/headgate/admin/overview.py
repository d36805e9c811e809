"""The current state of the fleet, for the API and the console: sums, histories, nodes, and their problems."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from headgate.admin.follower import NodeStatus
from headgate.admin.usage import UsagePoint
from headgate.config.times import moment_text
from headgate.observe.hot_keys import HotKey, HotList, merged_lists
from headgate.observe.rates import (
    LOOK_US,
    MOST_KEYS,
    MOST_RULES,
    STEP_SECONDS,
    STEPS,
    Figures,
    Point,
    Rates,
    RuleRates,
)

FRESH_US = 4 * LOOK_US
"""The greatest age of a row that counts as present."""
GONE_AFTER_US = 15_000_000
"""Time without a report after which a node is gone; it reports every five seconds."""
_LATE_US = 10_000_000
"""Time after which a node that does not run a change is behind."""
MOST_OF_A_KIND = 5
CRITICAL, WARNING, INFO = "critical", "warning", "info"
_ORDER = (CRITICAL, WARNING, INFO)
NO_DATABASE = "rules come from a file, so nodes do not know of each other: these figures are of one node"
_SHOWN_NODES = 200


class Attention(msgspec.Struct, frozen=True):
    """A problem that needs attention."""

    severity: str
    kind: str
    what: str
    why: str
    do: str
    link: str = "/nodes"
    """The page of the console that shows it."""


class NodeFigures(NamedTuple):
    """A node with its last figures, which may be old; None if it has written none."""

    status: NodeStatus
    figures: Figures | None


class Fleet(NamedTuple):
    """All nodes at one moment."""

    now: int
    own: str
    """The id of this node."""
    nodes: list[NodeFigures]
    revision: int
    changed_at: int
    reason: str = ""
    """Why it has only this node; empty if it has all."""
    findings: tuple[Attention, ...] = ()
    """Problems that the database shows."""
    hour: tuple[UsagePoint, ...] = ()
    """Requests by outcome in each minute of the last hour."""
    past: tuple[Figures, ...] = ()
    """Figures of nodes that have ended, which are part of the fleet's history."""

    @property
    def fresh(self) -> list[Figures]:
        """The figures of nodes that have written lately."""
        found = [node.figures for node in self.nodes if node.figures is not None]
        return [each for each in found if each.at > self.now - FRESH_US]

    def is_gone(self, node: NodeFigures) -> bool:
        """Whether a node has stopped reporting, but did not shut down."""
        return node.status.seen_at < self.now - GONE_AFTER_US

    def is_behind(self, node: NodeFigures) -> bool:
        """Whether a node does not run the newest rules, although it had the time to load them."""
        status = node.status
        return bool(status.error) or (status.revision < self.revision and self.changed_at < self.now - _LATE_US)


def overview(fleet: Fleet) -> dict[str, Any]:
    fresh = fleet.fresh
    problems = sorted([*_of_fleet(fleet), *fleet.findings], key=lambda each: _ORDER.index(each.severity))
    rules = _rules(fresh)
    names = Rates.__struct_fields__
    rates = {name: round(sum(getattr(each.rates, name) for each in fresh), 2) for name in names}
    refusing = sorted((each for each in rules if each["refused"]), key=lambda each: -each["refused"])
    shadows = sorted((each for each in rules if each["shadow_refused"]), key=lambda each: -each["shadow_refused"])
    hot = merged_lists([HotList(each.hot, each.denied, each.would_refuse) for each in fresh], MOST_KEYS)
    return {
        "at": moment_text(fleet.now),
        "scope": "node" if fleet.reason else "fleet",
        "reason": fleet.reason,
        "rates": {**rates, "refused_share": share(rates["refused"], rates["allowed"])},
        "history": {"step_seconds": STEP_SECONDS, "points": _history(fleet)},
        "hour": {"step_seconds": 60, "points": [usage_point(each) for each in fleet.hour]},
        "busiest_rules": rules[:MOST_RULES],
        "refusing_rules": refusing[:MOST_RULES],
        "shadow_rules": shadows[:MOST_RULES],
        "hot_keys": _keys(hot.hot),
        "refused_keys": _keys(hot.denied),
        "shadow_refused_keys": _keys(hot.would_refuse),
        "attention": [msgspec.structs.asdict(each) for each in problems],
        "revision": fleet.revision,
        "nodes": {
            "total": len(fleet.nodes),
            "reporting": len(fresh),
            "items": [_node(each, fleet) for each in fleet.nodes[:_SHOWN_NODES]],
        },
    }


def share(refused: float, allowed: float) -> float:
    """Return the share of refusals, from 0 to 1."""
    return round(refused / (refused + allowed), 4) if refused else 0.0


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
    state = "gone" if fleet.is_gone(node) else "behind" if fleet.is_behind(node) else "ok"
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


# Problems


def _of_fleet(fleet: Fleet) -> Iterator[Attention]:
    if fleet.reason and fleet.reason != NO_DATABASE:
        yield Attention(
            CRITICAL,
            "database",
            "The database is unavailable",
            f"{fleet.reason[0].upper()}{fleet.reason[1:]}. Decisions continue with the last valid rules. Nothing can "
            "be changed, and other nodes are not shown.",
            "Check that the database runs and that this node can reach it. All functions resume automatically.",
        )
    for node in fleet.nodes:
        yield from _of_node(node, fleet)
    yield from _of_store(fleet)
    fresh = fleet.fresh
    yield from _of_stores(fresh)
    versions = sorted({each.version for each in fresh if each.version})
    if len(versions) > 1:
        yield Attention(
            INFO,
            "versions",
            f"Nodes run different versions: {'; '.join(versions)}",
            "This is normal during an upgrade; afterwards, it means that a node was not upgraded.",
            "Upgrade the nodes that run the older version.",
        )
    if counting := sum(not each.enforcing for each in fresh):
        yield Attention(
            WARNING,
            "enforcement",
            f"Limits refuse nothing on {_nodes(counting)}: enforcement is off",
            "Rules only count the requests that they would refuse.",
            'To enforce limits again, run "headgate enforcement on" on each of these nodes.',
        )
    for what in sorted({name for each in fresh for name in each.broken}):
        yield Attention(
            WARNING,
            "configuration",
            f"The last change of {what.replace('_', ' ')} is not in force",
            "It is invalid, so the previous version stays in force.",
            "Correct it: the log of the service and headgate serve --check report the error and its position.",
        )
    if shed := sum(each.rates.shed for each in fresh):
        yield Attention(
            CRITICAL,
            "overload",
            f"Nodes reject {shed:.3g} calls per second to protect themselves",
            "They are overloaded, or a client sends more than its share.",
            "Add nodes or workers, or limit the client that sends most.",
        )


def _of_node(node: NodeFigures, fleet: Fleet) -> Iterator[Attention]:
    status = node.status
    name = f"{status.host} (process {status.process})"
    if fleet.is_gone(node):
        yield Attention(
            WARNING,
            "node_gone",
            f"Node {name} is gone: it last reported {_ago(fleet.now - status.seen_at)} ago",
            "It was killed, its machine is down, or it cannot reach the database. Its requests are not in the figures.",
            "Look at its log and start it again. A node that stays gone is dropped an hour after its last report.",
        )
    elif fleet.is_behind(node):
        why = f"It reports: {status.error}" if status.error else "It has not loaded the newest rules yet."
        yield Attention(
            WARNING,
            "node_behind",
            f"Node {name} decides by revision {status.revision}, not {fleet.revision}",
            why,
            "Look at its log. If rules are refused, undo the revision or upgrade the node.",
        )


def _of_store(fleet: Fleet) -> Iterator[Attention]:
    """Return unavailable servers of stores, each once for all nodes."""
    fresh = fleet.fresh
    troubled = [each for each in fresh if each.circuits]
    for store, shard in sorted({(each.store, name) for each in troubled for name in each.circuits})[:MOST_OF_A_KIND]:
        concerned = [each for each in troubled if each.store == store and shard in each.circuits]
        degraded = sum(each.rates.degraded for each in concerned)
        name = f"The store {store}, server {shard}," if shard else f"The store {store}"
        lasting = _ago(fleet.now - min(each.troubled_since for each in concerned))
        yield Attention(
            CRITICAL,
            "store",
            f"{name} has been down on {len(concerned)} of {_nodes(len(fresh))} for {lasting}",
            f"{degraded:.3g} decisions per second are made without it, by the on_store_failure of each rule.",
            "Check that it runs and that nodes can reach it. Nodes use it again automatically.",
        )


def _of_stores(fresh: list[Figures]) -> Iterator[Attention]:
    """Return whether nodes use different stores: only nodes that share a store share their limits."""
    stores = sorted({each.store for each in fresh if each.store})
    if "memory" in stores and len(fresh) > 1:
        alone = sum(each.store == "memory" for each in fresh)
        yield Attention(
            WARNING,
            "store_not_shared",
            f"{_nodes(alone)} of {len(fresh)} count in memory, separately",
            "A client of several nodes gets its full limit on each of them.",
            "Start all nodes with the same --store, such as redis://HOST:6379.",
        )
    elif len(stores) > 1:
        yield Attention(
            INFO,
            "store_not_shared",
            f"Nodes use different stores: {', '.join(stores[:MOST_OF_A_KIND])}",
            "Only nodes with the same store share their limits.",
            "If this is one fleet, start all nodes with the same --store.",
        )


def clock(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"


def _ago(elapsed_us: int) -> str:
    seconds = elapsed_us // 1_000_000
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} minutes"
