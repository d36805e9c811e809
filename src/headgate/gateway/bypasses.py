"""Bypasses of a route that requires an identity: requests for its resources that match a route which requires less.

Services may answer HEAD like GET, or read ``/ADMIN`` as ``/admin``, where Envoy does not. Only routes to the same
servers matter: another service does not have the protected resources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headgate.gateway.model import ANYWHERE, Gateway, GatewayRoute
from headgate.gateway.routing import in_order
from headgate.policy.model import METHODS

_LISTED = 3


def bypasses(gateway: Gateway, *, by_case: bool) -> Iterator[tuple[int, str, str]]:
    """Yield the number of each route that can be bypassed, how, and a remedy; `by_case` includes other capitals."""
    hosts = sorted({ANYWHERE, *(host for route in gateway.routes for host in route.hosts)})
    by_case = by_case and not gateway.ignore_case
    found: dict[tuple[object, ...], dict[str, str]] = {_identity(route): {} for route in gateway.routes}
    numbers = {_identity(route): number for number, route in enumerate(gateway.routes)}
    for host in hosts:
        routes = [*in_order(host, gateway)]
        places: dict[str, list[int]] = {}
        for at, route in enumerate(routes):
            places.setdefault(route.path.rstrip("/"), []).append(at)
        for at, route in enumerate(routes):
            if route.require == "none":
                continue
            whole = f"{route.path}/"  # this path and all its parents, without trailing slashes
            above = [whole[:end] for end, character in enumerate(whole) if character == "/"]
            covering = sorted(other for path in above for other in places.get(path, ()) if other != at)
            if host == ANYWHERE or any(routes[each].hosts for each in (at, *covering)):  # else it is as anywhere
                before = [routes[each] for each in covering if each < at]
                after = [routes[each] for each in covering if each > at]
                ways = _around(route, before, after, host=host, gateway=gateway, numbers=numbers, by_case=by_case)
                found[_identity(route)].update(ways)
    for identity, ways_round in found.items():
        yield from ((numbers[identity], message, hint) for message, hint in ways_round.items())


def _around(
    route: GatewayRoute,
    before: list[GatewayRoute],
    after: list[GatewayRoute],
    *,
    host: str,
    gateway: Gateway,
    numbers: Mapping[tuple[object, ...], int],
    by_case: bool,
) -> Iterator[tuple[str, str]]:
    """Yield the bypasses of a route at a host, by routes that cover its path: those matched before it, and after."""

    def taking(others: list[GatewayRoute], methods: set[str]) -> Iterator[tuple[str, str]]:
        """Yield the methods that other routes match, as text, and each such route with its requirement."""
        for other in others:
            taken = methods.intersection(other.methods or methods)
            methods = methods - taken
            requires_less = other.require != route.require and (other.require == "none" or route.require != "any")
            if taken and requires_less and servers.intersection(gateway.services[other.service].endpoints):
                some = [*(method for method in METHODS if method in taken)]
                listed = ", ".join([*some[:_LISTED], *(["..."] if len(some) > _LISTED else [])])
                yield listed, f"routes[{numbers[_identity(other)]}], which requires {other.require}"

    servers = {*gateway.services[route.service].endpoints}
    methods = {*route.methods} or {*METHODS}
    for _, taker in taking(before, methods):
        yield f"at the host {host}, its requests go to {taker}", "Write hosts there, too: the host decides first."
    for others, taker in taking(after, {*METHODS} - methods):
        yield f"{others} of it goes to {taker}", "Omit methods, or write a route for the others."
    letters = [each for each in after if route.path[len(each.path) :].upper() != route.path[len(each.path) :].lower()]
    for _, taker in taking(letters, methods) if by_case else ():
        message = f"in different letter case, such as {route.path.upper()}, it goes to {taker}"
        yield message, "Write ignore_case: true, or false if the service is case-sensitive as well."


def _identity(route: GatewayRoute) -> tuple[object, ...]:
    return route.path, route.hosts, route.methods
