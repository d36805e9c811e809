"""Decisions of this process in place of the store, for each limit in the limit's own mode.

With "local" every node has its share of each limit. With N nodes, limit and capacity are divided by N and rounded up,
so all nodes together admit at most N * ceil(capacity / N), less than capacity + N, at once, and refill by at most
N * ceil(limit / N) per window. A key starts with this node's share of what was left by the store's last answer; without
one, with the whole share. What was admitted here stays used when the store returns and fails again, so an interrupted
outage admits no more than one without interruptions. A cost above a share's capacity is refused until the store
returns: no wait here would admit it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import msgspec

from headgate.clock import Clock
from headgate.core.decision import Decision, exhausted, marked, refused
from headgate.core.errors import InvalidQuota, InvalidStore
from headgate.core.key import Principal
from headgate.core.mode import Mode
from headgate.core.numbers import short
from headgate.core.plan import Call, Charge, Limit, Plan, Verb, call_of, combine, costs_of, decide, part_of
from headgate.core.quota import Quota
from headgate.locks import new_lock
from headgate.stores.circuits import DECIDED_HERE, Reason
from headgate.stores.memory import MemoryStore

MAX_SEEN = 50_000
"""Keys of which the mode "local" keeps the store's last answer, and as many older ones; each takes about 250 bytes."""
_STRICTNESS = (Mode.ALLOW, Mode.LOCAL, Mode.DENY)
_MISSING = Reason.STORE_UNAVAILABLE.value
"""The mark of a part of a decision that the store did not give."""


class Fallback:
    """Answers in place of a store; thread-safe.

    Args:
        mode: that of all limits, or a function of each.
        nodes: how many processes share the limits, including this one.
        max_keys: the most states of single keys that are kept here.
        clock: the clock of the limits.
    """

    def __init__(self, mode: str | Callable[[Limit], Mode], nodes: int, max_keys: int, clock: Clock) -> None:
        if isinstance(mode, str) and mode in set(Mode):
            only = Mode(mode)
            self._mode: Callable[[Limit], Mode] = lambda _: only
            self.learns = only is Mode.LOCAL
            """Whether it uses the answers of the store."""
        elif callable(mode):
            self._mode, self.learns = mode, True
        else:
            raise InvalidStore(f"mode must be one of {', '.join(Mode)}, not {short(mode)}")
        self.nodes = nodes
        self._now = clock.now
        self._store = MemoryStore(max_keys=max_keys, clock=clock)
        self._most_seen = min(max_keys, MAX_SEEN)
        # The store's last answer for each key: when, and how much was used. The older half is evicted first.
        self._young: dict[tuple[str, Principal], tuple[int, int]] = {}
        self._old: dict[tuple[str, Principal], tuple[int, int]] = {}
        self._lock = new_lock()

    def mode_of(self, plan: Plan) -> Mode:
        """Return the mode of a plan: the strictest of its limits' modes."""
        return max([self._mode(limit) for limit in plan], key=_STRICTNESS.index)

    def answer(self, call: Call, wait_us: int) -> Decision:
        """Answer a call, all or nothing; `wait_us` is the time until the store is called again."""
        modes = [self._mode(limit) for limit in call.plan]
        if Mode.DENY in modes and call.verb is not Verb.REFUND:  # then nothing is taken
            call = Call(Verb.PEEK, call.plan, call.cost, costs=call.costs)
        found: dict[int, Decision] = {}
        for mode in dict.fromkeys(modes):
            places = [place for place, each in enumerate(modes) if each is mode]
            part = part_of(call, places)
            if mode is Mode.LOCAL:
                answers = self._local(part, wait_us)
            elif mode is Mode.ALLOW:  # as if nothing had been used
                answers = decide(Call(Verb.PEEK, part.plan, 0), [None] * len(places), 0)[1].limits
            else:
                answers = tuple([exhausted(limit.quota, wait_us) for limit in part.plan])
            found.update(zip(places, answers, strict=True))
        return combine([found[place] for place in range(len(modes))])

    def answer_for(self, call: Call, reason: Reason, wait_us: int) -> Decision:
        """Answer a call, with the reason. What the store took, or may have refunded, stays taken."""
        if call.verb is Verb.REFUND and not _is_refunded_here(call.charge, reason):
            call = Call(Verb.PEEK, call.plan, 1)
        return marked(self.answer(call, wait_us), reason)

    def record(self, call: Call, decision: Decision) -> int:
        """Record a decision of the store, also for limits that have another mode now; returns the time."""
        now, young = self._now(), self._young
        self._note(call.plan, decision, now)
        if call.shadow:
            for place, plan in enumerate(call.shadow):
                self._note(plan, decision.shadow[place], now)
        if len(young) >= self._most_seen:
            self._old, self._young = young, {}
        return now

    def _note(self, plan: Plan, decision: Decision, now: int) -> None:
        young, parts = self._young, decision.parts or (decision,)
        for place, limit in enumerate(plan):  # zip takes twice the time
            part = parts[place]
            if part.degraded != _MISSING:
                young[limit.space, limit.principal] = now, part.limit - part.remaining

    def reset(self, plan: Plan) -> None:
        """Forget the state and the recorded answers of a plan's limits."""
        for limit in plan:
            self._take_seen(limit)
        self._store.run(Call(Verb.RESET, plan))

    def close(self) -> None:
        self._young.clear()
        self._old.clear()
        self._store.close()

    def _local(self, call: Call, wait_us: int) -> tuple[Decision, ...]:
        nodes = self.nodes
        share = _share(call.plan, nodes)
        self._catch_up(call.plan, share, nodes)
        costs = costs_of(call)
        possible = [min(cost, limit.quota.capacity) for cost, limit in zip(costs, share, strict=True)]
        if call.verb is Verb.REFUND or possible == [*costs]:
            return self._store.run(msgspec.structs.replace(call, plan=share)).limits
        parts = self._store.run(call_of(Verb.PEEK, share, possible)).limits
        return tuple(
            [_refuse(part, wait_us) if part.limit < cost else part for part, cost in zip(parts, costs, strict=True)]
        )

    def _catch_up(self, plan: Plan, share: Plan, nodes: int) -> None:
        """Take from each share the usage in the store's last answer."""
        with self._lock:
            for limit, own in zip(plan, share, strict=True):
                seen = self._take_seen(limit)
                if seen is not None:
                    left = -(-_left(limit.quota, *seen, self._now()) // nodes)
                    surplus = self._store.run(Call(Verb.PEEK, (own,))).remaining - left
                    if surplus > 0:
                        self._store.run(Call(Verb.CHECK, (own,), surplus))

    def _take_seen(self, limit: Limit) -> tuple[int, int] | None:
        """Return and forget the last answer for a limit."""
        key = limit.space, limit.principal
        before = self._old.pop(key, None)
        return self._young.pop(key, before)


def _share(plan: Plan, nodes: int) -> Plan:
    if nodes == 1:
        return plan
    return tuple([Limit(each.space, each.principal, share_of(each.quota, nodes)) for each in plan])


@lru_cache(maxsize=4096)
def share_of(quota: Quota, nodes: int) -> Quota:
    """Return the share of one of `nodes` in `quota`: limit and capacity divided, rounded up, at least 1."""
    if nodes == 1:
        return quota
    limit, capacity = -(-quota.limit // nodes), -(-quota.capacity // nodes)
    try:
        return replace(quota, limit=limit, burst=capacity - limit)
    except InvalidQuota:  # its refill would take longer than can be counted
        return replace(quota, limit=limit, burst=quota.capacity // nodes - limit)


def _left(quota: Quota, seen_at: int, used: int, now: int) -> int:
    """Return what is left of a quota of which `used` was used at `seen_at`, as if it had all been used then."""
    state, _ = quota.step(None, min(used, quota.capacity), seen_at)
    _, decision = quota.step(state, 0, max(now, seen_at))
    return decision.remaining


def _is_refunded_here(charge: Charge | None, reason: Reason) -> bool:
    """Whether a refund is for this node: never for what the store took, or may have refunded already."""
    if charge is None:
        return reason is not Reason.OUTCOME_UNKNOWN
    return charge.degraded in DECIDED_HERE


def _refuse(decision: Decision, wait_us: int) -> Decision:
    return msgspec.structs.replace(refused(decision, wait_us), reset_after_us=max(decision.reset_after_us, wait_us))
