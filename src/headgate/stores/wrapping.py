"""What is written once for stores and those who call them: checks of a family, refunds, and the options of wrappers."""

from __future__ import annotations

import inspect
import os
from hashlib import blake2b

from msgspec.structs import force_setattr

from headgate.core.decision import Decision
from headgate.core.errors import InvalidStore
from headgate.core.numbers import short
from headgate.core.plan import Call, Family, Plan, Verb, refund_of
from headgate.locks import new_lock
from headgate.stores.base import AsyncCheck, AsyncStore, Check, Store

_IDENTITY = 12
_NAMING = new_lock()


def identity_of(decision: Decision) -> bytes:
    """Return what names the charge of a decision: bytes that nobody can guess, the same whenever they are asked for."""
    if not decision.identity:
        with _NAMING:  # or two threads that refund one decision would each name it
            if not decision.identity:
                force_setattr(decision, "identity", os.urandom(_IDENTITY))
    return decision.identity


def answered_once(decision: Decision, token: bytes) -> Decision:
    """Return an answer to CHECK_ONCE: all that go by the same token, and admission, name the same charge."""
    if decision.taken and token:
        named = blake2b(b"%b%d" % (token, decision.taken_at_us), digest_size=_IDENTITY).digest()
        for each in (decision, *decision.limits):
            force_setattr(each, "identity", named)
    return decision


def refund_for(plan: Plan, what: Decision | int) -> Call:
    """Return the call that refunds a number of units, or, once, what a decision about `plan` took."""
    if isinstance(what, int):
        return Call(Verb.REFUND, plan, what)
    return refund_of(plan, what, refund_token(identity_of(what)))


def refund_token(identity: bytes, place: bytes = b"") -> bytes:
    """Return the token of a refund. It is longer than those of CHECK_ONCE, so that none is taken for the other."""
    return b"refund" + identity.rjust(_IDENTITY) + place


def call_for(family: Family, key: str, cost: int) -> Call:
    """Return the call that checks a key of `family`; a cost of 0 peeks. Raises InvalidKey, InvalidCost."""
    plan = family.plan(key)
    if type(cost) is int and cost == 0:
        return Call(Verb.PEEK, plan, 1)
    return Call(Verb.CHECK, plan, family.checked_cost(cost))


def plain_check(store: Store, family: Family) -> Check:
    """Return the function that checks keys of `family`, for a store that has no quicker one."""
    return lambda key, cost=1: store.run(call_for(family, key, cost))


def plain_async_check(store: AsyncStore, family: Family) -> AsyncCheck:
    """Do the same for callers in an event loop."""
    return lambda key, cost=1: store.run(call_for(family, key, cost))


def check_colour(store: object, *, asynchronous: bool, outer: type) -> None:
    """Refuse what is not a store object, and one that the store `outer` cannot call."""
    run = getattr(store, "run", None)
    if isinstance(store, str | type) or run is None:
        raise InvalidStore(f"a store object is needed, not {short(store)}: open it with open_store or open_async_store")
    if inspect.iscoroutinefunction(run) != asynchronous:
        name = outer.__name__.removeprefix("Async")
        raise InvalidStore(f"{type(store).__name__} is for the other of {name} and Async{name}")


def microseconds(name: str, seconds: object, *, or_none: bool = False) -> int:
    """Return an option that is given in seconds, up to an hour; 0 only where that stands for never."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        if 0 < seconds <= 3600:
            return max(1, round(seconds * 1_000_000))
        if seconds == 0 and or_none:
            return 0
    accepted = "from 0 to 3600" if or_none else "above 0 and up to 3600"
    raise InvalidStore(f"{name} must be a number of seconds {accepted}, not {short(seconds)}")
