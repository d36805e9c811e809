"""Problems that need an operator's attention: what is wrong, why it matters, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from headgate.admin.live import Fleet, NodeFigures
    from headgate.observe.rates import Figures

GONE_AFTER_US = 15_000_000
"""Time without a report after which a node is gone; it reports every five seconds."""
_LATE_US = 10_000_000
"""Time after which a node that does not run a change is behind."""
MOST_OF_A_KIND = 5
CRITICAL, WARNING, INFO = "critical", "warning", "info"
_ORDER = (CRITICAL, WARNING, INFO)
NO_DATABASE = "rules come from a file, so nodes do not know of each other: these figures are of one node"


class Attention(msgspec.Struct, frozen=True):
    """A problem that needs attention."""

    severity: str
    kind: str
    what: str
    why: str
    do: str
    link: str = "/nodes"
    """The page of the console that shows it."""


def is_gone(node: NodeFigures, fleet: Fleet) -> bool:
    """Whether a node has stopped reporting, but did not shut down."""
    return node.status.seen_at < fleet.now - GONE_AFTER_US


def is_behind(node: NodeFigures, fleet: Fleet) -> bool:
    """Whether a node does not run the newest rules, although it had the time to load them."""
    status = node.status
    return bool(status.error) or (status.revision < fleet.revision and fleet.changed_at < fleet.now - _LATE_US)


def attention(fleet: Fleet) -> list[dict[str, Any]]:
    """Return problems as JSON, the most severe first."""
    found = sorted([*_of_fleet(fleet), *fleet.findings], key=lambda each: _ORDER.index(each.severity))
    return [msgspec.structs.asdict(each) for each in found]


def _of_fleet(fleet: Fleet) -> Iterator[Attention]:
    if fleet.reason and fleet.reason != NO_DATABASE:
        yield Attention(
            CRITICAL,
            "database",
            "The database is unavailable",
            f"{fleet.reason[0].upper()}{fleet.reason[1:]}. Decisions continue by the last good rules; nothing can be "
            "changed, and other nodes are not shown.",
            "Check that the database runs and that this node can reach it. Everything resumes automatically.",
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
            "That is normal during an upgrade; afterwards it means that a node was left out.",
            "Upgrade the nodes that run the older version.",
        )
    if counting := sum(not each.enforcing for each in fresh):
        yield Attention(
            WARNING,
            "enforcement",
            f"Limits refuse nothing on {_nodes(counting)}: enforcement is off",
            "Every rule only counts what it would refuse.",
            'To enforce limits again, run "headgate enforcement on" on each of these nodes.',
        )
    for what in sorted({name for each in fresh for name in each.broken}):
        yield Attention(
            WARNING,
            "configuration",
            f"The last change of {what.replace('_', ' ')} is not in force",
            "It is invalid, so nodes keep what was in force before.",
            "Correct it: the log of the service, and headgate serve --check, say what is wrong and where.",
        )
    if shed := sum(each.rates.shed for each in fresh):
        yield Attention(
            CRITICAL,
            "overload",
            f"Nodes turn away {shed:.3g} calls per second to protect themselves",
            "They are overloaded, or one client sends more than its share.",
            "Add nodes or workers, or limit the client that sends most.",
        )


def _of_node(node: NodeFigures, fleet: Fleet) -> Iterator[Attention]:
    status = node.status
    name = f"{status.host} (process {status.process})"
    if is_gone(node, fleet):
        yield Attention(
            WARNING,
            "node_gone",
            f"Node {name} is gone: it last reported {_ago(fleet.now - status.seen_at)} ago",
            "It was killed, its machine is down, or it cannot reach the database. Its requests are not in the figures.",
            "Look at its log and start it again. A node that stays gone is dropped an hour after its last report.",
        )
    elif is_behind(node, fleet):
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
            f"{degraded:.3g} decisions per second are made without it, as on_store_failure of each rule says.",
            "Check that it runs and that nodes can reach it: they return to it automatically.",
        )


def _of_stores(fresh: list[Figures]) -> Iterator[Attention]:
    """Return whether nodes use different stores: only nodes that share a store share their limits."""
    stores = sorted({each.store for each in fresh if each.store})
    if "memory" in stores and len(fresh) > 1:
        alone = sum(each.store == "memory" for each in fresh)
        yield Attention(
            WARNING,
            "store_not_shared",
            f"{_nodes(alone)} of {len(fresh)} count in memory, each on its own",
            "A client that reaches several nodes gets its limit from each of them.",
            "Start all nodes with the same --store, such as redis://HOST:6379.",
        )
    elif len(stores) > 1:
        yield Attention(
            INFO,
            "store_not_shared",
            f"Nodes use different stores: {', '.join(stores[:MOST_OF_A_KIND])}",
            "Limits hold for those nodes together that share a store.",
            "If this is one fleet, start all nodes with the same --store.",
        )


def clock(at_us: int) -> str:
    return datetime.fromtimestamp(at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _nodes(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"


def _ago(elapsed_us: int) -> str:
    seconds = elapsed_us // 1_000_000
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} minutes"
