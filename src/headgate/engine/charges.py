"""What a ruling took, as text: by this a client of the service names its charge to have it given back.

The text has the cost and, for each limit that was charged, a checksum of where that counts and the time of the charge.
It is of use only with the request that it belongs to, from which the limits are found again. It is compact, 27
characters for one limit, and not a secret, nor signed: whoever may ask for refunds at all can make one up.
"""

from __future__ import annotations

import binascii
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from headgate.core.decision import Decision
from headgate.core.errors import UsageError
from headgate.core.numbers import short
from headgate.core.plan import MAX_COST, Call, Charge, Limit, Plan, Verb
from headgate.engine.ruling import Receipt, Ruling
from headgate.policy.selection import Selection
from headgate.stores.circuits import DECIDED_HERE, Reason

_VERSION = 1
_HEAD = Struct(">BII")  # the version, the process, the cost
_TAKEN = Struct(">IQ")  # where, and when; with the first bit, by this process rather than by the store
_HERE = 1 << 63
_LATEST = 1 << 53
_LONGEST = 4096
_RANDOM = os.urandom(4)


class InvalidCharge(UsageError):
    """The text is not one that names a charge."""


class NamedCharge(NamedTuple):
    """What is in such a text."""

    process: int
    """Whose local decisions it names, if any."""
    cost: int
    taken: dict[int, int]
    """When, by where, as they are in the text."""

    def refunds(self, plan: Plan) -> list[Call]:
        """Return the calls that give back what the store took from limits of a plan, and what this process did."""
        found = [(limit, self.taken[place]) for limit in plan if (place := _place(limit)) in self.taken]
        calls = []
        for here, by in ((0, ""), (_HERE, Reason.CIRCUIT_OPEN)):
            part = [(limit, when & ~_HERE) for limit, when in found if when & _HERE == here]
            if part and (not here or self.process == _process()):
                limits, times = zip(*part, strict=True)
                calls.append(Call(Verb.REFUND, limits, self.cost, charge=Charge(times, by)))
        return calls


def charge_of(ruling: Ruling) -> str:
    """Return the text that names what a ruling took; empty if it took nothing."""
    if isinstance(ruling.selection, Receipt):
        return ruling.selection.charge
    found = dict(_found(ruling))
    if not found:
        return ""
    cost = max(part.taken for part in found.values())
    times = {_place(limit): _time(part) for limit, part in found.items()}
    process = _process() if any(when & _HERE for when in times.values()) else 0
    return _encoded(b"".join([_HEAD.pack(_VERSION, process, cost), *[_TAKEN.pack(*each) for each in times.items()]]))


def parse(text: str) -> NamedCharge:
    """Read such a text. Raises InvalidCharge."""
    data = _decoded(text)
    if len(data) > _HEAD.size and not (len(data) - _HEAD.size) % _TAKEN.size:
        version, process, cost = _HEAD.unpack_from(data)
        taken = dict(_TAKEN.iter_unpack(data[_HEAD.size :]))
        if version == _VERSION and 0 < cost <= MAX_COST and all(when & ~_HERE < _LATEST for when in taken.values()):
            return NamedCharge(process, cost, taken)
    raise InvalidCharge(f"a charge is the text that came with the answer to a check, not {short(text)}")


def _encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def _decoded(text: str) -> bytes:
    """Return what was encoded as `text`; nothing if that is not how it would be."""
    if len(text) > _LONGEST or not text.isascii():
        return b""
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        return b""
    return data if _encoded(data) == text else b""


def _found(ruling: Ruling) -> Iterator[tuple[Limit, Decision]]:
    """Yield the limits that a ruling took from, and what each said."""
    selection, decision = ruling.selection, ruling.decision
    if isinstance(selection, Selection) and not ruling.is_joint:
        told = [decision] if decision is not None and decision.taken else []
        yield from zip(selection.enforced.plan, [part for each in told for part in each.limits], strict=False)
        tried = [limit for limits in selection.shadow for limit in limits.plan]
        yield from [pair for pair in zip(tried, ruling.shadow_decisions, strict=True) if pair[1].taken]


def _place(limit: Limit) -> int:
    return crc32(f"{limit.space}\0{limit.principal!r}".encode())


def _time(part: Decision) -> int:
    return part.taken_at_us | (_HERE if part.degraded in DECIDED_HERE else 0)


def _process() -> int:
    """Return what tells this process, and its local decisions, from others; a forked child is another."""
    return crc32(_RANDOM + os.getpid().to_bytes(8, "big"))
