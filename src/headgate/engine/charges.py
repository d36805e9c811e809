"""The charge of a ruling as text, with which a client of the service requests a refund.

The text has an identity, by which the store refunds a charge only once, the cost, and for each charged limit a digest
of its key, the time of the charge, and until when it counts. It is used with the same request, which determines the
limits.

It is sealed, so that clients cannot forge one. The secret is in the store, where all nodes find it, in limits that no
rule can name: of a large number, the first process takes a random part of more than half, so no other process can take
from it, and all processes read the remainder. What a process decided alone, while the store was unavailable, only that
process refunds.
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
from headgate.stores.refunds import identity_of, refund_token

_VERSION = 2
_HEAD = Struct(">BII12s")  # the version, the process, the cost, the identity
_TAKEN = Struct(">8sQQ")  # the limit, when, until when; the first bit of "when": by this process, not by the store
_SEAL = 12
_HERE = 1 << 63
_LATEST = 1 << 53
_LONGEST = 4096
_RANDOM = os.urandom(32)
_HALF = 1 << 49
_SECRET = Quota(2 * _HALF, MAX_WINDOW_US, algorithm=Algorithm.FIXED_WINDOW)
_SECRETS = tuple([Limit(f"!secret{number}|{_SECRET.shape}", "headgate", _SECRET) for number in range(3)])


class InvalidCharge(UsageError):
    """The text is not a charge."""


class Seal:
    """The secret of the processes that share a store, once it is known."""

    __slots__ = ("_secret", "failed_at")

    def __init__(self) -> None:
        self._secret = b""
        self.failed_at = 0
        """The last request for it that found nothing new."""

    def __bool__(self) -> bool:
        return bool(self._secret)

    @staticmethod
    def calls() -> list[Call]:
        """Return the calls that read the secret from the store, or create it."""
        return [Call(Verb.CHECK, (limit,), _HALF + 1 + randbelow(_HALF)) for limit in _SECRETS]

    def learn(self, answers: Sequence[Decision], now: int) -> None:
        """Read the secret from the decisions about these calls, if the store made them."""
        self.failed_at = now
        if not any(answer.degraded in set(Reason) for answer in answers):
            secret = b"".join([answer.remaining.to_bytes(8, "big") for answer in answers])
            if secret != self._secret:
                self._secret, self.failed_at = secret, 0

    def sign(self, data: bytes) -> str:
        """Return data as text with a seal; that of this process alone while the shared secret is unknown."""
        text = urlsafe_b64encode(data + self._of(data, self._secret or _secret_here()))
        return text.rstrip(b"=").decode("ascii")

    def verify(self, text: str) -> bytes:
        """Return the data of a sealed text; empty if the seal is invalid."""
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
"""The seal of this process alone."""


class NamedCharge(NamedTuple):
    """The content of such a text."""

    process: int
    """The process that decided locally; 0: none."""
    cost: int
    identity: bytes
    taken: dict[bytes, tuple[int, int]]
    """The time of the charge and until when it counts, by limit, as in the text."""

    def refunds(self, plan: Plan) -> list[Call]:
        """Return the calls that refund what the store, or this process, took from the limits of a plan."""
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
    """Return the charge of a ruling as text; empty if it took nothing."""
    if isinstance(ruling.selection, Receipt):
        return ruling.selection.charge
    named = named_charge(ruling)
    if not named.taken:
        return ""
    head = _HEAD.pack(_VERSION, named.process, named.cost, named.identity)
    return seal.sign(head + b"".join([_TAKEN.pack(place, *times) for place, times in named.taken.items()]))


def named_charge(ruling: Ruling) -> NamedCharge:
    """Return the charge of a ruling that an engine made."""
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
    data = seal.verify(text)
    if len(data) > _HEAD.size and not (len(data) - _HEAD.size) % _TAKEN.size:
        version, process, cost, identity = _HEAD.unpack_from(data)
        taken = {place: (when, until) for place, when, until in _TAKEN.iter_unpack(data[_HEAD.size :])}
        if version == _VERSION and 0 < cost <= MAX_COST and all(when & ~_HERE < _LATEST for when, _ in taken.values()):
            return NamedCharge(process, cost, identity, taken)
    raise InvalidCharge(f"a charge must be the text from the response to a check, not {short(text)}")


def taken_by(ruling: Ruling) -> Iterator[tuple[Limit, Decision]]:
    """Yield the limits that a ruling took from, with their decisions; of a joint one, including what others took."""
    selection, decision = ruling.selection, ruling.decision
    if isinstance(selection, Selection):
        if decision is not None and decision.taken:
            yield from zip(selection.enforced.plan, decision.limits, strict=False)
        tried = [limit for limits in selection.shadow for limit in limits.plan]
        yield from [pair for pair in zip(tried, ruling.shadow_decisions, strict=True) if pair[1].taken]


def _place(limit: Limit) -> bytes:
    return blake2b(f"{limit.space}\0{limit.principal!r}".encode(), digest_size=8).digest()


def _time(part: Decision) -> int:
    return part.taken_at_us | (_HERE if part.degraded in DECIDED_HERE else 0)


def _process() -> int:
    """Return a number that identifies this process and its local decisions; a forked child has another."""
    return int.from_bytes(_secret_here()[:4], "big")


def _secret_here() -> bytes:
    """Return a secret of this process."""
    return blake2b(_RANDOM, salt=os.getpid().to_bytes(8, "big")).digest()
