"""Operations that take effect once: requests repeated with a token, and refunds of a charge, which has an identity."""

from __future__ import annotations

import copyreg
import os
import sys
from collections import OrderedDict
from hashlib import blake2b
from typing import Any

from msgspec.structs import astuple, replace

from headgate.core.decision import Decision
from headgate.core.key import ONCE_US
from headgate.core.plan import Call, Plan, Verb, refund_of
from headgate.locks import new_lock

_IDENTITY = 12
_FEWEST = 1024
_ENTRY = (object(),)
_UNREACHABLE = sys.getrefcount(_ENTRY[0])
"""The references to a decision that only its entry has, and the call that counts them."""
_lock = new_lock()


class _Identities:
    """The identities of decisions, by object: equal decisions are different charges.

    A decision cannot have a weak reference, as it is not tracked by the garbage collector. So the table keeps its
    decisions alive, and drops those that nothing else refers to whenever it has grown to twice the rest: no caller can
    repeat the refund of a dropped decision.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Decision, bytes]] = {}
        self._most = _FEWEST

    def __len__(self) -> int:
        return len(self._known)

    def of(self, decision: Decision) -> bytes:
        known = self._known.get(id(decision))
        if known is None:
            if len(self._known) >= self._most:
                self._drop_unreachable()
            known = self._known.setdefault(id(decision), (decision, os.urandom(_IDENTITY)))
        return known[1]

    def _drop_unreachable(self) -> None:
        for key, entry in [*self._known.items()]:  # in the list, entries stay until the end, and no id is used again
            if sys.getrefcount(entry[0]) <= _UNREACHABLE:
                self._known.pop(key, None)
        self._most = max(_FEWEST, 2 * len(self._known))


identities = _Identities()


def identity_of(decision: Decision) -> bytes:
    """Return the identity of a decision's charge: random bytes, the same at every call."""
    if decision.identity:
        return decision.identity
    with _lock:
        return identities.of(decision)


def _pickled(decision: Decision) -> tuple[type[Decision], tuple[Any, ...]]:
    """Return the pickled form of a decision: in another process, it is the same charge."""
    return Decision, (*astuple(decision)[:-1], identity_of(decision) if decision.taken else b"")


copyreg.pickle(Decision, _pickled)


def with_identity(decision: Decision, token: bytes) -> Decision:
    """Return a decision of CHECK_ONCE with the identity that all answers to this token and admission share."""
    if not (decision.taken and token):
        return decision
    identity = blake2b(b"%b%d" % (token, decision.taken_at_us), digest_size=_IDENTITY).digest()
    parts = tuple([replace(part, identity=identity) for part in decision.parts])
    return replace(decision, parts=parts, identity=identity)


def refund_for(plan: Plan, what: Decision | int) -> Call:
    """Return the call that refunds a number of units or, once, what a decision about `plan` took."""
    if isinstance(what, int):
        return Call(Verb.REFUND, plan, what)
    return refund_of(plan, what, refund_token(identity_of(what)))


def refund_token(identity: bytes, place: bytes = b"") -> bytes:
    """Return the token of a refund. It is longer than those of CHECK_ONCE, so the two never collide."""
    return b"refund" + identity.rjust(_IDENTITY) + place


class Admissions:
    """The admissions that CHECK_ONCE repeats, by token, each for `ONCE_US`; not thread-safe.

    Args:
        most: how many are kept. Beyond that the oldest is forgotten first, and its request counts again.
    """

    __slots__ = ("_kept", "_most")

    def __init__(self, most: int) -> None:
        # With the time when each ends, the oldest first. (A plain dict is slow to find its first key after deletions.)
        self._kept: OrderedDict[bytes, tuple[int, Decision, int]] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, token: bytes, now: int) -> tuple[Decision | None, int]:
        """Return the admission, if any, and the hash of its limits (see `headgate.core.plan.hash_of`)."""
        until, decision, limits = self._kept.get(token, (now, None, 0))
        return (decision, limits) if now < until else (None, 0)

    def keep(self, token: bytes, decision: Decision, now: int, limits: int = 0) -> None:
        self._kept.pop(token, None)  # one that has ended, which must not keep its place among the oldest
        if len(self._kept) >= self._most:
            self._kept.popitem(last=False)
        self._kept[token] = now + ONCE_US, decision, limits

    def drop_ended(self, now: int) -> bool:
        """Forget the oldest admission if it has ended; return whether it had.

        After the clock was set back, admissions that end earlier may be behind it; those wait for their turn.
        """
        if not self._kept or next(iter(self._kept.values()))[0] > now:
            return False
        self._kept.popitem(last=False)
        return True

    def clear(self) -> None:
        self._kept.clear()
