"""Plans whose limits live on several shards of a cluster: tried in order, and undone when a later one refuses.

No script reaches more than one slot, so such a plan is not atomic, but what it promises is nearly as good:

* It never admits too much. Each limit takes the cost atomically.
* A refused request takes nothing. What it took is undone: the limit is then as if it had been asked for everything else
  in the last seconds, in the same order, but not for this. (See the journal in `lua/plan.lua`.) That is so whatever
  other requests were admitted or refused in between, by the same limit.
* It may refuse too much for a moment: until the cost of a request that is refused later is undone, others find that
  much less.
* After more than 64 other admissions of the key, or admissions under 8 other limits, what surely still counts is
  returned, as for a charge that is refunded: what may have come back meanwhile stays taken until it expires, and so
  does what a bucket took under another limit than the one in force then.
* What cannot be undone stays taken until it expires. That is so if in the meantime the key was refunded or reset; if
  more than 2 seconds went by; if the server is gone or its clock fell back; if the caller was cancelled. In a queue it
  stays while there are others behind it, who were told to wait for it. Requests of one cost in one microsecond are not
  told apart: the last of them is undone, in a queue the first. A request that a copy with the same idempotency key
  goes by is undone with the last of them.
* If a shard does not answer, nothing is admitted and the error says so; what was taken before is undone. Of that shard
  itself it is not known whether it took the cost, so there it stays. A refusal by a shard that answers stands, whatever
  the others do.

Put the limit that refuses most often first, and the one that everybody shares last.

Shadow plans that share the slot of the call's own plan go with it, in one step; others are asked afterwards, and what
they take is not undone: they have no part in the answer.

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
from headgate.stores.redis.script import key_of, unanswered

_LOG = logging.getLogger("headgate.stores")


class Step(NamedTuple):
    """A call that a flow makes."""

    call: Call
    attempt: bool = False
    """Whether it takes what may be undone, or undoes that."""
    late: bool = False
    """Whether it is made even when the time for the whole is over: to undo something."""


Flow: TypeAlias = Generator[Step, Decision, Decision]


class Piece(NamedTuple):
    """The limits of a plan that are in one slot."""

    places: tuple[int, ...]
    """Where in the plan they are."""
    plan: Plan


def is_spread(call: Call) -> bool:
    """May the limits of a call be in several slots?"""
    plan = call.plan
    if call.shadow or not plan:
        return True
    first = call.caller or plan[0].principal
    return any(limit.principal != first for limit in plan)


def pieces_of(plan: Plan) -> list[Piece]:
    """Return the limits of `plan` by slot, in the order of their first ones."""
    places: dict[int, list[int]] = {}
    for place, limit in enumerate(plan):
        places.setdefault(_slot(limit), []).append(place)
    return [Piece(tuple(group), tuple([plan[place] for place in group])) for group in places.values()]


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
    """Make a call whose limits may be in several slots."""
    if not call.shadow:
        return (yield from _decided(call))
    home = {_slot(limit) for limit in call.plan}
    near = [len(home) == 1 and {_slot(limit) for limit in plan} == home for plan in call.shadow]
    together = tuple([plan for plan, is_near in zip(call.shadow, near, strict=True) if is_near])
    decision = (yield from _decided(msgspec.structs.replace(call, shadow=together))) if call.plan else combine(())
    answers, tried = iter(decision.shadow), []
    verb = call.verb if decision.allowed else Verb.PEEK
    for plan, is_near in zip(call.shadow, near, strict=True):
        tried.append(next(answers) if is_near else (yield from _tried_out(Call(verb, plan, call.cost))))
    return msgspec.structs.replace(decision, shadow=tuple(tried))


def _decided(call: Call) -> Flow:
    pieces = pieces_of(call.plan)
    if call.caller:
        return (yield from _once(call, pieces))
    if len(pieces) == 1:
        return (yield Step(call))
    if call.verb in {Verb.CHECK, Verb.CHECK_ONCE}:
        return (yield from _all_or_nothing(call, pieces))
    return (yield from _each(call, pieces))


def _tried_out(call: Call) -> Flow:
    try:
        return (yield from _decided(call))
    except StoreError:  # the call's own plan is decided, whatever becomes of this one
        return unanswered(call.plan)


def _once(call: Call, pieces: list[Piece]) -> Flow:
    """Decide a request that the caller may have made before.

    Its record is in the caller's slot, which is asked first whether there is one, and last to take the cost and to make
    it, in one step. In between, the other slots are asked as for any request; each has a record of its own part, for
    requests that come again before the caller's record is made.
    """
    home = slot_of(key_of("", call.caller))
    own = next((piece for piece in pieces if _slot(piece.plan[0]) == home), Piece((), ()))
    if own.plan == call.plan:
        return (yield Step(call))
    others = [piece for piece in pieces if piece is not own]
    seen = yield Step(msgspec.structs.replace(part_of(call, own.places), verb=Verb.PEEK))
    if not seen:
        return (yield from _all_or_nothing(call, [*others, own]))
    found = dict(zip(own.places, seen.limits, strict=False))
    for piece in others:
        part = msgspec.structs.replace(part_of(call, piece.places), verb=Verb.PEEK, caller="")
        try:
            decision = yield Step(part)
            if not decision:  # it has no record of this request, which took nothing from it
                decision = yield Step(msgspec.structs.replace(part, token=b""))
        except StoreError:
            decision = unanswered(piece.plan)
        found.update(zip(piece.places, decision.limits, strict=True))
    return _replayed(call, found)


def _replayed(call: Call, found: dict[int, Decision]) -> Decision:
    """Return an admission again; if it was by other limits than these, it names nothing to be given back."""
    parts = [found[place] for place in range(len(call.plan))]
    if not all(part.taken for part in parts):
        parts = [msgspec.structs.replace(part, allowed=True, retry_after_us=0, taken=0) for part in parts]
    return combine(parts)


def _all_or_nothing(call: Call, pieces: list[Piece]) -> Flow:
    """Take the cost from all limits if all admit it."""
    taken: list[tuple[Piece, int]] = []
    found: dict[int, Decision] = {}
    for number, piece in enumerate(pieces):
        try:
            caller = call.caller if number == len(pieces) - 1 else ""  # whose slot comes last
            part = msgspec.structs.replace(part_of(call, piece.places), caller=caller)
            decision = yield Step(part, attempt=True)
        except StoreError as error:
            done, _ = yield from _undone(call, taken)
            if not done:
                raise _unknown(error) from None
            raise
        found.update(
            zip(piece.places, decision.limits, strict=False)
        )  # the caller's slot may have no limit of the plan
        if not decision:
            _, looked = yield from _undone(call, taken)
            found.update(looked)
            for other in pieces[number + 1 :]:
                if other.plan:
                    found.update((yield from _looked_at(call, other)))
            break
        taken.append((piece, decision.taken_at_us))
    return combine([found[place] for place in range(len(call.plan))])


def _each(call: Call, pieces: list[Piece]) -> Flow:
    """Do what needs no all-or-nothing, in each slot: peek, refund, reset."""
    found: dict[int, Decision] = {}
    for piece in pieces:
        try:
            decision = yield Step(part_of(call, piece.places))
        except StoreUnavailable as error:
            if found and call.verb is Verb.REFUND:  # some of it was done, so asking again is not safe
                raise _unknown(error) from None
            raise
        found.update(zip(piece.places, decision.limits, strict=True))
    return combine([found[place] for place in range(len(call.plan))])


def _looked_at(call: Call, piece: Piece) -> Generator[Step, Decision, dict[int, Decision]]:
    """Return what limits have, beside another that refuses. If they do not answer, the refusal stands without them."""
    try:
        part = part_of(call, piece.places)
        decision = yield Step(msgspec.structs.replace(part, verb=Verb.PEEK, token=b"", caller=""))
    except StoreError:
        decision = unanswered(piece.plan)
    return dict(zip(piece.places, decision.limits, strict=True))


def _undone(call: Call, taken: list[tuple[Piece, int]]) -> Generator[Step, Decision, tuple[bool, dict[int, Decision]]]:
    """Undo what was taken, the last first; returns whether all shards have, and what their limits have then."""
    done, found = True, dict[int, Decision]()
    for piece, since in reversed(taken):
        charge = Charge((since,) * len(piece.plan))
        try:
            undo = msgspec.structs.replace(part_of(call, piece.places), verb=Verb.REFUND, charge=charge, caller="")
            decision = yield Step(undo, attempt=True, late=True)
        except StoreError as error:
            done, decision = False, unanswered(piece.plan)
            _LOG.warning("a request that was not admitted stays counted: %s", error)
        found.update(zip(piece.places, decision.limits, strict=True))
    return done, found


def _unknown(error: StoreError) -> OutcomeUnknown:
    """Return the same failure for a plan of which a part may have been done."""
    unknown = OutcomeUnknown(str(error))
    unknown.incident, unknown.server = error.incident, error.server
    return unknown
