"""Envoy's routes: which requests go to which service, with the settings of each for Headgate.

The host decides first: routes that name it come before those with a wildcard, and these before those for any. Among
them the longest path wins, then the one that names the method; the order of the file does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from string import ascii_letters, digits
from typing import Any

from headgate.gateway.model import ANYWHERE, Gateway, GatewayRoute
from headgate.policy.model import METHODS
from headgate.web.headers import EXPOSED

Json = dict[str, Any]
EXTENSION = "type.googleapis.com/envoy.extensions."
_NAMES = "cors header_mutation jwt_authn ext_authz rbac buffer ratelimit header_to_metadata router"
CORS, TRAILERS, JWT, AUTHORIZATION, REQUIREMENT, BODY, RATE_LIMIT, COST, ROUTER = (
    f"envoy.filters.http.{name}" for name in _NAMES.split()
)
"""The names of filters, under which routes have settings for them."""
ROUTE_TABLE = "gateway"
COST_KEY = "cost"
"""The key of a response's cost in the metadata of `COST`."""
_COST_DIGITS = 9
"""Digits of a response's cost: more than any limit has, and within Envoy's numbers."""
UNDECIDED = "x-envoy-auth-failure-mode-allowed"
"""The header of requests that pass without a decision. Clients cannot send it."""
_PATH_KEY = "path"
"""The key of the path that was decided about."""
_RETRIED = "connect-failure,refused-stream,reset-before-request"
"""Failures that are retried, whatever the method: the request has not reached a server."""
_UPGRADING: Json = {"header": {"key": "connection", "value": "upgrade"}, "append_action": "OVERWRITE_IF_EXISTS"}
_HOST = r"(?:[A-Za-z0-9_~-]+(?:\.[A-Za-z0-9_~-]+)*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
"""Envoy joins two Host lines with a comma; some services read either of them. A trailing dot is already removed."""
_HEX, _TRAIL = "[0-9A-Fa-f]", "%[89ABab][0-9A-Fa-f]"
_ENCODED = (
    *(f"%[2-7]{_HEX}", f"%(?:[Cc][2-9A-Fa-f]|[Dd]{_HEX}){_TRAIL}", f"%[Ee]0%[ABab]{_HEX}{_TRAIL}"),
    *(f"%[Ee][1-9ABCEFabcef]{_TRAIL}{_TRAIL}", f"%[Ee][Dd]%[89]{_HEX}{_TRAIL}"),
    *(f"%[Ff]0%[9ABab]{_HEX}{_TRAIL}{_TRAIL}", f"%[Ff][1-3]{_TRAIL}{_TRAIL}{_TRAIL}"),
    f"%[Ff]4%8{_HEX}{_TRAIL}{_TRAIL}",
)
"""Encoded characters of UTF-8, without ASCII control characters."""
_PATH = rf"(?:[A-Za-z0-9_.~!$&'()*+,=:@/\[\]-]|{'|'.join(_ENCODED)})+(?:\?.*)?"
_AMBIGUOUS = f"[^?]*%(?:2[Ff]|5[Cc]|3[Bb]|7[Ff]|25{_HEX}{_HEX}).*"
"""Encoded characters that servers interpret differently, and the semicolon, which some read as the end of the path."""
_AS_THEY_ARE = frozenset(f"{ascii_letters}{digits}_.~/-")
"""Characters that are never encoded when Envoy looks for a route. Others may be."""
_NOWHERE: Json = {"match": {"prefix": "/"}, "direct_response": {"status": 404}}
"""The route of all other requests. Without a route, Envoy does not call Headgate, and scanners would not be limited."""
_CALLER = ("user", "apikey", "ip", "tenant", "tier")
"""Entries of the descriptor of a response, with the verified values that ext_authz left under the same names."""


def typed_config(kind: str, **settings: Any) -> Json:
    """Return the settings of one of Envoy's extensions, with their type."""
    return {"@type": f"{EXTENSION}{kind}", **settings}


def extension(name: str, kind: str, **settings: Any) -> Json:
    return {"name": name, "typed_config": typed_config(kind, **settings)}


def duration(seconds: float) -> str:
    return f"{seconds:.3f}s"


def route_configuration(gateway: Gateway) -> Json:
    hosts = {ANYWHERE, *(host for route in gateway.routes for host in route.hosts)}
    return {
        "name": ROUTE_TABLE,
        "ignore_port_in_host_matching": True,
        "virtual_hosts": [
            {"name": host, "domains": [host], "routes": [*_routes_of(host, gateway)]} for host in sorted(hosts)
        ],
    }


def redirect_configuration(port: int) -> Json:
    action = {"https_redirect": True, "port_redirect": port, "response_code": "PERMANENT_REDIRECT"}
    everywhere = {"match": {"prefix": "/"}, "redirect": action}
    return {"name": "redirect", "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [everywhere]}]}


def _routes_of(host: str, gateway: Gateway) -> Iterator[Json]:
    yield _refusing(":authority", _HOST, unless=True)
    yield _refusing(":path", _PATH, unless=True)
    yield _refusing(":path", _AMBIGUOUS)
    if host == ANYWHERE and any(name[0] == "[" for route in gateway.routes for name in route.hosts):
        yield _refusing(":authority", r"\[.*")  # perhaps another spelling of that address
    for route in in_order(host, gateway):
        yield from _entries(route, gateway)
    yield _NOWHERE


def in_order(host: str, gateway: Gateway) -> Iterator[GatewayRoute]:
    """Yield the routes for a host, in the order of matching."""
    ranked = []
    for route in gateway.routes:
        covering = [each for each in route.hosts if host == each or (each[0] == "*" and host.endswith(each[1:]))]
        if covering or not route.hosts:
            rank = min((len(host) - len(each) + (each != host) for each in covering), default=1000)
            ranked.append((rank, -len(route.path), not route.methods, route))
    for *_, route in sorted(ranked, key=lambda each: each[:3]):
        yield route


def _refusing(header: str, pattern: str, *, unless: bool = False) -> Json:
    """Return a route that answers 400 if a header matches, or with `unless`, if it does not; nothing is counted."""
    found = {"name": header, "string_match": {"safe_regex": {"regex": pattern}}, "invert_match": unless}
    undecided = typed_config("filters.http.ext_authz.v3.ExtAuthzPerRoute", disabled=True)
    return {
        "match": {"prefix": "/", "headers": [found]},
        "direct_response": {"status": 400},
        "typed_per_filter_config": {AUTHORIZATION: undecided},
    }


def _entries(route: GatewayRoute, gateway: Gateway) -> Iterator[Json]:
    """Return a route of Envoy for each method, and one for preflight requests."""
    match = _match(route.path, ignore_case=gateway.ignore_case)
    action = _action(route, gateway)
    settings = _settings(route) | _refuse_undecided(route, gateway) | _cors(route, gateway)
    if route.websocket or gateway.services[route.service].is_http2:  # its body may have no end
        settings[BODY] = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True}
    entry: Json = {"route": action, "typed_per_filter_config": settings}
    if route.remove_credentials:
        keys = [] if gateway.api_keys is None else [gateway.api_keys.get("header", "x-api-key").lower()]
        entry["request_headers_to_remove"] = [*keys, *(["authorization"] if gateway.issuers else [])]
    if route.websocket:  # a client's Connection could name headers of ours, to be removed
        entry["request_headers_to_add"] = [_UPGRADING]
    if route.cors and route.methods:
        preflight = [_exactly(":method", "OPTIONS"), _present("origin"), _present("access-control-request-method")]
        yield {"match": match | {"headers": preflight}, **entry}
    for each in route.methods or ("",):
        headers = {"headers": [_exactly(":method", each)]} if each else {}
        yield {"match": match | headers, **entry}


def _match(path: str, *, ignore_case: bool) -> Json:
    """Return the match of a path and all below it, in every spelling that is not refused before."""
    if path == "/":
        return {"prefix": "/"}
    if _AS_THEY_ARE.issuperset(path):
        return {"path_separated_prefix": path, "case_sensitive": not ignore_case}
    return {"safe_regex": {"regex": f"{_spelt(path, ignore_case=ignore_case)}(?:/.*)?"}}


def _spelt(text: str, plain: Container[str] = _AS_THEY_ARE, *, ignore_case: bool = False) -> str:
    """Return an expression for all spellings of canonical text; all but `plain` characters may be encoded."""
    parts = []
    for part in re.findall("%[0-9A-F]{2}|.", text):
        code = int(part[1:], 16) if part[1:] else ord(part)
        encoded, itself = f"(?i:%{code:02X})", re.escape(chr(code))
        parts.append(itself if part in plain else f"(?:{encoded}|{itself})" if code < 128 else encoded)
    return "".join(["(?i)" * ignore_case, *parts])


def _action(route: GatewayRoute, gateway: Gateway) -> Json:
    service = gateway.services[route.service]
    forever = 0.0 if route.websocket else service.timeout
    action: Json = {"cluster": service.name, "timeout": duration(forever if route.timeout is None else route.timeout)}
    if service.retries:
        other_host = extension(
            "envoy.retry_host_predicates.previous_hosts", "retry.host.previous_hosts.v3.PreviousHostsPredicate"
        )
        action["retry_policy"] = {
            "retry_on": _RETRIED,
            "num_retries": service.retries,
            "retry_host_predicate": [other_host],
            "host_selection_retry_max_attempts": 3,
        }
    if route.websocket:
        action["upgrade_configs"] = [{"upgrade_type": "websocket"}]
    if route.rewrite:
        old, new = route.path.rstrip("/"), route.rewrite.rstrip("/")
        pattern = f"^{_spelt(old, ignore_case=gateway.ignore_case)}{'' if old and new else '/*'}"
        action["regex_rewrite"] = {"pattern": {"regex": pattern}, "substitution": new if old and new else f"{new}/"}
    return action


def _settings(route: GatewayRoute) -> Json:
    context = {
        "headgate.require": route.require,
        "headgate.cost": str(route.cost),
        "headgate.service": route.service,
        "headgate.credentials": "remove" if route.remove_credentials else "keep",
        **{f"headgate.attribute.{name}": value for name, value in sorted(route.attributes.items())},
    }
    check = {"context_extensions": context}
    settings = {AUTHORIZATION: typed_config("filters.http.ext_authz.v3.ExtAuthzPerRoute", check_settings=check)}
    if route.cost_from_response:
        settings[COST] = _cost_rule(route.cost_from_response)
        limits = [_after_response(route)]
        settings[RATE_LIMIT] = typed_config("filters.http.ratelimit.v3.RateLimitPerRoute", rate_limits=limits)
    return settings


def _refuse_undecided(route: GatewayRoute, gateway: Gateway) -> Json:
    """Return the settings that refuse requests without a decision, if they must not pass.

    That is if the route requires an identity, since none was verified; and if the service would get a credential: one
    that only a decision service elsewhere knows, or a key in the query, which Envoy removes only with a decision (its
    other ways to change a query decode it: ``a=%26b`` would become two parameters).
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
    return {REQUIREMENT: typed_config("filters.http.rbac.v3.RBACPerRoute", rbac={"rules": rules})}


def _cost_rule(header: str) -> Json:
    """Return the settings that remove a header from responses, and keep the number it begins with as metadata.

    Envoy alone would read ``nan`` and ``inf`` as numbers, which exceed any limit. The path of the request is kept as it
    was sent, without its query: of a value longer than 8 KiB Envoy keeps nothing.
    """
    cost = {"pattern": {"regex": f"^([0-9]{{0,{_COST_DIGITS}}}).*$"}, "substitution": r"\1"}
    path = {"pattern": {"regex": r"^([^?]*).*$"}, "substitution": r"\1"}
    in_response = {"metadata_namespace": COST, "key": COST_KEY, "type": "NUMBER", "regex_value_rewrite": cost}
    in_request = {"metadata_namespace": COST, "key": _PATH_KEY, "type": "STRING", "regex_value_rewrite": path}
    return typed_config(
        "filters.http.header_to_metadata.v3.Config",
        request_rules=[{"header": ":path", "on_header_present": in_request}],
        response_rules=[{"header": header, "on_header_present": in_response, "remove": True}],
    )


def _after_response(route: GatewayRoute) -> Json:
    """Return the descriptor that is counted when a response is complete: the verified caller, and the cost.

    The number of hits is beside the actions: within them it would have no effect.
    """
    callers = [
        {
            "descriptor_key": name,
            "metadata_key": {"key": AUTHORIZATION, "path": [{"key": name}]},
            "skip_if_absent": True,
        }
        for name in _CALLER
    ]
    path = {"key": COST, "path": [{"key": _PATH_KEY}]}  # the header may be rewritten by then
    constants = sorted({**route.attributes, "service": route.service}.items())
    return {
        "actions": [
            *({"metadata": caller} for caller in callers),
            {"metadata": {"descriptor_key": "path", "metadata_key": path}},
            {"request_headers": {"header_name": ":method", "descriptor_key": "method"}},
            *({"generic_key": {"descriptor_key": name, "descriptor_value": value}} for name, value in constants),
        ],
        "hits_addend": {"format": f"%DYNAMIC_METADATA({COST}:{COST_KEY})%"},
        "apply_on_stream_done": True,
    }


def _cors(route: GatewayRoute, gateway: Gateway) -> Json:
    if route.cors is None:
        return {}
    key = (gateway.api_keys or {}).get("header", "x-api-key")
    methods = route.methods or [method for method in METHODS if method not in {"CONNECT", "TRACE"}]
    policy = typed_config(
        "filters.http.cors.v3.CorsPolicy",
        allow_origin_string_match=[
            {"safe_regex": {"regex": ".*"}} if origin == "*" else {"exact": origin} for origin in route.cors.origins
        ],
        allow_methods=", ".join(methods),
        allow_headers=", ".join(dict.fromkeys(("authorization", "content-type", key, *route.cors.headers))),
        expose_headers=EXPOSED,
        max_age=str(int(route.cors.max_age)),
        allow_credentials=route.cors.credentials,
        forward_not_matching_preflights=False,
    )
    return {CORS: policy}


def _exactly(header: str, value: str) -> Json:
    return {"name": header, "string_match": {"exact": value}}


def _present(header: str) -> Json:
    """Return a match of a header that is not empty: otherwise, Envoy does not see a preflight."""
    return {"name": header, "string_match": {"safe_regex": {"regex": ".+"}}}
