"""Envoy's messages: protobuf parses requests; responses are assembled from prepared pieces.

Fields with their default value are omitted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from headgate.core.errors import UsageError
from headgate.policy.envoy.answering import Code
from headgate.policy.envoy.request import MAX_UINT32, Descriptor, Override
from headgate.protobuf import entry, framed, text_writer, varint
from headgate.protos import POOL, RateLimitRequest

MOST = 256
"""Descriptors of a request, and entries of a descriptor. Envoy's actions make a handful of each."""
OK = b"\x08\x01"
"""The beginning of a response: its overall code."""
OVER_LIMIT = b"\x08\x02"
BODY = b"\x2a"
"""The tag of `raw_body`."""
_OURS = framed(b"\x0a", b"headgate")
_UNITS = {unit.number: unit.name for unit in POOL.FindEnumTypeByName("envoy.type.v3.RateLimitUnit").values}
_SMALL = tuple([bytes([number]) for number in range(128)])
_STATUS = tuple([b"\x12" + size for size in _SMALL])
_LEFT = (b"", *[bytes((0x18, number)) for number in range(1, 128)])
_DURATION = [bytes((0x22, 1 + size, 0x08)) for size in range(11)]
"""The beginning of a duration, by the size of its seconds."""


class MalformedMessage(UsageError):
    """The bytes are not a `RateLimitRequest`, or it is too large."""


class RlsRequest(msgspec.Struct, frozen=True, gc=False):
    """A request of Envoy."""

    domain: str
    descriptors: tuple[Descriptor, ...]
    hits_addend: int = 0
    """Of descriptors that have none of their own; 0 means 1."""


def decode(raw: bytes) -> RlsRequest:
    """Parse a `RateLimitRequest`. Raises MalformedMessage."""
    try:
        message = RateLimitRequest.FromString(raw)
    except DecodeError:
        raise MalformedMessage("it is not a RateLimitRequest, or a text of it is not UTF-8") from None
    return request_of(message)


def request_of(message: Any) -> RlsRequest:
    """Return the request of a message that protobuf has parsed. Raises MalformedMessage."""
    sent, descriptors = message.descriptors, []
    if len(sent) > MOST:
        raise MalformedMessage(f"it has more than {MOST} descriptors")
    for each in sent[:]:  # a list, which is faster to iterate than a field of protobuf
        pairs = each.entries
        if len(pairs) > MOST:
            raise MalformedMessage(f"a descriptor has more than {MOST} entries")
        entries = tuple([(pair.key, pair.value) for pair in pairs[:]])
        hits = each.hits_addend.value if each.HasField("hits_addend") else None
        override = None
        if each.HasField("limit"):
            override = Override(each.limit.requests_per_unit, each.limit.unit & MAX_UINT32)
        descriptors.append(Descriptor(entries, hits, override, each.is_negative_hits))
    return RlsRequest(message.domain, tuple(descriptors), message.hits_addend)


def status(content: bytes, remaining: int = 0, seconds: int | None = None) -> bytes:
    """Return one of the `statuses`; `content` is that of `status_content`, `seconds` the time until the reset."""
    status = content + (_LEFT[remaining] if remaining < 128 else b"\x18" + varint(remaining))
    if seconds:
        until = varint(seconds)
        status += _DURATION[len(until)] + until
    elif seconds is not None:
        status += b"\x22\x00"
    size = len(status)
    return (_STATUS[size] if size < 128 else b"\x12" + varint(size)) + status


def status_content(code: Code, limit: bytes = b"") -> bytes:
    """Return the beginning of a status; `limit` is that of `current_limit`."""
    return b"\x08" + _SMALL[code] + limit


def current_limit(requests_per_unit: int, unit: int, name: str) -> bytes:
    """Return the field of a status with its limit."""
    content = b"\x08" + varint(requests_per_unit) if requests_per_unit else b""
    content += b"\x10" + _SMALL[unit]
    return framed(b"\x12", content + framed(b"\x1a", name.encode()) if name else content)


def header(name: str) -> Callable[[str], bytes]:
    """Return the writer of `response_headers_to_add` of this name, a spelling of `headgate.web.headers`."""
    opening = framed(b"\x0a", name.encode()) + b"\x12"

    def before(size: int) -> bytes:
        value = opening + varint(size)
        return b"\x1a" + varint(len(value) + size) + value

    return text_writer(before)


def metadata(ours: bytes, more: bytes = b"") -> bytes:
    """Return the field `dynamic_metadata`: our entries under the key `headgate`, and others beside it."""
    return framed(b"\x32", framed(b"\x0a", _OURS + framed(b"\x12", framed(b"\x2a", ours))) + more)


def echo(request: RlsRequest) -> bytes:
    """Return the field `dynamic_metadata` that repeats a request, as envoyproxy/ratelimit does.

    It may follow a response that has the field already: parsers merge the two.
    """
    descriptors = []
    for each in request.descriptors:
        descriptor: dict[str, Any] = {"entries": [f"{key}={value}" for key, value in each.entries]}
        if each.override is not None:
            descriptor["limit"] = _text_of(each.override)
        if each.hits is not None:
            descriptor["hitsAddend"] = each.hits
        descriptors.append(descriptor)
    entries = entry("domain", request.domain) + entry("descriptors", descriptors)
    return framed(b"\x32", entries + entry("hitsAddend", request.hits_addend) if request.hits_addend else entries)


def _text_of(override: Override) -> str:
    """Return a limit in protobuf's text format."""
    number, unit = override
    return " ".join([f"requests_per_unit:{number}"] * bool(number) + [f"unit:{_UNITS.get(unit, unit)}"] * bool(unit))
