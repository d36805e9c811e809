"""What a ruling took, as text: by this a client of the service names its charge to have it given back.

The text has an identity, by which the store gives a charge back once, the cost and, for each limit that was charged,
a digest of where that counts, the time of the charge, and until when it counts. It is of use only with the request that
it belongs to, from which the limits are found again.

It is sealed, so that nobody can make one up. The secret lives in the store, where all nodes find it: in limits that no
rule can name. Each is of a large number, of which the first process that asks takes a random part, more than half, so
that nobody takes from it again; and what is left of it is what everybody learns. What a process decided alone, while
the store was unavailable, only that process gives back.
"""

from __future__ import annotations

import binascii
import hmac
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from secrets import randbelow
from struct import Struct
from typing import NamedTuple

from headgate.core.algorithms import Algorithm
from headgate.core.decision import Decision
from headgate.core.errors import UsageError
from headgate.core.numbers import short
from headgate.core.plan import MAX_COST, Call, Charge, Limit, Plan, Verb, counts_until
from headgate.core.quota import MAX_WINDOW_US, Quota
from headgate.engine.ruling import Receipt, Ruling
from headgate.policy.selection import Selection
from headgate.stores.circuits import DECIDED_HERE, Reason
from headgate.stores.wrapping import identity_of, refund_token

_VERSION = 2
_HEAD = Struct(">BII12s")  # the version, the process, the cost, the identity
_TAKEN = Struct(
    ">8sQQ"
)  # where, when, until when; with the first bit of when, by this process rather than by the store
_SEAL = 12
_HERE = 1 << 63
_LATEST = 1 << 53
_LONGEST = 4096
_RANDOM = os.urandom(32)
_HALF = 1 << 49
_SECRET = Quota(2 * _HALF, MAX_WINDOW_US, algorithm=Algorithm.FIXED_WINDOW)
_SECRETS = tuple([Limit(f"!secret{number}|{_SECRET.shape}", "headgate", _SECRET) for number in range(3)])


class InvalidCharge(UsageError):
    """The text is not one that names a charge."""


class Seal:
    """The secret of the processes that share a store, once it is known."""

    __slots__ = ("_secret", "asked_at")

    def __init__(self) -> None:
        self._secret = b""
        self.asked_at = 0
        """When the store was asked for it last, and had nothing new."""

    def __bool__(self) -> bool:
        return bool(self._secret)

    @staticmethod
    def calls() -> list[Call]:
        """Return the calls of the store that find the secret out, or make it."""
        return [Call(Verb.CHECK, (limit,), _HALF + 1 + randbelow(_HALF)) for limit in _SECRETS]

    def learn(self, answers: Sequence[Decision], now: int) -> None:
        """Take the secret from the answers to these calls, if it was the store that gave them."""
        self.asked_at = now
        if not any(answer.degraded in set(Reason) for answer in answers):
            secret = b"".join([answer.remaining.to_bytes(8, "big") for answer in answers])
            if secret != self._secret:
                self._secret, self.asked_at = secret, 0

    def sealed(self, data: bytes) -> str:
        """Return data as text with a seal; that of this process alone, as long as the common secret is not known."""
        text = urlsafe_b64encode(data + self._of(data, self._secret or _secret_here()))
        return text.rstrip(b"=").decode("ascii")

    def opened(self, text: str) -> bytes:
        """Return what was sealed as `text`; nothing if that was not."""
        if len(text) > _LONGEST or not text.isascii():
            return b""
        try:
            sealed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        except binascii.Error:
            return b""
        data, seal = sealed[:-_SEAL], sealed[-_SEAL:]
        if urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii") != text:
            return b""
        known = [self._of(data, secret) for secret in (self._secret, _secret_here()) if secret]
        return data if any(hmac.compare_digest(seal, each) for each in known) else b""

    @staticmethod
    def _of(data: bytes, secret: bytes) -> bytes:
        return blake2b(data, key=secret, digest_size=_SEAL).digest()


ALONE = Seal()
"""Of this process alone."""


class NamedCharge(NamedTuple):
    """What is in such a text."""

    process: int
    """Whose local decisions it names, if any."""
    cost: int
    identity: bytes
    taken: dict[bytes, tuple[int, int]]
    """When, and until when it counts, by where, as they are in the text."""

    def refunds(self, plan: Plan) -> list[Call]:
        """Return the calls that give back what the store took from limits of a plan, and what this process did."""
        calls = []
        for limit in plan:
            place = _place(limit)
            if place in self.taken:
                when, until = self.taken[place]
                here = bool(when & _HERE)
                if not here or self.process == _process():
                    charge = Charge((when & ~_HERE,), Reason.CIRCUIT_OPEN if here else "", until)
                    calls.append(Call(Verb.REFUND, (limit,), self.cost, refund_token(self.identity, place), charge))
        return calls


def charge_of(ruling: Ruling, seal: Seal = ALONE) -> str:
    """Return the text that names what a ruling took; empty if it took nothing."""
    if isinstance(ruling.selection, Receipt):
        return ruling.selection.charge
    named = named_charge(ruling)
    if not named.taken:
        return ""
    head = _HEAD.pack(_VERSION, named.process, named.cost, named.identity)
    return seal.sealed(head + b"".join([_TAKEN.pack(place, *times) for place, times in named.taken.items()]))


def named_charge(ruling: Ruling) -> NamedCharge:
    """Return what such a text has, of a ruling that an engine made."""
    found = {} if ruling.is_joint else dict(taken_by(ruling))
    if not found:
        return NamedCharge(0, 0, b"", {})
    charged = ruling.decision
    if charged is None or not charged.taken:
        charged = next(iter(found.values()))
    cost = max(part.taken for part in found.values())
    times = {_place(limit): (_time(part), counts_until(part)) for limit, part in found.items()}
    process = _process() if any(when & _HERE for when, _ in times.values()) else 0
    return NamedCharge(process, cost, identity_of(charged), times)


def parse(text: str, seal: Seal = ALONE) -> NamedCharge:
    """Read such a text. Raises InvalidCharge."""
    data = seal.opened(text)
    if len(data) > _HEAD.size and not (len(data) - _HEAD.size) % _TAKEN.size:
        version, process, cost, identity = _HEAD.unpack_from(data)
        taken = {place: (when, until) for place, when, until in _TAKEN.iter_unpack(data[_HEAD.size :])}
        if version == _VERSION and 0 < cost <= MAX_COST and all(when & ~_HERE < _LATEST for when, _ in taken.values()):
            return NamedCharge(process, cost, identity, taken)
    raise InvalidCharge(f"a charge is the text that came with the answer to a check, not {short(text)}")


def taken_by(ruling: Ruling) -> Iterator[tuple[Limit, Decision]]:
    """Yield the limits that a ruling took from, and what each said; of a joint one, with what others took from it."""
    selection, decision = ruling.selection, ruling.decision
    if isinstance(selection, Selection):
        told = [decision] if decision is not None and decision.taken else []
        yield from zip(selection.enforced.plan, [part for each in told for part in each.limits], strict=False)
        tried = [limit for limits in selection.shadow for limit in limits.plan]
        yield from [pair for pair in zip(tried, ruling.shadow_decisions, strict=True) if pair[1].taken]


def _place(limit: Limit) -> bytes:
    return blake2b(f"{limit.space}\0{limit.principal!r}".encode(), digest_size=8).digest()


def _time(part: Decision) -> int:
    return part.taken_at_us | (_HERE if part.degraded in DECIDED_HERE else 0)


def _process() -> int:
    """Return what tells this process, and its local decisions, from others; a forked child is another."""
    return int.from_bytes(_secret_here()[:4], "big")


def _secret_here() -> bytes:
    """Return a secret of this process."""
    return blake2b(_RANDOM, salt=os.getpid().to_bytes(8, "big")).digest()
