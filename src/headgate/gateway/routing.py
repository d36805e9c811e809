"""Envoy's routes: which requests go to which service, and what Headgate is told about each of them.

The host decides first: routes that name it come before those with a wildcard, and these before those for any. Among
them the longest path wins, then the one that names the method; the order of the file does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from string import ascii_letters, digits
from typing import Any

from headgate.gateway.model import ANYWHERE, Gateway, GatewayRoute
from headgate.policy.model import METHODS
from headgate.web.headers import EXPOSED

Json = dict[str, Any]
EXTENSION = "type.googleapis.com/envoy.extensions."
CORS, TRAILERS, JWT, AUTHORIZATION, REQUIREMENT, BODY, RATE_LIMIT, COST, ROUTER = (
    f"envoy.filters.http.{name}"
    for name in (
        *(
            "cors",
            "header_mutation",
            "jwt_authn",
            "ext_authz",
            "rbac",
            "buffer",
            "ratelimit",
            "header_to_metadata",
            "router",
        ),
    )
)
"""The names of filters, by which routes say what is different for them."""
ROUTE_TABLE = "gateway"
"""The name of all routes together."""
COST_KEY = "cost"
"""Where the cost that a response tells is kept, in the metadata of `COST`."""
_COST_DIGITS = 9
"""Of a cost that a response tells: more than any limit, and less than where Envoy's numbers end."""
UNDECIDED = "x-envoy-auth-failure-mode-allowed"
"""The header of requests that pass though nobody has decided about them. Clients cannot send it."""
_ASCII = 128
_PATH_KEY = "path"
"""And the path that was decided about."""
_RETRIED = "connect-failure,refused-stream,reset-before-request"
"""What is tried again: none of it has reached a server, so any method may be."""
_UPGRADING: Json = {
    "header": {"key": "connection", "value": "upgrade"},
    "append_action": "OVERWRITE_IF_EXISTS",
}
_USUAL_HEADERS = ("authorization", "content-type")
_HOST = r"(?:[A-Za-z0-9_~-]+(?:\.[A-Za-z0-9_~-]+)*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
"""Two Host lines are one with a comma to Envoy, and either of them to some services. A last dot is gone already."""
_HEX, _TRAIL = "[0-9A-Fa-f]", "%[89ABab][0-9A-Fa-f]"
_ENCODED = (
    *(f"%[2-7]{_HEX}", f"%(?:[Cc][2-9A-Fa-f]|[Dd]{_HEX}){_TRAIL}", f"%[Ee]0%[ABab]{_HEX}{_TRAIL}"),
    *(f"%[Ee][1-9ABCEFabcef]{_TRAIL}{_TRAIL}", f"%[Ee][Dd]%[89]{_HEX}{_TRAIL}"),
    *(f"%[Ff]0%[9ABab]{_HEX}{_TRAIL}{_TRAIL}", f"%[Ff][1-3]{_TRAIL}{_TRAIL}{_TRAIL}"),
    f"%[Ff]4%8{_HEX}{_TRAIL}{_TRAIL}",
)
"""Characters as UTF-8, without the first that control."""
_PATH = rf"(?:[A-Za-z0-9_.~!$&'()*+,=:@/\[\]-]|{'|'.join(_ENCODED)})+(?:\?.*)?"
_AMBIGUOUS = f"[^?]*%(?:2[Ff]|5[Cc]|3[Bb]|7[Ff]|25{_HEX}{_HEX}).*"
"""Of these, what servers read differently. A semicolon is refused as well: only some cut off what follows."""
_AS_THEY_ARE = frozenset(f"{ascii_letters}{digits}_.~/-")
"""Characters that stand in every path as they are when Envoy looks for its route. Others may be encoded or not."""
_NOWHERE: Json = {"match": {"prefix": "/"}, "direct_response": {"status": 404}}
"""The route of all other requests: Envoy does not ask about a request without one, and scanners are limited, too."""
_TOLD = ("user", "apikey", "ip", "tenant", "tier")
"""Entries of the descriptor about a response, whose verified values ext_authz has left under the same names."""


def duration(seconds: float) -> str:
    """Return seconds as Envoy reads them."""
    return f"{seconds:.3f}s"


def route_configuration(gateway: Gateway) -> Json:
    """Return all routes of a gateway."""
    hosts = {ANYWHERE, *(host for route in gateway.routes for host in route.hosts)}
    return {
        "name": ROUTE_TABLE,
        "ignore_port_in_host_matching": True,
        "virtual_hosts": [
            {"name": host, "domains": [host], "routes": [*_routes_of(host, gateway)]} for host in sorted(hosts)
        ],
    }


def redirect_configuration(port: int) -> Json:
    """Return routes that lead to HTTPS, whatever is asked for."""
    action = {"https_redirect": True, "port_redirect": port, "response_code": "PERMANENT_REDIRECT"}
    everywhere = {"match": {"prefix": "/"}, "redirect": action}
    return {"name": "redirect", "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [everywhere]}]}


def _routes_of(host: str, gateway: Gateway) -> Iterator[Json]:
    yield _refusing(":authority", _HOST, unless=True)
    yield _refusing(":path", _PATH, unless=True)
    yield _refusing(":path", _AMBIGUOUS)
    if host == ANYWHERE and any(name[0] == "[" for route in gateway.routes for name in route.hosts):
        yield _refusing(":authority", r"\[.*")  # it may be another spelling of that address
    for route in in_order(host, gateway):
        yield from _entries(route, gateway)
    yield _NOWHERE


def in_order(host: str, gateway: Gateway) -> Iterator[GatewayRoute]:
    """Yield the routes for a host, in the order in which they are tried."""
    found = [(rank, route) for route in gateway.routes if (rank := _nearness(host, route)) is not None]
    for _, route in sorted(found, key=lambda each: (each[0], -len(each[1].path), not each[1].methods)):
        yield route


def _refusing(header: str, pattern: str, *, unless: bool = False) -> Json:
    """Return a route that answers 400 to requests whose header has, or has not, such a value. They are not counted."""
    found = {"name": header, "string_match": {"safe_regex": {"regex": pattern}}, "invert_match": unless}
    kind = f"{EXTENSION}filters.http.ext_authz.v3.ExtAuthzPerRoute"
    return {
        "match": {"prefix": "/", "headers": [found]},
        "direct_response": {"status": 400},
        "typed_per_filter_config": {AUTHORIZATION: {"@type": kind, "disabled": True}},
    }


def _nearness(host: str, route: GatewayRoute) -> int | None:
    """Return how exactly a route is for a host, 0 for exactly; None if it is not."""
    if not route.hosts:
        return 1000
    covering = [each for each in route.hosts if host == each or (each[0] == "*" and host.endswith(each[1:]))]
    return min((len(host) - len(each) + (each != host) for each in covering), default=None)


def _entries(route: GatewayRoute, gateway: Gateway) -> Iterator[Json]:
    """Return a route of Envoy for each method, and one for the questions that browsers ask before."""
    match = _match(route.path, ignore_case=gateway.ignore_case)
    action = _action(route, gateway)
    settings = _settings(route) | _undecided(route, gateway) | _cors(route, gateway)
    if route.websocket or gateway.services[route.service].is_http2:  # a stream ends when both sides have said all
        settings[BODY] = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True}
    entry: Json = {"route": action, "typed_per_filter_config": settings}
    if route.remove_credentials:
        entry["request_headers_to_remove"] = _credentials(gateway)
    if route.websocket:  # Connection goes on only with an upgrade, and could tell the service to forget headers of ours
        entry["request_headers_to_add"] = [_UPGRADING]
    if route.cors and route.methods:
        asked = [_exactly(":method", "OPTIONS"), _filled("origin"), _filled("access-control-request-method")]
        yield {"match": match | {"headers": asked}, **entry}
    for each in route.methods or ("",):
        headers = {"headers": [_exactly(":method", each)]} if each else {}
        yield {"match": match | headers, **entry}


def _match(path: str, *, ignore_case: bool) -> Json:
    """Return what matches a path and all below it, in every spelling that gets so far."""
    if path == "/":
        return {"prefix": "/"}
    if _AS_THEY_ARE.issuperset(path):
        return {"path_separated_prefix": path, "case_sensitive": not ignore_case}
    return {"safe_regex": {"regex": f"{_spelt(path, ignore_case=ignore_case)}(?:/.*)?"}}


def _spelt(text: str, plain: Container[str] = _AS_THEY_ARE, *, ignore_case: bool = False) -> str:
    """Return an expression for all spellings of canonical text, in which all but `plain` characters may be encoded."""
    parts = []
    for part in re.findall("%[0-9A-F]{2}|.", text):
        code = int(part[1:], 16) if part[1:] else ord(part)
        encoded, itself = f"(?i:%{code:02X})", re.escape(chr(code))
        parts.append(itself if part in plain else f"(?:{encoded}|{itself})" if code < _ASCII else encoded)
    return "".join(["(?i)" * ignore_case, *parts])


def _action(route: GatewayRoute, gateway: Gateway) -> Json:
    service = gateway.services[route.service]
    forever = 0.0 if route.websocket else service.timeout
    action: Json = {
        "cluster": service.name,
        "timeout": duration(forever if route.timeout is None else route.timeout),
        "retry_policy": {
            "retry_on": _RETRIED,
            "num_retries": service.retries,
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {"@type": f"{EXTENSION}retry.host.previous_hosts.v3.PreviousHostsPredicate"},
                }
            ],
            "host_selection_retry_max_attempts": 3,
        },
    }
    if not service.retries:
        del action["retry_policy"]
    if route.websocket:
        action["upgrade_configs"] = [{"upgrade_type": "websocket"}]
    if route.rewrite:
        old, new = route.path.rstrip("/"), route.rewrite.rstrip("/")
        pattern = f"^{_spelt(old, ignore_case=gateway.ignore_case)}{'' if old and new else '/*'}"
        action["regex_rewrite"] = {"pattern": {"regex": pattern}, "substitution": new if old and new else f"{new}/"}
    return action


def _settings(route: GatewayRoute) -> Json:
    """Return what Headgate is told about all requests of a route."""
    told = {
        "headgate.require": route.require,
        "headgate.cost": str(route.cost),
        "headgate.service": route.service,
        "headgate.credentials": "remove" if route.remove_credentials else "keep",
        **{f"headgate.attribute.{name}": value for name, value in sorted(route.attributes.items())},
    }
    kind = f"{EXTENSION}filters.http.ext_authz.v3.ExtAuthzPerRoute"
    settings: Json = {AUTHORIZATION: {"@type": kind, "check_settings": {"context_extensions": told}}}
    if route.cost_from_response:
        settings[COST] = _cost_rule(route.cost_from_response)
        kind = f"{EXTENSION}filters.http.ratelimit.v3.RateLimitPerRoute"
        settings[RATE_LIMIT] = {"@type": kind, "rate_limits": [_after_response(route)]}
    return settings


def _undecided(route: GatewayRoute, gateway: Gateway) -> Json:
    """Return what refuses requests that were not decided and may not pass then.

    That is where the route requires an identity, for none is verified; and where the service would get a credential:
    one that only a decision service elsewhere knows, or a key in the query, which Envoy can only take out if it is
    answered so (its other ways to change a query decode it: ``a=%26b`` would become two parameters).
    """
    parameter = (gateway.api_keys or {}).get("query", "")
    if route.require != "none" or (route.remove_credentials and gateway.decisions.remote):
        which: Json = {"any": True}
    elif route.remove_credentials and parameter:
        key = rf"[^?]*\?(?:.*&)?{_spelt(parameter, ())}(?:[=&].*)?"
        which = {"header": {"name": ":path", "string_match": {"safe_regex": {"regex": key}}}}
    else:
        return {}
    undecided = {"permissions": [which], "principals": [{"header": {"name": UNDECIDED, "present_match": True}}]}
    rules = {"action": "DENY", "policies": {"undecided": undecided}}
    return {REQUIREMENT: {"@type": f"{EXTENSION}filters.http.rbac.v3.RBACPerRoute", "rbac": {"rules": rules}}}


def _credentials(gateway: Gateway) -> list[str]:
    """Return the headers that prove who callers are, as far as they are known here."""
    keys = [] if gateway.api_keys is None else [gateway.api_keys.get("header", "x-api-key").lower()]
    return [*keys, *(["authorization"] if gateway.issuers else [])]


def _cost_rule(header: str) -> Json:
    """Return what takes a header out of responses, and keeps the number that it begins with for `_after_response`.

    Envoy alone would read ``nan`` and ``inf`` as numbers, which count as more than any limit. Of requests, the path is
    kept as it came, without its query: of what is longer than 8 KiB Envoy keeps nothing.
    """
    digits = {"pattern": {"regex": f"^([0-9]{{0,{_COST_DIGITS}}}).*$"}, "substitution": r"\1"}
    target = {"metadata_namespace": COST, "key": COST_KEY, "type": "NUMBER", "regex_value_rewrite": digits}
    path = {"pattern": {"regex": r"^([^?]*).*$"}, "substitution": r"\1"}
    asked = {"metadata_namespace": COST, "key": _PATH_KEY, "type": "STRING", "regex_value_rewrite": path}
    return {
        "@type": f"{EXTENSION}filters.http.header_to_metadata.v3.Config",
        "request_rules": [{"header": ":path", "on_header_present": asked}],
        "response_rules": [{"header": header, "on_header_present": target, "remove": True}],
    }


def _after_response(route: GatewayRoute) -> Json:
    """Return what is counted when a response is complete: by whom, as verified before, and how much.

    The number of hits is told beside the actions: within them it would have no effect.
    """
    who: Iterable[Json] = (
        {
            "metadata": {
                "descriptor_key": name,
                "metadata_key": {"key": AUTHORIZATION, "path": [{"key": name}]},
                "skip_if_absent": True,
            }
        }
        for name in _TOLD
    )
    kept = {"key": COST, "path": [{"key": _PATH_KEY}]}  # for the header may be rewritten by then
    what: Iterable[Json] = (
        {"metadata": {"descriptor_key": "path", "metadata_key": kept}},
        {"request_headers": {"header_name": ":method", "descriptor_key": "method"}},
    )
    known: Iterable[Json] = (
        {"generic_key": {"descriptor_key": name, "descriptor_value": value}}
        for name, value in sorted({**route.attributes, "service": route.service}.items())
    )
    return {
        "actions": [*who, *what, *known],
        "hits_addend": {"format": f"%DYNAMIC_METADATA({COST}:{COST_KEY})%"},
        "apply_on_stream_done": True,
    }


def _cors(route: GatewayRoute, gateway: Gateway) -> Json:
    if route.cors is None:
        return {}
    cors = route.cors
    key = (gateway.api_keys or {}).get("header", "x-api-key")
    methods = route.methods or [method for method in METHODS if method not in {"CONNECT", "TRACE"}]
    return {
        CORS: {
            "@type": f"{EXTENSION}filters.http.cors.v3.CorsPolicy",
            "allow_origin_string_match": [
                {"safe_regex": {"regex": ".*"}} if origin == "*" else {"exact": origin} for origin in cors.origins
            ],
            "allow_methods": ", ".join(methods),
            "allow_headers": ", ".join(dict.fromkeys((*_USUAL_HEADERS, key, *cors.headers))),
            "expose_headers": EXPOSED,
            "max_age": str(int(cors.max_age)),
            "allow_credentials": cors.credentials,
            "forward_not_matching_preflights": False,
        }
    }


def _exactly(header: str, value: str) -> Json:
    return {"name": header, "string_match": {"exact": value}}


def _filled(header: str) -> Json:
    """Return what matches a header with a value; without one, it is not a preflight to Envoy."""
    return {"name": header, "string_match": {"safe_regex": {"regex": ".+"}}}
