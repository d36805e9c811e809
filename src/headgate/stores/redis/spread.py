"""Plans whose limits live on several shards of a cluster: tried in order, and undone when a later one refuses.

No script reaches more than one slot, so such a plan is not atomic, but what it promises is nearly as good:

* It never admits too much. Each limit takes the cost atomically.
* A refused request takes nothing. What it took is undone: the limit is then as if it had had all other requests of the
  last seconds, in the same order, but not this one. (See the journal in `lua/plan.lua`.) That is so whatever
  other requests were admitted or refused in between, by the same limit.
* It may refuse too much for a moment: until the cost of a request that is refused later is undone, others have that
  much less.
* After more than 64 other admissions of the key, or admissions under 8 other limits, what surely still counts is
  returned, as for a charge that is refunded: what may have come back meanwhile stays taken until it expires, and so
  does what a bucket took under another limit than the one in force then.
* What cannot be undone stays taken until it expires. That is so if in the meantime the key was refunded or reset; if
  more than 2 seconds went by; if the server is gone or its clock fell back; if the caller was cancelled. In a queue it
  stays while there are others behind it, whose turn depends on it. Requests of one cost in one microsecond are not
  distinguished: the last of them is undone, in a queue the first. If copies of a request with one idempotency key are
  under way, it is undone with the last of them.
* If a shard does not answer, nothing is admitted and the error says so; what was taken before is undone. Whether
  that shard took the cost is unknown, so it stays there. A refusal by a shard that answers stands, whatever
  the others do.

Put the limit that refuses most often first, and the one that all callers share last.

Shadow plans that share the slot of the call's own plan go with it, in one step; others follow, and what they
take is not undone: they have no part in the answer.

Nothing here waits: a *flow* (see `headgate.flows`) yields calls, each about limits in one slot.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import NamedTuple, TypeAlias

import msgspec

from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from headgate.core.plan import Call, Charge, Limit, Plan, Verb, combine, part_of
from headgate.stores.redis.discovery import SlotMap, slot_of
from headgate.stores.redis.script import key_of, missing_answer

_LOG = logging.getLogger("headgate.stores")


class Step(NamedTuple):
    """A call that a flow makes."""

    call: Call
    attempt: bool = False
    """Whether it takes what may be undone, or undoes that."""
    late: bool = False
    """Whether it is made even when the time for the whole is over: to undo something."""


Flow: TypeAlias = Generator[Step, Decision, Decision]
Places: TypeAlias = list[int]
"""Which limits of a plan are in one slot."""


def is_spread(call: Call) -> bool:
    """Return whether the limits of a call may be in several slots."""
    plan = call.plan
    if call.shadow or not plan:
        return True
    first = call.caller or plan[0].principal
    return any(limit.principal != first for limit in plan)


def pieces_of(plan: Plan) -> list[Places]:
    """Return the limits of `plan` by slot, in the order of their first ones."""
    places: dict[int, Places] = {}
    for place, limit in enumerate(plan):
        places.setdefault(_slot(limit), []).append(place)
    return list(places.values())


def servers_of(slots: SlotMap, plan: Plan) -> tuple[str, ...]:
    """Return the name of the server that each limit of `plan` lives on; empty where it is not known."""
    found: dict[object, str] = {}
    for limit in plan:
        if limit.principal not in found:
            found[limit.principal] = str(slots.owner(_slot(limit)) or "")
    return tuple([found[limit.principal] for limit in plan])


def _slot(limit: Limit) -> int:
    return slot_of(key_of("", limit.principal))


def decide(call: Call) -> Flow:
    if not call.shadow:
        return (yield from _decide_plan(call))
    home = {_slot(limit) for limit in call.plan}
    near = [len(home) == 1 and {_slot(limit) for limit in plan} == home for plan in call.shadow]
    together = tuple([plan for plan, is_near in zip(call.shadow, near, strict=True) if is_near])
    decision = (yield from _decide_plan(msgspec.structs.replace(call, shadow=together))) if call.plan else combine(())
    answers, tried = iter(decision.shadow), []
    verb = call.verb if decision.allowed else Verb.PEEK
    for plan, is_near in zip(call.shadow, near, strict=True):
        tried.append(next(answers) if is_near else (yield from _decide_shadow(Call(verb, plan, call.cost))))
    return msgspec.structs.replace(decision, shadow=tuple(tried))


def _decide_plan(call: Call) -> Flow:
    pieces = pieces_of(call.plan)
    if call.caller:
        return (yield from _check_once(call, pieces))
    if len(pieces) == 1:
        return (yield Step(call))
    if call.verb in {Verb.CHECK, Verb.CHECK_ONCE}:
        return (yield from _check_all(call, pieces))
    return (yield from _run_each(call, pieces))


def _decide_shadow(call: Call) -> Flow:
    try:
        return (yield from _decide_plan(call))
    except StoreError:  # the call's own plan is decided all the same
        return missing_answer(call.plan)


def _check_once(call: Call, pieces: list[Places]) -> Flow:
    """Decide a request that the caller may have made before.

    Its record is in the caller's slot, which is read first, and last takes the cost and makes the record, in one
    step. In between, the other slots are called as for any request; each has a record of its own part, for
    requests that come again before the caller's record is made.
    """
    home = slot_of(key_of("", call.caller))
    own = next((places for places in pieces if _slot(call.plan[places[0]]) == home), [])
    if len(own) == len(call.plan):
        return (yield Step(call))
    others = [places for places in pieces if places is not own]
    seen = yield Step(msgspec.structs.replace(part_of(call, own), verb=Verb.PEEK))
    if not seen:
        return (yield from _check_all(call, [*others, own]))
    found = dict(zip(own, seen.limits, strict=False))
    for places in others:
        part = msgspec.structs.replace(part_of(call, places), verb=Verb.PEEK, caller="")
        try:
            decision = yield Step(part)
            if not decision:  # it has no record of this request, which took nothing from it
                decision = yield Step(msgspec.structs.replace(part, token=b""))
        except StoreError:
            decision = missing_answer(part.plan)
        found.update(zip(places, decision.limits, strict=True))
    return _replayed(call, found)


def _replayed(call: Call, found: dict[int, Decision]) -> Decision:
    """Return an admission again; if it was by other limits than these, it has nothing to refund."""
    parts = [found[place] for place in range(len(call.plan))]
    if not all(part.taken for part in parts):
        parts = [msgspec.structs.replace(part, allowed=True, retry_after_us=0, taken=0) for part in parts]
    return combine(parts)


def _check_all(call: Call, pieces: list[Places]) -> Flow:
    """Take the cost from all limits if all admit it."""
    taken: list[tuple[Places, int]] = []
    found: dict[int, Decision] = {}
    for number, places in enumerate(pieces):
        try:
            caller = call.caller if number == len(pieces) - 1 else ""  # whose slot comes last
            part = msgspec.structs.replace(part_of(call, places), caller=caller)
            decision = yield Step(part, attempt=True)
        except StoreError as error:
            done, _ = yield from _undo(call, taken)
            if not done:
                raise _unknown(error) from None
            raise
        found.update(zip(places, decision.limits, strict=False))  # the caller's slot may have no limit of the plan
        if not decision:
            _, looked = yield from _undo(call, taken)
            found.update(looked)
            for other in pieces[number + 1 :]:
                if other:
                    found.update((yield from _peek(call, other)))
            break
        taken.append((places, decision.taken_at_us))
    return combine([found[place] for place in range(len(call.plan))])


def _run_each(call: Call, pieces: list[Places]) -> Flow:
    """Do what needs no all-or-nothing, in each slot: peek, refund, reset."""
    found: dict[int, Decision] = {}
    for places in pieces:
        try:
            decision = yield Step(part_of(call, places))
        except StoreUnavailable as error:
            if found and call.verb is Verb.REFUND:  # some of it was done, so a repetition is not safe
                raise _unknown(error) from None
            raise
        found.update(zip(places, decision.limits, strict=True))
    return combine([found[place] for place in range(len(call.plan))])


def _peek(call: Call, places: Places) -> Generator[Step, Decision, dict[int, Decision]]:
    """Return the remainders of limits when another one refuses, which stands even if they do not answer."""
    part = part_of(call, places)
    try:
        decision = yield Step(msgspec.structs.replace(part, verb=Verb.PEEK, token=b"", caller=""))
    except StoreError:
        decision = missing_answer(part.plan)
    return dict(zip(places, decision.limits, strict=True))


def _undo(call: Call, taken: list[tuple[Places, int]]) -> Generator[Step, Decision, tuple[bool, dict[int, Decision]]]:
    """Undo what was taken, the last first; returns whether all shards have, and what their limits have then."""
    done, found = True, dict[int, Decision]()
    for places, since in reversed(taken):
        part, charge = part_of(call, places), Charge((since,) * len(places))
        try:
            undo = msgspec.structs.replace(part, verb=Verb.REFUND, charge=charge, caller="")
            decision = yield Step(undo, attempt=True, late=True)
        except StoreError as error:
            done, decision = False, missing_answer(part.plan)
            _LOG.warning("the cost of a refused request stays taken: %s", error)
        found.update(zip(places, decision.limits, strict=True))
    return done, found


def _unknown(error: StoreError) -> OutcomeUnknown:
    """Return the same failure for a plan of which a part may have been done."""
    unknown = OutcomeUnknown(str(error))
    unknown.incident, unknown.server = error.incident, error.server
    return unknown
