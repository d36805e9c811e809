"""Plans whose limits live on several shards of a cluster: tried in order, and taken back when a later one refuses.

No script reaches more than one slot, so such a plan is not atomic, but what it promises is nearly as good:

* It never admits too much. Each limit takes the cost atomically; what a refusal takes back from the limits before it is
  never more than what the try took and what is still counted of it (see the `UNDO` verb of the script). The exception:
  if somebody resets or refunds such a limit in the very moment between, the same units may be given back twice.
* It may refuse too much for a moment: while the cost of a request that is refused later stays taken, others find that
  much less. Where it cannot be taken back exactly (another use of a sliding log or of a queue came in between, a window
  ended, a copy of the request goes by the same idempotency key, the server is gone, the caller was cancelled), it stays
  until it expires.
* If a shard does not answer, nothing is admitted and the error says so; what was taken before is taken back. A refusal
  by a shard that answers stands, whatever the others do.

Put the limit that refuses most often first, and the one that everybody shares last.

Nothing here waits: a *flow* is a generator that yields questions, and is sent their answers, or thrown a StoreError.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeAlias

from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from headgate.core.plan import Call, Limit, Plan, Verb, combine
from headgate.core.pressure import Pressure
from headgate.stores.fallback import marked
from headgate.stores.redis import scripts
from headgate.stores.redis.answers import UNKNOWN, Answer, decided, nothing_used
from headgate.stores.redis.discovery import SlotMap, slot_of
from headgate.stores.redis.scripts import Question, key_of, question

_LOG = logging.getLogger("headgate.stores")


class Step(NamedTuple):
    """A question of a flow."""

    question: Question
    late: bool = False
    """Whether it is asked even when the time for the whole is over: to take something back."""


Flow: TypeAlias = Generator[Step, Answer, Decision]


class Piece(NamedTuple):
    """The limits of a plan that are in one slot."""

    places: tuple[int, ...]
    """Where in the plan they are."""
    plan: Plan


def is_spread(plan: Plan) -> bool:
    """May the limits of `plan` be in several slots?"""
    first = plan[0].principal
    return any(limit.principal != first for limit in plan)


def pieces_of(plan: Plan) -> list[Piece]:
    """Return the limits of `plan` by slot, in the order of their first ones."""
    places: dict[int, list[int]] = {}
    for place, (space, principal, _) in enumerate(plan):
        places.setdefault(slot_of(key_of(space, principal)), []).append(place)
    return [Piece(tuple(group), tuple([plan[place] for place in group])) for group in places.values()]


def servers_of(slots: SlotMap, plan: Plan) -> tuple[str, ...]:
    """Return the name of the server that each limit of `plan` lives on; empty where it is not known."""
    if not is_spread(plan):
        return (_server_of(slots, plan[0]),) * len(plan)
    return tuple([_server_of(slots, limit) for limit in plan])


def _server_of(slots: SlotMap, limit: Limit) -> str:
    return str(slots.owner(slot_of(key_of(limit.space, limit.principal))) or "")


def flow_of(call: Call) -> Flow:
    """Return the flow that makes a call of a store."""
    if call.verb is Verb.CHECK:
        return check(call.plan, call.cost)
    if call.verb is Verb.CHECK_ONCE:
        return check(call.plan, call.cost, call.token)
    if call.verb is Verb.PEEK:
        return all_of(scripts.PEEK, call.plan, call.cost)
    if call.verb is Verb.RESET:
        return _reset(call.plan)
    if call.charge is None:
        return all_of(scripts.REFUND, call.plan, call.cost)
    return all_of(scripts.UNDO, call.plan, call.cost, call.charge.taken_at)


def check(plan: Plan, cost: int, token: bytes | None = None) -> Flow:
    """Take `cost` from all limits if all admit it."""
    pieces = pieces_of(plan)
    verb = scripts.CHECK if token is None else scripts.ONCE
    taken: list[tuple[Piece, int]] = []
    found: dict[int, Decision] = {}
    for piece in pieces:
        try:
            answer = yield Step(question(verb, piece.plan, cost, token=token))
        except StoreError as error:
            if not (yield from _taken_back(taken, cost, token)):
                raise _unknown(error) from None
            raise
        decision = decided(piece.plan, answer, cost)
        found.update(zip(piece.places, decision.limits, strict=True))
        if not decision:
            yield from _taken_back(taken, cost, token)
            for other in pieces:
                if other is not piece:
                    found.update((yield from _looked_at(other, cost)))
            break
        taken.append((piece, answer[0]))
    return _combined(found)


def all_of(verb: bytes, plan: Plan, cost: int, taken_at: Sequence[int] = ()) -> Flow:
    """Do what needs no all-or-nothing, in each slot: peek, refund, and undo what was taken at those times."""
    found: dict[int, Decision] = {}
    for piece in pieces_of(plan):
        try:
            since = min([taken_at[place] for place in piece.places]) if taken_at else 0
            answer = yield Step(question(verb, piece.plan, cost, since=since))
        except StoreUnavailable as error:
            if found and verb in {scripts.REFUND, scripts.UNDO}:  # some of it was done, so asking again is not safe
                raise _unknown(error) from None
            raise
        found.update(zip(piece.places, decided(piece.plan, answer).limits, strict=True))
    return _combined(found)


def _reset(plan: Plan) -> Flow:
    now = 0
    for piece in pieces_of(plan):
        now, *_ = yield Step(question(scripts.RESET, piece.plan, 0))
    return nothing_used(plan, now)


def _looked_at(piece: Piece, cost: int) -> Generator[Step, Answer, dict[int, Decision]]:
    """Return what limits have, beside another that refuses. If they do not answer, the refusal stands without them."""
    try:
        answer = yield Step(question(scripts.PEEK, piece.plan, cost))
    except StoreError:
        unknown = [Decision(False, quota.capacity, 0, 0, 0, Pressure.THROTTLED, quota) for _, _, quota in piece.plan]
        return {place: marked(each, UNKNOWN) for place, each in zip(piece.places, unknown, strict=True)}
    return dict(zip(piece.places, decided(piece.plan, answer).limits, strict=True))


def _taken_back(taken: list[tuple[Piece, int]], cost: int, token: bytes | None) -> Generator[Step, Answer, bool]:
    """Undo what was taken, the last first; says whether all shards have. What cannot be undone stays taken."""
    done = True
    for piece, since in reversed(taken):
        try:
            yield Step(question(scripts.UNDO, piece.plan, cost, token=token, since=since), late=True)
        except StoreError as error:
            done = False
            _LOG.warning("a request that was not admitted stays counted: %s", error)
    return done


def _unknown(error: StoreError) -> OutcomeUnknown:
    """Return the same failure for a plan of which a part may have been done."""
    unknown = OutcomeUnknown(str(error))
    unknown.incident, unknown.server = error.incident, error.server
    return unknown


def _combined(found: dict[int, Decision]) -> Decision:
    return combine([found[place] for place in sorted(found)])
