"""Reads Envoy's question from the wire. Written by hand: it takes half as long as protobuf, which builds objects first.

It accepts what protobuf accepts, with two exceptions, both of which no encoder writes: a field number, or a length, in
more bytes than it needs is malformed; and there is a limit to the number of descriptors and entries. Fields that are
unknown are skipped.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from headgate.core.errors import UsageError
from headgate.policy.envoy.request import MAX_UINT32, Descriptor, Override
from headgate.protos import RateLimitRequest

MOST = 256
"""Descriptors of a request, and entries of a descriptor. Envoy's actions make a handful of each."""
_DEEPEST = 16
"""Of groups within groups: an unknown field may be one, though nobody has written any for 15 years."""
_LONGEST = 16_384
"""Bytes of a question that is read here: of longer ones, protobuf reads what is strange about them more quickly."""
_TOO_MANY_DESCRIPTORS = f"it has more than {MOST} descriptors, which are not decided at once"
_TOO_MANY_ENTRIES = f"a descriptor has more than {MOST} entries, which are not looked at"
_ENDED = "it ends in the middle of a field"
_END_GROUP = 4
_KEY_OR_VALUE = b"\x0a\x12"


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
        if len(raw) > _LONGEST:  # protobuf skips thousands of unknown fields while we skip one
            return question_of(RateLimitRequest.FromString(raw))
        return _request(raw)
    except IndexError:
        raise MalformedMessage(_ENDED) from None
    except UnicodeDecodeError:
        raise MalformedMessage("a text is not UTF-8") from None
    except DecodeError:
        raise MalformedMessage("it is not a RateLimitRequest") from None


def question_of(message: Any) -> RlsQuestion:
    """Return the question that a message is which protobuf has read. Raises MalformedMessage."""
    if len(message.descriptors) > MOST:
        raise MalformedMessage(_TOO_MANY_DESCRIPTORS)
    descriptors = []
    for each in message.descriptors:
        if len(each.entries) > MOST:
            raise MalformedMessage(_TOO_MANY_ENTRIES)
        entries = tuple([(entry.key, entry.value) for entry in each.entries])
        hits = each.hits_addend.value if each.HasField("hits_addend") else None
        override = None
        if each.HasField("limit"):
            override = Override(each.limit.requests_per_unit, each.limit.unit & MAX_UINT32)
        descriptors.append(Descriptor(entries, hits, override, each.is_negative_hits))
    return RlsQuestion(message.domain, tuple(descriptors), message.hits_addend)


def _request(raw: bytes) -> RlsQuestion:
    position, end = 0, len(raw)
    domain, hits = "", 0
    descriptors = []
    while position < end:
        tag = raw[position]
        if tag == 0x12:
            start, position = _span(raw, position + 1, end)
            descriptors.append(_descriptor(raw, start, position))
            if len(descriptors) > MOST:
                raise MalformedMessage(_TOO_MANY_DESCRIPTORS)
        elif tag == 0x0A:
            start, position = _span(raw, position + 1, end)
            domain = raw[start:position].decode()
        elif tag == 0x18:
            hits, position = _varint(raw, position + 1, end)
        else:
            position = _skipped(raw, position, end)
    return RlsQuestion(domain, tuple(descriptors), hits & MAX_UINT32)


def _descriptor(raw: bytes, position: int, end: int) -> Descriptor:
    entries = []
    hits, limit, unit, has_limit, refund = None, 0, 0, False, False
    while position < end:
        tag = raw[position]
        if tag == 0x0A:
            start = position + 2
            position = start + raw[start - 1]
            if raw[start - 1] > 127 or position > end:
                start, position = _span(raw, start - 1, end)
            entries.append(_entry(raw, start, position))
            if len(entries) > MOST:
                raise MalformedMessage(_TOO_MANY_ENTRIES)
        elif tag == 0x12:
            start, position = _span(raw, position + 1, end)
            limit, unit = _numbers(raw, start, position, limit, unit)
            has_limit = True
        elif tag == 0x1A:
            start, position = _span(raw, position + 1, end)
            hits, _ = _numbers(raw, start, position, hits or 0, 0)
        elif tag == 0x20:
            number, position = _varint(raw, position + 1, end)
            refund = number != 0
        else:
            position = _skipped(raw, position, end)
    if not has_limit:
        return Descriptor(tuple(entries), hits, None, refund)
    return Descriptor(tuple(entries), hits, Override(limit & MAX_UINT32, unit & MAX_UINT32), refund)


def _entry(raw: bytes, position: int, end: int) -> tuple[str, str]:
    if end - position > 3 and raw[position] == 0x0A and raw[position + 1] < 128:
        middle = position + 2 + raw[position + 1]
        if middle + 2 <= end and raw[middle] == 0x12 and middle + 2 + raw[middle + 1] == end < middle + 130:
            return raw[position + 2 : middle].decode(), raw[middle + 2 : end].decode()  # as all encoders write it
    key = value = ""
    while position < end:
        kind, size = raw[position], raw[position + 1]
        if kind not in _KEY_OR_VALUE:
            position = _skipped(raw, position, end)
            continue
        if size < 128:
            start = position + 2
            position = start + size
            if position > end:
                raise MalformedMessage(_ENDED)
        else:
            start, position = _span(raw, position + 1, end)
        if kind == 0x0A:
            key = raw[start:position].decode()
        else:
            value = raw[start:position].decode()
    return key, value


def _numbers(raw: bytes, position: int, end: int, first: int, second: int) -> tuple[int, int]:
    """Return the fields 1 and 2 of a message that has nothing but numbers; these are what was read of it before."""
    while position < end:
        tag = raw[position]
        if tag == 0x08:
            first, position = _varint(raw, position + 1, end)
        elif tag == 0x10:
            second, position = _varint(raw, position + 1, end)
        else:
            position = _skipped(raw, position, end)
    return first, second


def _span(raw: bytes, position: int, end: int) -> tuple[int, int]:
    """Return where the bytes begin and end whose length is at `position`."""
    size = raw[position]
    position += 1
    if size > 127:
        size, position = _small(raw, position - 1, end)
    stop = position + size
    if stop > end:
        raise MalformedMessage(_ENDED)
    return position, stop


def _varint(raw: bytes, position: int, end: int) -> tuple[int, int]:
    """Return a number of up to 64 bits, and the position behind it."""
    number = shift = 0
    while position < end:
        byte = raw[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
        if shift > 63:
            raise MalformedMessage("a number has more than 10 bytes")
    raise MalformedMessage(_ENDED)


def _small(raw: bytes, position: int, end: int) -> tuple[int, int]:
    """Return a length, or a field with its kind: below 2^32, in as few bytes as it takes."""
    number, stop = _varint(raw, position, end)
    if number > MAX_UINT32 or (stop - position > 1 and not raw[stop - 1]):
        raise MalformedMessage("the number of a field, or its length, is malformed")
    return number, stop


def _skipped(raw: bytes, position: int, end: int, depth: int = 0) -> int:
    """Return the position behind an unknown field."""
    tag, position = _small(raw, position, end)
    number, kind = tag >> 3, tag & 7
    if not number:
        raise MalformedMessage("a field has the number 0")
    if kind == 0:
        return _varint(raw, position, end)[1]
    if kind == 2:
        return _span(raw, position, end)[1]
    if kind in {1, 5}:
        stop = position + (8 if kind == 1 else 4)
        if stop > end:
            raise MalformedMessage(_ENDED)
        return stop
    if kind == 3 and depth < _DEEPEST:
        while True:
            closing, stop = _small(raw, position, end)
            if closing & 7 == _END_GROUP:
                if closing >> 3 != number:
                    raise MalformedMessage("a group does not end as it began")
                return stop
            position = _skipped(raw, position, end, depth + 1)
    raise MalformedMessage("a field is of an unknown kind")
