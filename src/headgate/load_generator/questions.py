"""What is asked, encoded beforehand: all questions are the same but for the number of the user who asks.

Users are ``load-0000000``, ``load-0000001`` and so on: as the number is always as long, nothing else changes with it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Self

import msgspec

from headgate.core.errors import UsageError
from headgate.load_generator import protobuf
from headgate.load_generator.outcomes import NOT_UNDERSTOOD, Outcome, decided
from headgate.load_generator.targets import Target

_DIGITS = 7
MOST_USERS = 10**_DIGITS
MOST_PATH = 2048
"""Bytes; so that every question fits into one frame."""
_PLACE = b"\0" * _DIGITS
"""Stands for the digits: no text that is asked has such bytes, and no message has so many of them in a row."""
_USER = b"load-" + _PLACE
_DEGRADED = protobuf.text(1, b"degraded")
"""The key of a member of a Struct."""
_CURRENT_LIMIT = 2
"""The field of a descriptor's status: it is there where a rule matched."""


class Service(StrEnum):
    """Which gRPC service is asked."""

    HEADGATE = "headgate"
    RLS = "rls"


class Asked(msgspec.Struct, frozen=True):
    """The request that is asked about."""

    path: str = "/api/v1/orders"
    method: str = "GET"
    cost: int = 1
    domain: str = "headgate"
    """Of descriptors, where Envoy's service is asked."""

    def __post_init__(self) -> None:
        for name, value in (("path", self.path), ("method", self.method), ("domain", self.domain)):
            if not value or not value.isprintable() or len(value.encode(errors="replace")) > MOST_PATH:
                raise UsageError(f"the {name} {value[:80]!r} should be printable text of 1 to {MOST_PATH} bytes")


class Template(msgspec.Struct, frozen=True):
    """A question with a gap where the number of the user goes."""

    head: bytes
    tail: bytes

    @classmethod
    def of(cls, question: bytes) -> Self:
        head, place, tail = question.partition(_PLACE)
        assert place  # noqa: S101  all questions are made here
        return cls(head, tail)

    @property
    def size(self) -> int:
        """In bytes, as it is sent."""
        return len(self.head) + _DIGITS + len(self.tail)

    def filled(self, user: int) -> bytes:
        return b"%b%07d%b" % (self.head, user, self.tail)


def http_question(target: Target, asked: Asked, caller_key: str | None = None) -> Template:
    """Return the whole request of HTTP/1.1."""
    body = b'{"principal":{"user":"%b"},"endpoint":%b,"method":%b,"cost":%d}' % (
        _USER,
        msgspec.json.encode(asked.path),
        msgspec.json.encode(asked.method),
        asked.cost,
    )
    lines = [
        "POST /api/v1/rate-limit/check HTTP/1.1",
        f"host: {target.place}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        *[f"{name}: {value}" for name, value in caller_fields(caller_key)],
    ]
    return Template.of("\r\n".join([*lines, "", ""]).encode() + body)


def caller_fields(caller_key: str | None) -> list[tuple[str, str]]:
    """Return the headers that say who calls the service, where it wants to know."""
    if caller_key is None:
        return []
    if not (0 < len(caller_key) <= MOST_PATH and caller_key.isascii() and caller_key.isprintable()):
        raise UsageError(f"a caller key is printable ASCII, up to {MOST_PATH} characters")
    return [("authorization", f"Bearer {caller_key}")]


class Method(msgspec.Struct, frozen=True):
    """A unary method of gRPC, with a question, and how its answers are read."""

    path: str
    message: Template
    read: Callable[[bytes], Outcome]


def grpc_method(service: Service, asked: Asked) -> Method:
    """Return what is called of a service."""
    if service is Service.RLS:
        entries = [(b"user", _USER), (b"path", asked.path.encode()), (b"method", asked.method.encode())]
        descriptor = b"".join(
            protobuf.text(1, protobuf.text(1, name) + protobuf.text(2, value)) for name, value in entries
        )
        message = (
            protobuf.text(1, asked.domain.encode()) + protobuf.text(2, descriptor) + protobuf.number(3, asked.cost)
        )
        return Method("/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", Template.of(message), read_rls)
    message = (
        protobuf.text(1, _USER)
        + protobuf.number(2, 1)
        + protobuf.text(3, asked.path.encode())
        + protobuf.number(4, asked.cost)
        + protobuf.text(7, asked.method.encode())
    )
    return Method("/headgate.v1.RateLimiter/CheckRateLimit", Template.of(message), read_check)


class _HttpAnswer(msgspec.Struct):
    allowed: bool
    degraded: bool | str | None = None
    matched: bool = True


_decode = msgspec.json.Decoder(_HttpAnswer).decode


def read_http(body: bytes) -> Outcome:
    """Read what HTTP answered."""
    try:
        answer = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return NOT_UNDERSTOOD
    return decided(allowed=answer.allowed, degraded=bool(answer.degraded), matched=answer.matched)


def read_rls(message: bytes) -> Outcome:
    """Read a RateLimitResponse of Envoy; in its metadata, Headgate says that it is degraded."""
    try:
        fields = protobuf.read(message)
        status = fields.get(2, b"")
        matched = isinstance(status, bytes) and _CURRENT_LIMIT in protobuf.read(status)
    except ValueError:
        return NOT_UNDERSTOOD
    code, metadata = fields.get(1), fields.get(6, b"")
    if code not in {1, 2}:
        return NOT_UNDERSTOOD
    degraded = isinstance(metadata, bytes) and _DEGRADED in metadata
    return decided(allowed=code == 1, degraded=degraded, matched=matched)


def read_check(message: bytes) -> Outcome:
    """Read a CheckResponse of headgate.v1."""
    try:
        fields = protobuf.read(message)
    except ValueError:
        return NOT_UNDERSTOOD
    allowed = fields.get(1, 0)
    if allowed not in {0, 1}:
        return NOT_UNDERSTOOD
    return decided(allowed=allowed == 1, degraded=bool(fields.get(9)), matched=bool(fields.get(11)))
