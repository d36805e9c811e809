"""The rows about servers: the request, the limits that decide it, and the expected response."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks.service.requests import (
    AUTHZ,
    FEW_USERS,
    GRPC_CHECK,
    HTTP_CHECK,
    HTTP_ONE_USER,
    HTTP_SOAK,
    HTTP_THREE,
    IDENTITY,
    PLENTY,
    RLS,
    RLS_SHARED,
    RLS_THREE,
    RLS_TWO,
    USERS,
    RequestKind,
    descriptors,
    gubernator_grpc,
    gubernator_http,
    limitador_limits,
    rules,
    throttlecrab_grpc,
    throttlecrab_http,
)
from benchmarks.service.servers import Setup

OURS = "headgate"
THREE = ("user", "ip", "global")
"""The dimensions of three rules that match every request."""


@dataclass(frozen=True, slots=True)
class Row:
    """A server with one kind of request."""

    what: str
    """The request, the limits that decide it, and the store."""
    setup: Setup
    request: RequestKind
    allows: bool = True
    """The expected result of every request."""
    counts: bool = False
    """Whether the usage of a user can be read: from Headgate, with one rule."""
    users: int = USERS
    """The number of users."""

    @property
    def is_ours(self) -> bool:
        return self.setup.program == OURS


def _denied(limit: int) -> str:
    return "allowed" if limit == PLENTY else "denied"


def few(row: Row) -> Row:
    """Return the same row for few users, who fit into caches."""
    return replace(row, what=f"{row.what}, {FEW_USERS:,} users", users=FEW_USERS)


def shared(row: Row) -> Row:
    """Return the same row for one shared key."""
    return replace(row, what=f"{row.what}, one shared key", request=RLS_SHARED)


def _variants(rows: dict[str, Row], make: Callable[[Row], Row], end: str, names: tuple[str, ...]) -> dict[str, Row]:
    return {f"{name}_{end}": make(rows[name]) for name in names}


def ours() -> dict[str, Row]:
    """Return our rows. Ids of refusals end with ``_denied``, and those on Redis with ``_redis``."""
    found: dict[str, Row] = {}
    for redis in (False, True):
        where, store = ("_redis", "Redis") if redis else ("", "memory")
        for limit in (PLENTY, 1):
            end, allows = (where, True) if limit == PLENTY else (f"_denied{where}", False)
            answer = _denied(limit)
            by_rule = Setup(rules=rules("user", limit=limit), redis=redis)
            by_token = Setup(rules=rules("user", limit=limit), identity=IDENTITY, redis=redis)
            by_file = Setup(descriptors=descriptors(limit), redis=redis)
            by_both = Setup(rules=rules("user", limit=limit), descriptors=descriptors(domain="elsewhere"), redis=redis)
            found |= {
                f"http{end}": Row(f"HTTP check, {store}, {answer}", by_rule, HTTP_CHECK, allows, counts=allows),
                f"grpc{end}": Row(f"gRPC check, {store}, {answer}", by_rule, GRPC_CHECK, allows, counts=allows),
                f"rls{end}": Row(f"RLS by rules, {store}, {answer}", by_rule, RLS, allows, counts=allows),
                f"authz{end}": Row(f"ext_authz by rules, {store}, {answer}", by_token, AUTHZ, allows, counts=allows),
                f"descriptors{end}": Row(f"RLS by descriptor file, {store}, {answer}", by_file, RLS, allows),
                f"both{end}": Row(f"RLS by rules beside a descriptor file, {store}, {answer}", by_both, RLS, allows),
            }
        two = Setup(descriptors=descriptors(keys=("user", "ip")), redis=redis)
        both = Setup(rules=rules("user", "ip"), redis=redis)
        three = Setup(rules=rules(*THREE), redis=redis)
        shadow = Setup(rules=rules(*THREE, shadow=True), redis=redis)
        refusing = Setup(rules=rules(*THREE, limit=1), redis=redis)
        found |= {
            f"three{where}": Row(f"HTTP check, three rules, {store}, allowed", three, HTTP_THREE),
            f"three_denied{where}": Row(
                f"HTTP check, three rules, {store}, denied", refusing, HTTP_THREE, allows=False
            ),
            f"shadow{where}": Row(f"HTTP check, three rules and a shadow, {store}", shadow, HTTP_THREE),
            f"rls_three{where}": Row(f"RLS by three rules, {store}, allowed", three, RLS_THREE),
            f"rls_two{where}": Row(f"RLS by rules, two descriptors, {store}", both, RLS_TWO),
            f"descriptors_two{where}": Row(f"RLS by descriptor file, two descriptors, {store}", two, RLS_TWO),
            f"rls_three_denied{where}": Row(f"RLS by three rules, {store}, denied", refusing, RLS_THREE, allows=False),
        }
    one = Setup(rules=rules("user", limit=1), redis=True)
    soak = Setup(rules=rules(*THREE, endpoint="/api/**"), redis=True)
    encrypted = Setup(rules=rules("user"), tls=True)
    pair = Setup(rules=rules("user"), redis=True, workers=2)
    everybody = Setup(rules=rules("global"))
    return {
        **found,
        **_variants(found, few, "few", ("http", "grpc", "authz", "descriptors", "descriptors_redis")),
        **_variants(found, shared, "shared", ("descriptors", "descriptors_redis")),
        "http_shared": Row("HTTP check, memory, allowed, one shared key", everybody, HTTP_CHECK),
        "one_user_denied_redis": Row("HTTP check, Redis, denied, one user", one, HTTP_ONE_USER, allows=False),
        "soak": Row("HTTP check, three rules, Redis, 2 million users and 5,000 paths at random", soak, HTTP_SOAK),
        "http_tls": Row("HTTP check, memory, TLS", encrypted, HTTP_CHECK, counts=True),
        "rls_pair": Row("RLS by rules, Redis, 2 workers", pair, RLS, counts=True),
        "http_pair": Row("HTTP check, Redis, 2 workers", pair, HTTP_CHECK, counts=True),
    }


def floors() -> dict[str, Row]:
    """Return the rows of servers that decide nothing."""
    return {
        "floor": Row("a constant over HTTP", Setup("nginx"), HTTP_CHECK),
        "uvloop": Row("a constant over HTTP, nothing parsed", Setup("uvloop"), HTTP_CHECK),
        "uvicorn": Row("a trivial check over HTTP", Setup("uvicorn"), HTTP_CHECK),
        "grpcio": Row("a trivial RLS", Setup("grpcio"), RLS),
    }


def peers() -> dict[str, Row]:
    """Return the rows of peers."""
    found: dict[str, Row] = {}
    for limit, end in ((PLENTY, ""), (1, "_denied")):
        allows, answer = limit == PLENTY, _denied(limit)
        limits = limitador_limits(limit)
        found |= {
            f"limitador{end}": Row(f"RLS, memory, {answer}", Setup("limitador-server", limits), RLS, allows),
            f"limitador{end}_redis": Row(
                f"RLS, Redis, {answer}", Setup("limitador-server", limits, redis=True), RLS, allows
            ),
            f"ratelimit{end}_redis": Row(
                f"RLS, Redis, {answer}", Setup("ratelimit", descriptors=descriptors(limit), redis=True), RLS, allows
            ),
            f"gubernator_http{end}": Row(
                f"HTTP, memory, {answer}", Setup("gubernator"), gubernator_http(limit), allows
            ),
            f"gubernator_grpc{end}": Row(
                f"gRPC, memory, {answer}", Setup("gubernator"), gubernator_grpc(limit), allows
            ),
            f"throttlecrab_http{end}": Row(
                f"HTTP, memory, {answer}", Setup("throttlecrab-server"), throttlecrab_http(limit), allows
            ),
            f"throttlecrab_grpc{end}": Row(
                f"gRPC, memory, {answer}", Setup("throttlecrab-server"), throttlecrab_grpc(limit), allows
            ),
        }
    cached = Setup("ratelimit", descriptors=descriptors(1), redis=True, local_cache=True)
    return {
        **found,
        **_variants(found, few, "few", ("limitador", "throttlecrab_http", "throttlecrab_grpc")),
        **_variants(found, shared, "shared", ("limitador",)),
        "ratelimit_cached_redis": Row("RLS, Redis, denied, its local cache", cached, RLS, allows=False),
    }


def all_rows() -> dict[str, Row]:
    """Return all rows by their ids."""
    return {**floors(), **ours(), **peers()}
