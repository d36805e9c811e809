"""What servers are asked: the same question over HTTP, over our gRPC service and over Envoy's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import msgspec

USERS = 1000
"""How many users ask, in turn."""
RULES = """\
version: 1
rules:
  - id: per-user
    dimension: user
    algorithm: fixed_window
    limit: 100000000
    window: 365d
"""
"""One rule that matches, which nobody uses up; its window does not end during a run."""
RULE = "per-user"
RLS_SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
RLS_METHOD = "ShouldRateLimit"


class Wire(StrEnum):
    """Which protocol carries it."""

    HTTP = "HTTP/1.1"
    GRPC = "gRPC"


@dataclass(frozen=True, slots=True)
class Question:
    """A request that is asked over and over."""

    wire: Wire
    path: str
    content_type: str
    body_of: Callable[[str], bytes]
    """What a user asks. A gRPC message has no prefix here."""
    is_allowed: Callable[[bytes], bool]
    """Whether a body, or a message, says so."""

    @property
    def body(self) -> bytes:
        """What user 0 asks."""
        return self.body_of(user(0))


def user(number: int) -> str:
    """Return the name of a user."""
    return f"user-{number}"


def check_body(name: str, *, cost: int = 1) -> bytes:
    """Return the JSON of a check."""
    principal = {"user": name}
    return msgspec.json.encode({"principal": principal, "endpoint": "/api/v1/orders", "method": "POST", "cost": cost})


def text(number: int, value: str | bytes) -> bytes:
    """Return a protobuf field of text, bytes, or another message; short ones, of less than 128 bytes."""
    data = value.encode() if isinstance(value, str) else value
    if len(data) > 127:  # what one byte of a varint holds
        raise ValueError(f"longer than 127 bytes: {data!r}")
    return bytes((number << 3 | 2, len(data))) + data


def small(number: int, value: int) -> bytes:
    """Return a protobuf field with a number below 128."""
    return bytes((number << 3, value))


def starts_with_field(number: int, value: int) -> Callable[[bytes], bool]:
    """Return whether a protobuf message begins with a small number in that field."""
    return lambda message: message.startswith(small(number, value))


def _json_allows(body: bytes) -> bool:
    return msgspec.json.decode(body).get("allowed") is True


HTTP_CHECK = Question(Wire.HTTP, "/api/v1/rate-limit/check", "application/json", check_body, _json_allows)
RLS = Question(
    Wire.GRPC,
    f"/{RLS_SERVICE}/{RLS_METHOD}",
    "application/grpc",
    lambda name: text(1, "bench") + text(2, text(1, text(1, "user") + text(2, name))),
    starts_with_field(1, 1),
)
"""With one descriptor of one entry: the user."""
GRPC_CHECK = Question(
    Wire.GRPC,
    "/headgate.v1.RateLimiter/CheckRateLimit",
    "application/grpc",
    lambda name: text(1, name) + small(2, 1) + text(3, "/api/v1/orders") + text(7, "POST"),
    starts_with_field(1, 1),
)
