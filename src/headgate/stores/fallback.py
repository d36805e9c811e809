"""Who answers when the store does not: one small class for each mode.

`Local` gives every node its share of each limit. With N nodes, limit and capacity are divided by N and rounded up, so
all nodes together admit at most N * ceil(capacity / N), less than capacity + N, at once, and refill by at most
N * ceil(limit / N) per window. A key begins with this node's share of what the store said last that is left of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Protocol

import msgspec

from headgate.clock import Clock
from headgate.core import plan as plans
from headgate.core.decision import Decision
from headgate.core.errors import InvalidQuota, InvalidStore
from headgate.core.key import Principal
from headgate.core.mode import Mode
from headgate.core.numbers import short
from headgate.core.plan import Call, Limit, Plan, Verb
from headgate.core.pressure import Pressure
from headgate.core.quota import Quota
from headgate.locks import new_lock
from headgate.stores.circuits import Reason
from headgate.stores.memory import MemoryStore

MAX_SEEN = 50_000
"""So many keys, and as many older ones, the mode "local" knows of from the store; each takes about 250 bytes."""
_STRICTNESS = (Mode.ALLOW, Mode.LOCAL, Mode.DENY)


class Fallback(Protocol):
    """Answers in place of a store."""

    def mode_of(self, plan: Plan) -> Mode:
        """Return the mode in which a plan is answered: the strictest of those of its limits."""
        ...

    def answer(self, call: Call, wait_us: int) -> Decision:
        """Answer a call; `wait_us` is the time until the store is asked again."""
        ...

    def saw(self, plan: Plan, decision: Decision) -> None:
        """Note what the store itself has decided."""
        ...

    def reset(self, plan: Plan) -> None:
        """Forget what was decided here, and seen, of the limits of the plan."""
        ...

    def close(self) -> None: ...


def chosen(mode: object, nodes: int, max_keys: int, clock: Clock) -> Fallback:
    """Return who answers in a mode, or in the one that a function tells for each limit."""
    if mode == Mode.LOCAL:
        return Local(nodes, max_keys, clock)
    if mode == Mode.ALLOW:
        return Allow()
    if mode == Mode.DENY:
        return Deny()
    if callable(mode):
        return Mixed(mode, nodes, max_keys, clock)
    raise InvalidStore(f"mode must be one of {', '.join(Mode)}, not {short(mode)}")


class _Seen:
    """What the store said last of each key: when, and how much of it was used. Bounded: the older half is forgotten."""

    __slots__ = ("_most", "_old", "_young")

    def __init__(self, most: int) -> None:
        self._most = most
        self._young: dict[tuple[str, Principal], tuple[int, int]] = {}
        self._old: dict[tuple[str, Principal], tuple[int, int]] = {}

    def note(self, limit: Limit, now: int, used: int) -> None:
        young = self._young
        young[limit.space, limit.principal] = now, used
        if len(young) >= self._most:
            self._old, self._young = young, {}

    def take(self, limit: Limit) -> tuple[int, int] | None:
        """Return what was noted last of a limit, and forget it."""
        key = limit.space, limit.principal
        before = self._old.pop(key, None)
        return self._young.pop(key, before)

    def clear(self) -> None:
        self._young.clear()
        self._old.clear()


class Local:
    """Decides in this process, with this node's share of each limit.

    A key begins with this node's share of what is left of it, as far as the store has told; one that the store said
    nothing of here begins with the whole share. What it admitted stays used when the store is back and away again, so
    an outage with interruptions admits no more than one without. A cost above a share's capacity is refused until the
    store is back: no wait here would admit it.
    """

    def __init__(self, nodes: int, max_keys: int, clock: Clock) -> None:
        self._nodes = nodes
        self._store = MemoryStore(max_keys=max_keys, clock=clock)
        self._now = clock.now
        self._seen = _Seen(min(max_keys, MAX_SEEN))
        self._lock = new_lock()

    def mode_of(self, plan: Plan) -> Mode:  # noqa: ARG002  one for all
        return Mode.LOCAL

    def answer(self, call: Call, wait_us: int) -> Decision:
        share = self._share(call.plan)
        self._catch_up(call.plan, share)
        smallest = min([limit.quota.capacity for limit in share])
        if call.cost <= smallest or call.verb is Verb.REFUND:
            return self._store.run(msgspec.structs.replace(call, plan=share))
        parts = self._store.run(Call(Verb.PEEK, share, smallest)).limits
        return plans.combine([_refused(part, wait_us) if part.limit < call.cost else part for part in parts])

    def saw(self, plan: Plan, decision: Decision) -> None:
        now = self._now()
        for limit, part in zip(plan, decision.limits, strict=True):
            if part.degraded != Reason.STORE_UNAVAILABLE:  # the mark of a part of a refusal that is missing
                self._seen.note(limit, now, part.limit - part.remaining)

    def reset(self, plan: Plan) -> None:
        for limit in plan:
            self._seen.take(limit)
        self._store.run(Call(Verb.RESET, self._share(plan)))

    def close(self) -> None:
        self._seen.clear()
        self._store.close()

    def _share(self, plan: Plan) -> Plan:
        """Return this node's share in each limit."""
        if self._nodes == 1:
            return plan
        return tuple([Limit(space, principal, share_of(quota, self._nodes)) for space, principal, quota in plan])

    def _catch_up(self, plan: Plan, share: Plan) -> None:
        """Take from each share what is not left of it by what the store said since the last time."""
        with self._lock:
            for limit, own in zip(plan, share, strict=True):
                seen = self._seen.take(limit)
                if seen is not None:
                    left = -(-_left(limit.quota, *seen, self._now()) // self._nodes)
                    surplus = self._store.run(Call(Verb.PEEK, (own,))).remaining - left
                    if surplus > 0:
                        self._store.run(Call(Verb.CHECK, (own,), surplus))


class Allow:
    """Lets everything pass, as if nothing had been used."""

    def mode_of(self, plan: Plan) -> Mode:  # noqa: ARG002  one for all
        return Mode.ALLOW

    def answer(self, call: Call, wait_us: int) -> Decision:  # noqa: ARG002  the contract has it
        return plans.decide(Call(Verb.PEEK, call.plan, 0), [None] * len(call.plan), 0)[1]

    def saw(self, plan: Plan, decision: Decision) -> None:
        """Nothing to note."""

    def reset(self, plan: Plan) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Nothing to release."""


class Deny:
    """Lets nothing pass before the store is asked again."""

    def mode_of(self, plan: Plan) -> Mode:  # noqa: ARG002  one for all
        return Mode.DENY

    def answer(self, call: Call, wait_us: int) -> Decision:
        nothing = [Decision(False, quota.capacity, 0, 0, 0, Pressure.THROTTLED, quota) for _, _, quota in call.plan]
        return plans.combine([_refused(decision, wait_us) for decision in nothing])

    def saw(self, plan: Plan, decision: Decision) -> None:
        """Nothing to note."""

    def reset(self, plan: Plan) -> None:
        """Nothing to forget."""

    def close(self) -> None:
        """Nothing to release."""


class Mixed:
    """Answers for each limit of a plan in that limit's own mode. Still all or nothing: a plan passes if all of them do.

    Args:
        mode: returns the mode of a limit.
        nodes: see `Local`; also its `max_keys` and `clock`.
    """

    def __init__(self, mode: Callable[[Limit], Mode], nodes: int, max_keys: int, clock: Clock) -> None:
        self._mode = mode
        self._fallbacks: dict[Mode, Fallback] = {
            Mode.LOCAL: Local(nodes, max_keys, clock),
            Mode.ALLOW: Allow(),
            Mode.DENY: Deny(),
        }

    def mode_of(self, plan: Plan) -> Mode:
        return max([self._mode(limit) for limit in plan], key=_STRICTNESS.index)

    def answer(self, call: Call, wait_us: int) -> Decision:
        """Ask for each mode about the limits that have it. Of those that pass here only `Local` takes anything."""
        modes = [self._mode(limit) for limit in call.plan]
        if Mode.DENY in modes and call.verb is not Verb.REFUND:  # then nobody takes anything
            call = Call(Verb.PEEK, call.plan, call.cost)
        found: dict[int, Decision] = {}
        for mode in dict.fromkeys(modes):
            places = [place for place, each in enumerate(modes) if each is mode]
            part = _part(call, places)
            found.update(zip(places, self._fallbacks[mode].answer(part, wait_us).limits, strict=True))
        return plans.combine([found[place] for place in range(len(modes))])

    def saw(self, plan: Plan, decision: Decision) -> None:
        self._fallbacks[Mode.LOCAL].saw(plan, decision)  # also of limits that have another mode now

    def reset(self, plan: Plan) -> None:
        for fallback in self._fallbacks.values():
            fallback.reset(plan)

    def close(self) -> None:
        for fallback in self._fallbacks.values():
            fallback.close()


def _part(call: Call, places: list[int]) -> Call:
    """Return a call about those limits alone."""
    charge = call.charge
    if charge is not None:
        charge = charge._replace(taken_at=tuple([charge.taken_at[place] for place in places]))
    return msgspec.structs.replace(call, plan=tuple([call.plan[place] for place in places]), charge=charge)


@lru_cache(maxsize=4096)
def share_of(quota: Quota, nodes: int) -> Quota:
    """Return the share of one of `nodes` in `quota`: limit and capacity divided, rounded up, at least 1."""
    if nodes == 1:
        return quota
    limit, capacity = -(-quota.limit // nodes), -(-quota.capacity // nodes)
    try:
        return replace(quota, limit=limit, burst=capacity - limit)
    except InvalidQuota:  # it would take a little longer to come back than can be counted
        return replace(quota, limit=limit, burst=quota.capacity // nodes - limit)


def _left(quota: Quota, seen_at: int, used: int, now: int) -> int:
    """Return what is left of a quota of which so much was used when it was seen: as if it had all been used then."""
    state, _ = quota.step(None, min(used, quota.capacity), seen_at)
    _, decision = quota.step(state, 0, max(now, seen_at))
    return decision.remaining


def _refused(decision: Decision, wait_us: int) -> Decision:
    reset_us = max(decision.reset_after_us, wait_us)
    return msgspec.structs.replace(
        decision, allowed=False, retry_after_us=wait_us, reset_after_us=reset_us, state=Pressure.THROTTLED, delay_us=0
    )
