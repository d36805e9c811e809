"""Ways round a route that requires an identity: requests for what it guards that a route with less takes.

Services may answer HEAD like GET, or read ``/ADMIN`` as ``/admin``, where Envoy does not. Only routes to the same
servers matter: what another service makes of the request is not what is guarded.
"""

from __future__ import annotations

from collections.abc import Iterator

from headgate.gateway.model import ANYWHERE, Gateway, GatewayRoute
from headgate.gateway.routing import in_order
from headgate.policy.forms import METHODS

_LISTED = 3


def bypasses(gateway: Gateway, *, by_case: bool) -> Iterator[tuple[int, str, str]]:
    """Yield the number of a route that can be bypassed, how, and what prevents it.

    Args:
        gateway: whose routes they are.
        by_case: whether other capitals count; not if the file says itself that they make another path.
    """
    hosts = sorted({ANYWHERE, *(host for route in gateway.routes for host in route.hosts)})
    for number, route in enumerate(gateway.routes):
        if route.require == "none":
            continue
        found: dict[str, str] = {}
        for host in hosts:
            routes = [*in_order(host, gateway)]
            if route in routes:
                found.update(_around(route, routes, host, gateway, by_case=by_case and not gateway.ignore_case))
        yield from ((number, message, hint) for message, hint in found.items())


def _around(
    route: GatewayRoute, routes: list[GatewayRoute], host: str, gateway: Gateway, *, by_case: bool
) -> Iterator[tuple[str, str]]:
    """Yield the ways round a route among those of a host, in the order in which they are tried."""
    at = routes.index(route)

    def taking(others: list[GatewayRoute], methods: set[str]) -> Iterator[tuple[str, str]]:
        """Yield the methods that other routes take, as text, and what such a route is and requires."""
        for other in others:
            taken = methods.intersection(other.methods or methods)
            methods = methods - taken
            if taken and _asks_less(other, route) and _is_same_service(other, route, gateway):
                some = [*(method for method in METHODS if method in taken)]
                listed = ", ".join([*some[:_LISTED], *(["..."] if len(some) > _LISTED else [])])
                yield listed, f"routes[{gateway.routes.index(other)}], which requires {other.require}"

    own, covering = {*route.methods} or {*METHODS}, [each for each in routes if _covers(each, route)]
    before = [each for each in covering if routes.index(each) < at]
    after = [each for each in covering if routes.index(each) > at]
    for _, taker in taking(before, own):
        yield f"at the host {host}, its requests go to {taker}", "Write hosts there, too: the host decides first."
    for methods, taker in taking(after, {*METHODS} - own):
        yield f"{methods} of it goes to {taker}", "Leave methods out, or write a route for the others."
    letters = [each for each in after if route.path[len(each.path) :].upper() != route.path[len(each.path) :].lower()]
    for _, taker in taking(letters, own) if by_case else ():
        message = f"in other capitals, such as {route.path.upper()}, it goes to {taker}"
        yield message, "Write ignore_case: true, or false if the service tells them apart, too."


def _covers(other: GatewayRoute, route: GatewayRoute) -> bool:
    return other is not route and f"{route.path}/".startswith(f"{other.path.rstrip('/')}/")


def _asks_less(other: GatewayRoute, route: GatewayRoute) -> bool:
    return other.require != route.require and (other.require == "none" or route.require != "any")


def _is_same_service(one: GatewayRoute, other: GatewayRoute, gateway: Gateway) -> bool:
    first, second = ({*gateway.services[each.service].endpoints} for each in (one, other))
    return not first.isdisjoint(second)
