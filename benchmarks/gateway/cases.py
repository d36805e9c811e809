"""The gateways to measure, and the configuration of each Envoy. No I/O.

Every Envoy has the configuration of ``headgate gateway`` for the same file: strict parsing of requests, routes,
problem documents. The cases differ in the service that decides, and in the filter that calls it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.service.requests import DOMAIN, PLENTY, descriptors, user
from benchmarks.service.servers import Setup
from headgate.gateway.bootstrap import resources_of
from headgate.gateway.filters import HEADGATE, SERVER
from headgate.gateway.model import Gateway
from headgate.gateway.routing import AUTHORIZATION, EXTENSION, RATE_LIMIT, Json
from headgate.web.apikey import digest

USERS = 500
"""The number of users, in turn."""
PARAMETER = "api_key"
WAIT = "10s"
"""How long a request waits for its decision: flat out, longer than usual."""
_STORE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Case:
    """A gateway, and the service that decides."""

    name: str
    what: str
    """In words of the report."""
    decides: Setup | None = None
    """The service to call over RLS; None without one, or if the command runs it."""
    is_command: bool = False
    """Whether it is ``headgate gateway`` as it is, which calls Headgate by ext_authz."""
    redis: bool = False

    @property
    def is_here(self) -> bool:
        """Can it be started?"""
        return self.decides is None or self.decides.is_here


def cases() -> list[Case]:
    """Return all cases; the others are compared with the first."""
    found = [Case("none", "no check")]
    for redis in (False, True):
        end, store = ("_redis", "Redis") if redis else ("", "memory")
        by_file = Setup(descriptors=descriptors(), redis=redis)
        found.append(Case(f"authz{end}", f"Headgate by ext_authz, {store}", is_command=True, redis=redis))
        found.append(Case(f"rls{end}", f"Headgate by RLS, {store}", by_file, redis=redis))
    theirs = Setup("ratelimit", descriptors=descriptors(), redis=True)
    return [*found, Case("ratelimit_redis", "envoyproxy/ratelimit by RLS, Redis", theirs, redis=True)]


def key(number: int) -> str:
    """Return the API key of a user."""
    return f"ak_{user(number)}-0123456789"


def path(number: int) -> str:
    """Return the path for a user: the key is in the query, since h2load sends the same headers for all."""
    return f"/orders/7?{PARAMETER}={key(number)}"


def file(case: Case, port: int, upstream: int, decides: int = 0, store: str = "") -> dict[str, Any]:
    """Return the file of a gateway.

    Args:
        case: which.
        port: where clients connect.
        upstream: the port of the service behind it.
        decides: the port of the deciding service, unless it is the command itself.
        store: the address of a database of Redis, if it keeps its state there.
    """
    common = {
        "version": 1,
        "listeners": [{"port": port}],
        "services": {"orders": {"endpoints": [f"127.0.0.1:{upstream}"]}},
        "routes": [{"path": "/", "service": "orders"}],
        "threads": 1,
        "access_log": "off",
    }
    if not case.is_command:
        return {**common, "decisions": {"address": f"127.0.0.1:{decides or upstream}", "timeout": WAIT}}
    users = [{"sha256": digest(key(number)), "name": user(number), "user": user(number)} for number in range(USERS)]
    rule = {"id": "per-user", "dimension": "user", "algorithm": "fixed_window", "limit": PLENTY, "window": "365d"}
    return {
        **common,
        "identity": {"api_keys": {"query": PARAMETER, "keys": users}},
        "rules": {"rules": [rule]},
        "store": f"{store}?timeout={_STORE_SECONDS}" if store else "memory",
        "decisions": {"timeout": WAIT},
    }


def envoy(gateway: Gateway, folder: str, *, limited: bool) -> Json:
    """Return the configuration of an Envoy without checks or, if `limited`, with a rate limit service."""
    whole = resources_of(gateway, folder).whole(secret=False)
    for listener in whole["static_resources"]["listeners"]:
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        filters = [each for each in manager["http_filters"] if each["name"] != AUTHORIZATION]
        if limited:
            filters.insert(len(filters) - 1, _rate_limit())
        manager["http_filters"] = filters
        for host in manager["route_config"]["virtual_hosts"]:
            _limit(host["routes"], limited=limited)
    return whole


def _limit(routes: Sequence[Json], *, limited: bool) -> None:
    """Replace the settings of routes for ext_authz by those for a rate limit service."""
    kind = f"{EXTENSION}filters.http.ratelimit.v3.RateLimitPerRoute"
    by_user = {"actions": [{"request_headers": {"header_name": ":path", "descriptor_key": "user"}}]}
    for route in routes:
        settings = route.get("typed_per_filter_config", {})
        settings.pop(AUTHORIZATION, None)
        if limited and "route" in route:
            route["typed_per_filter_config"] = settings | {RATE_LIMIT: {"@type": kind, "rate_limits": [by_user]}}


def _rate_limit() -> Json:
    """Return the filter: as strict as ext_authz, with the same header fields for clients."""
    return {
        "name": RATE_LIMIT,
        "typed_config": {
            "@type": f"{EXTENSION}filters.http.ratelimit.v3.RateLimit",
            "domain": DOMAIN,
            "timeout": WAIT,
            "failure_mode_deny": True,
            "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
            "rate_limit_service": {
                "grpc_service": {"envoy_grpc": {"cluster_name": HEADGATE, "authority": SERVER}, "timeout": WAIT},
                "transport_api_version": "V3",
            },
        },
    }
