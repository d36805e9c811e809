"""The requests to servers, by protocol, and the limits that decide them. No I/O.

Requests differ only in their user: user N is ``user-N``, with its own address. Over HTTP, they are templates with
``{user}``, ``{ip}`` and ``{path}``, since the script of wrk fills them in as well.

Users are drawn by a Zipf law, as in real services: the first one sends an eighth of all requests, and half of the
requests are from rare users.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

import msgspec

USERS = 200_000
"""The number of users: more than any cache holds."""
FEW_USERS = 2000
EXPONENT = 1.1
"""Of the Zipf law: user N is drawn in proportion to 1 / (N + 1) ** EXPONENT."""
SOAK_USERS, SOAK_PATHS = 2_000_000, 5000
"""Users and paths of the soak, drawn at random."""
PLENTY = 100_000_000
"""A limit that is never used up."""
YEAR = 365 * 86_400
RLS_SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
RLS_METHOD = "ShouldRateLimit"
DOMAIN = "bench"


def rules(*dimensions: str, limit: int = PLENTY, shadow: bool = False, endpoint: str = "**") -> str:
    """Return a file with a rule for each dimension, in windows that do not end during a run.

    The first one refuses if `limit` is low; `shadow` adds a shadow rule.
    """
    lines = ["version: 1", "rules:"]
    for number, dimension in enumerate(dimensions):
        each = limit if number == 0 else PLENTY
        lines.append(f'  - {{id: per-{dimension}, dimension: {dimension}, endpoint: "{endpoint}", {_window(each)}}}')
    if shadow:
        lines.append(f"  - {{id: tried, dimension: user, {_window(PLENTY)}, shadow: true}}")
    return "\n".join(lines) + "\n"


def _window(limit: int) -> str:
    return f"algorithm: fixed_window, limit: {limit}, window: 365d"


def descriptors(limit: int = PLENTY, domain: str = DOMAIN, keys: tuple[str, ...] = ("user",)) -> str:
    """Return a file of envoyproxy/ratelimit with one limit for each key."""
    rates = [f"  - key: {key}\n    rate_limit: {{unit: year, requests_per_unit: {limit}}}\n" for key in keys]
    return f"domain: {domain}\ndescriptors:\n{''.join(rates)}"


def limitador_limits(limit: int = PLENTY) -> str:
    """Return the same for Limitador."""
    return (
        f"- namespace: {DOMAIN}\n  max_value: {limit}\n  seconds: {YEAR}\n"
        "  conditions: []\n  variables: [\"descriptors[0]['user']\"]\n"
    )


class WrongResult(AssertionError):
    """A response is not as expected, so the figures would be meaningless."""


class Wire(StrEnum):
    """The protocol."""

    HTTP = "HTTP/1.1"
    GRPC = "gRPC"


@dataclass(frozen=True, slots=True)
class RequestKind:
    """A request that is sent repeatedly, each time for another user."""

    name: str
    wire: Wire
    path: str
    body_of: Callable[[int], bytes]
    """The body for the user with a number; a gRPC message is without its prefix."""
    is_allowed: Callable[[bytes], bool]
    """Whether a body or a message allows the request. Raises WrongResult if it does neither."""
    template: str = ""
    """The body over HTTP, not yet filled in."""
    random: bool = False
    """Whether users and paths are drawn at random instead of in turn; over HTTP."""

    @property
    def content_type(self) -> str:
        return "application/json" if self.wire is Wire.HTTP else "application/grpc"


def weights(users: int) -> list[float]:
    """Return the cumulative weights of users."""
    return list(accumulate([(number + 1) ** -EXPONENT for number in range(users)]))


def user(number: int) -> str:
    """Return the name of a user."""
    return f"user-{number}"


def address(number: int) -> str:
    """Return the address of a user."""
    return ".".join(str(each) for each in (10, number >> 16 & 255, number >> 8 & 255, number & 255))


def filled(template: str, number: int) -> bytes:
    """Return a template with a user, their address, and a path."""
    path = f"/api/v1/orders/{number % SOAK_PATHS}"
    known = template.replace("{user}", user(number)).replace("{ip}", address(number))
    return known.replace("{path}", path).encode()


def check(*principals: str, path: str = "/api/v1/orders", cost: int = 1) -> str:
    """Return the template of a check over HTTP."""
    principal = {name: f"{{{name}}}" for name in principals}
    return msgspec.json.encode({"principal": principal, "endpoint": path, "method": "POST", "cost": cost}).decode()


def text(number: int, *values: str | bytes) -> bytes:
    """Return a protobuf field of text, bytes, or another message, which is made of fields."""
    data = b"".join([value.encode() if isinstance(value, str) else value for value in values])
    return _number(number << 3 | 2) + _number(len(data)) + data


def varint(number: int, value: int) -> bytes:
    """Return a protobuf field with a number."""
    return _number(number << 3) + _number(value)


def _number(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))


def _http(
    name: str, path: str, template: str, is_allowed: Callable[[bytes], bool], *, random: bool = False
) -> RequestKind:
    return RequestKind(name, Wire.HTTP, path, lambda number: filled(template, number), is_allowed, template, random)


def _json_allows(body: bytes) -> bool:
    return msgspec.json.decode(body).get("allowed") is True


def _first_is_one(message: bytes) -> bool:
    """Whether the first field of a message, field 1, is the number 1: both services allow a request in this way."""
    return message.startswith(b"\x08\x01")


def _entry(key: str, value: str) -> bytes:
    """Return an entry of a descriptor of Envoy."""
    return text(1, text(1, key) + text(2, value))


CHECK = "/api/v1/rate-limit/check"
HTTP_CHECK = _http("http", CHECK, check("user"), _json_allows)
HTTP_ONE_USER = _http("http-one-user", CHECK, filled(check("user"), 0).decode(), _json_allows)
"""The requests of one client that ignores refusals."""
HTTP_THREE = _http("http-three", CHECK, check("user", "ip"), _json_allows)
"""For three rules: by user, by address, and for all."""
HTTP_SOAK = _http("http-soak", CHECK, check("user", "ip", path="{path}"), _json_allows, random=True)
RLS = RequestKind(
    "rls",
    Wire.GRPC,
    f"/{RLS_SERVICE}/{RLS_METHOD}",
    lambda number: text(1, DOMAIN) + text(2, _entry("user", user(number))),
    _first_is_one,
)
"""With one descriptor of one entry: the user."""
RLS_THREE = RequestKind(
    "rls-three",
    Wire.GRPC,
    RLS.path,
    lambda number: text(1, DOMAIN) + text(2, _entry("user", user(number)) + _entry("ip", address(number))),
    _first_is_one,
)
"""With one descriptor of two: the user and the address."""
RLS_TWO = RequestKind(
    "rls-two",
    Wire.GRPC,
    RLS.path,
    lambda number: text(1, DOMAIN) + text(2, _entry("user", user(number))) + text(2, _entry("ip", address(number))),
    _first_is_one,
)
"""With two descriptors of one entry: the user, and the address."""
RLS_SHARED = RequestKind(
    "rls-shared",
    Wire.GRPC,
    RLS.path,
    lambda number: text(1, DOMAIN) + text(2, _entry("user", user(0))) + varint(2000, number),
    _first_is_one,
)
"""Always for the same user, in a different message each time: it has an unknown field."""
AUTHZ_SERVICE = "envoy.service.auth.v3.Authorization"
IDENTITY = "version: 1\njwt_metadata: [{claims: {user: sub}}]\n"
"""Users are identified by tokens, which Envoy verifies."""


def _authorized(number: int) -> bytes:
    """Return the call of Envoy for a request of a user, with the filter in docs/envoy.md."""
    client = text(1, text(1, text(1, text(2, address(number)), varint(3, 40_000 + number % 20_000))))
    server = text(2, text(1, text(1, text(2, "10.255.0.1"), varint(3, 443))))
    sent = text(1, str(number)) + text(2, "POST") + text(4, "/api/v1/orders") + text(5, "api.example.com")
    head = text(13, text(1, text(1, ":path"), text(3, "/api/v1/orders")))
    http = text(2, sent, text(6, "https"), varint(9, 120), text(10, "HTTP/2"), head)
    request = text(4, text(1, varint(1, 1_800_000_000)), http)
    claims = [("sub", user(number)), ("iss", "https://id.example.com"), ("aud", "api")]
    payload = b"".join([text(1, text(1, name), text(2, text(3, value))) for name, value in claims])
    verified = text(1, text(1, "headgate"), text(2, text(5, payload)))
    metadata = text(11, text(1, text(1, "envoy.filters.http.jwt_authn"), text(2, verified)))
    return text(1, client, server, request, text(10, text(1, "headgate.service"), text(2, "orders")), metadata)


AUTHZ = RequestKind(
    "authz",
    Wire.GRPC,
    f"/{AUTHZ_SERVICE}/Check",
    _authorized,
    lambda message: message.startswith(b"\x0a\x00"),
)
"""The status is the first field of the response, and empty if it is OK."""
GRPC_CHECK = RequestKind(
    "grpc",
    Wire.GRPC,
    "/headgate.v1.RateLimiter/CheckRateLimit",
    lambda number: text(1, user(number)) + varint(2, 1) + text(3, "/api/v1/orders") + text(7, "POST"),
    _first_is_one,
)


def throttlecrab_http(limit: int) -> RequestKind:
    """Return the request to throttlecrab, which contains the limit."""
    burst, cost = _throttlecrab_limit(limit)
    request = {
        "key": f"{limit} {{user}}",
        "max_burst": burst,
        "count_per_period": burst,
        "period": YEAR,
        "quantity": cost,
    }
    return _http(f"throttlecrab-http-{limit}", "/throttle", msgspec.json.encode(request).decode(), _json_allows)


def throttlecrab_grpc(limit: int) -> RequestKind:
    """Return the same request over gRPC."""
    burst, cost = _throttlecrab_limit(limit)

    def body(number: int) -> bytes:
        return (
            text(1, f"{limit} {user(number)}") + varint(2, burst) + varint(3, burst) + varint(4, YEAR) + varint(5, cost)
        )

    return RequestKind(
        f"throttlecrab-grpc-{limit}", Wire.GRPC, "/throttlecrab.RateLimiter/Throttle", body, _first_is_one
    )


def _throttlecrab_limit(limit: int) -> tuple[int, int]:
    """Return the burst and the cost. With a burst of one, it never refuses, so two units are taken at once."""
    return (limit, 1) if limit > 1 else (2, 2)


def gubernator_http(limit: int) -> RequestKind:
    """Return the request to Gubernator, which contains the limit."""
    request = {
        "name": f"bench {limit}",
        "unique_key": "{user}",
        "hits": "1",
        "limit": str(limit),
        "duration": str(YEAR * 1000),
    }
    template = msgspec.json.encode({"requests": [request]}).decode()

    def is_allowed(body: bytes) -> bool:
        (answer,) = msgspec.json.decode(body)["responses"]
        if answer.get("error"):
            raise WrongResult(answer["error"])
        return bool(answer["status"] == "UNDER_LIMIT")

    return _http(f"gubernator-http-{limit}", "/v1/GetRateLimits", template, is_allowed)


def gubernator_grpc(limit: int) -> RequestKind:
    """Return the same request over gRPC."""

    def body(number: int) -> bytes:
        request = (
            text(1, f"bench {limit}") + text(2, user(number)) + varint(3, 1) + varint(4, limit) + varint(5, YEAR * 1000)
        )
        return text(1, request)

    def is_allowed(message: bytes) -> bool:
        """The only response begins with its status or, if that is 0 (under the limit), with the limit."""
        if message[2:3] not in {b"\x08", b"\x10"}:
            raise WrongResult(repr(message))
        return message.startswith(b"\x10", 2)

    return RequestKind(f"gubernator-grpc-{limit}", Wire.GRPC, "/pb.gubernator.V1/GetRateLimits", body, is_allowed)


def request_kinds() -> dict[str, RequestKind]:
    """Return all of them by their names."""
    found = [HTTP_CHECK, HTTP_ONE_USER, HTTP_THREE, HTTP_SOAK, AUTHZ, GRPC_CHECK]
    found += [RLS, RLS_THREE, RLS_TWO, RLS_SHARED]
    for limit in (PLENTY, 1):
        found += [throttlecrab_http(limit), throttlecrab_grpc(limit), gubernator_http(limit), gubernator_grpc(limit)]
    return {each.name: each for each in found}
