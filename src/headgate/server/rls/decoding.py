"""Reads Envoy's question from the wire: what protobuf reads, as far as there are not too many descriptors in it.

Questions that recur are read once; see `headgate.server.rls.service`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from headgate.core.errors import UsageError
from headgate.policy.envoy.request import MAX_UINT32, Descriptor, Override
from headgate.protos import RateLimitRequest

MOST = 256
"""Descriptors of a request, and entries of a descriptor. Envoy's actions make a handful of each."""


class MalformedMessage(UsageError):
    """The bytes are not a message of this kind."""


class RlsQuestion(NamedTuple):
    """What Envoy asks."""

    domain: str
    descriptors: tuple[Descriptor, ...]
    hits_addend: int = 0
    """Of descriptors that have none of their own; 0 means 1."""


def decode(raw: bytes) -> RlsQuestion:
    """Return the question that a `RateLimitRequest` is. Raises MalformedMessage."""
    try:
        message = RateLimitRequest.FromString(raw)
    except DecodeError:
        raise MalformedMessage("it is not a RateLimitRequest, or a text of it is not UTF-8") from None
    return question_of(message)


def question_of(message: Any) -> RlsQuestion:
    """Return the question that a message is which protobuf has read. Raises MalformedMessage."""
    if len(message.descriptors) > MOST:
        raise MalformedMessage(f"it has more than {MOST} descriptors, which are not decided at once")
    descriptors = []
    for each in message.descriptors:
        if len(each.entries) > MOST:
            raise MalformedMessage(f"a descriptor has more than {MOST} entries, which are not looked at")
        entries = tuple([(entry.key, entry.value) for entry in each.entries])
        hits = each.hits_addend.value if each.HasField("hits_addend") else None
        override = None
        if each.HasField("limit"):
            override = Override(each.limit.requests_per_unit, each.limit.unit & MAX_UINT32)
        descriptors.append(Descriptor(entries, hits, override, each.is_negative_hits))
    return RlsQuestion(message.domain, tuple(descriptors), message.hits_addend)
