"""Ways round a route that requires an identity: requests for what it guards that a route with less takes.

Services may answer HEAD like GET, or read ``/ADMIN`` as ``/admin``, where Envoy does not. Only routes to the same
servers matter: what another service makes of the request is not what is guarded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headgate.gateway.model import ANYWHERE, Gateway, GatewayRoute
from headgate.gateway.routing import in_order
from headgate.policy.model import METHODS

_LISTED = 3


def bypasses(gateway: Gateway, *, by_case: bool) -> Iterator[tuple[int, str, str]]:
    """Yield the number of a route that can be bypassed, how, and what prevents it.

    Args:
        gateway: whose routes they are.
        by_case: whether other capitals count; not if the file says itself that they make another path.
    """
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
            covering = sorted(other for path in _above(route.path) for other in places.get(path, ()) if other != at)
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
    """Yield the ways round a route at a host, by the routes that cover its path: those tried before it, and after."""

    def taking(others: list[GatewayRoute], methods: set[str]) -> Iterator[tuple[str, str]]:
        """Yield the methods that other routes take, as text, and what such a route is and requires."""
        for other in others:
            taken = methods.intersection(other.methods or methods)
            methods = methods - taken
            if taken and _asks_less(other, route) and _is_same_service(other, route, gateway):
                some = [*(method for method in METHODS if method in taken)]
                listed = ", ".join([*some[:_LISTED], *(["..."] if len(some) > _LISTED else [])])
                yield listed, f"routes[{numbers[_identity(other)]}], which requires {other.require}"

    own = {*route.methods} or {*METHODS}
    for _, taker in taking(before, own):
        yield f"at the host {host}, its requests go to {taker}", "Write hosts there, too: the host decides first."
    for methods, taker in taking(after, {*METHODS} - own):
        yield f"{methods} of it goes to {taker}", "Leave methods out, or write a route for the others."
    letters = [each for each in after if route.path[len(each.path) :].upper() != route.path[len(each.path) :].lower()]
    for _, taker in taking(letters, own) if by_case else ():
        message = f"in other capitals, such as {route.path.upper()}, it goes to {taker}"
        yield message, "Write ignore_case: true, or false if the service tells them apart, too."


def _identity(route: GatewayRoute) -> tuple[object, ...]:
    """Return what no two routes have in common."""
    return route.path, route.hosts, route.methods


def _above(path: str) -> list[str]:
    """Return a path and all that it is below, without slashes at their ends."""
    whole = f"{path}/"
    return [whole[:at] for at, character in enumerate(whole) if character == "/"]


def _asks_less(other: GatewayRoute, route: GatewayRoute) -> bool:
    return other.require != route.require and (other.require == "none" or route.require != "any")


def _is_same_service(one: GatewayRoute, other: GatewayRoute, gateway: Gateway) -> bool:
    first, second = ({*gateway.services[each.service].endpoints} for each in (one, other))
    return not first.isdisjoint(second)
