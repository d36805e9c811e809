"""Envoy's HTTP filters: accepted requests, their callers and decisions, and Envoy's own responses.

::

    limits on requests ── cors ── jwt_authn ── ext_authz ── [ratelimit, after the response] ── router
    (headers, sizes)              tokens       Headgate: identity, decision

Headers of ours, and those of proxies about addresses, are removed from requests before any filter reads them.
"""

from __future__ import annotations

from typing import Any

from headgate.gateway.model import Gateway, TokenIssuer
from headgate.gateway.routing import (
    AUTHORIZATION,
    BODY,
    CORS,
    COST,
    COST_KEY,
    JWT,
    RATE_LIMIT,
    REQUIREMENT,
    ROUTER,
    TRAILERS,
    UNDECIDED,
    Json,
    duration,
    extension,
    typed_config,
)
from headgate.server.authz.answers import UPSTREAM
from headgate.server.authz.requests import CLIENT_ADDRESS
from headgate.server.wire.grpc.calls import StatusCode
from headgate.web import problem

HEADGATE = "@headgate"
"""The cluster that decides. No service can have such a name."""
DOMAIN = "gateway"
"""The domain of the descriptors that are counted after responses."""
SERVER = "headgate"
"""The header Server of responses."""
_SIGNS = r"[!-/:-@\[-`{-~]"
"""Characters that some servers treat as a hyphen in a name: they convert each to an underscore."""
FORBIDDEN = """
X-Headgate-* X-Envoy-* X-HTTP-Method X-HTTP-Method-* X-Method-Override X-HTTP-Host-Override X-HTTP-Path-Override
X-HTTP-URL-Override X-Middleware-* Proxy
""".split()  # noqa: SIM905  easier to read
"""Headers removed from all requests: ours, and those with which some services see another request."""
OF_PROXIES = """
Forwarded-* X-Forward-* X-Forwarded-* X-Original-* X-Originating-* X-Rewrite-* X-Real-* X-Client-* X-Remote-*
X-Cluster-* X-ProxyUser-* X-Host X-Host-* X-Server-* X-Port X-Scheme X-URL-Scheme X-Proto X-Protocol X-SSL-* SSL-*
X-HTTPS Front-End-HTTPS X-Script-* X-Path-Info X-Request-URI X-Sendfile-* X-Accel-* X-Custom-IP-* X-TLS-* Remote-*
X-Authenticated-* X-Auth-Request-* X-WebAuth-* X-User-IP X-Source-IP X-IP X-IP-* Client-IP True-Client-* HTTP-Client-IP
Proxy-Client-IP Fly-Client-IP WL-Proxy-* Cdn-Src-IP CF-* Fastly-* Akamai-* X-Akamai-* X-Vercel-* X-Azure-*
X-MS-Client-Principal-* X-ARR-* X-AppEngine-* X-Goog-Authenticated-* X-Goog-IAP-* X-Amzn-OIDC-* X-Amz-CF-* X-NF-Client-*
X-Coming-From Client-Cert-* X-MS-Token-* X-Consumer-* X-Anonymous-Consumer X-Credential-* X-Authentik-* X-Pomerium-*
X-Kubernetes-* Tailscale-* OIDC-* X-Matched-Path X-Invoke-* X-Now-*
""".split()  # noqa: SIM905  easier to read
"""Headers that name the client, or the original request; removed unless a trusted proxy set them."""
_CLIENT = CLIENT_ADDRESS.decode()
_NO_ADDRESS = {"address_prefix": "255.255.255.255", "prefix_len": 32}
"""No client is internal: by default, Envoy trusts headers from private networks."""
_HEADER_SECONDS, _KEEP_ALIVE_SECONDS = 10.0, 60.0
_MOST_HEADERS = 96
_ROOM_KB = 24
"""KiB of headers that Headgate may add for the service."""
SIZE, LENGTH = "envoy.filters.http.fault", "headgate.content_length"
_DETAILS = {
    400: "The request is malformed.",
    403: "This is not allowed.",
    404: "Nothing is served at this address.",
    405: "This method is not served at this address.",
    408: "The request took too long to arrive.",
    413: "The request is too large.",
    414: "The address is too long.",
    426: "Another version of the protocol is needed.",
    431: "The headers of the request are too large.",
    500: "The gateway failed.",
    501: "A part of the request is not supported.",
    502: "The service returned an invalid response.",
    503: "The service cannot be reached at the moment.",
    504: "The service did not respond in time.",
}
"""The details of Envoy's own responses, which disclose nothing about services."""
_AS_IT_IS: Json = {"text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"}, "content_type": problem.CONTENT_TYPE}
"""The body that was already made, as a problem document."""
_LOGGED = {
    "time": "%START_TIME%",
    "method": "%REQUEST_HEADER(:METHOD)%",
    "host": "%REQUEST_HEADER(:AUTHORITY)%",
    "path": "%PATH(NQ)%",
    "protocol": "%PROTOCOL%",
    "status": "%RESPONSE_CODE%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "flags": "%RESPONSE_FLAGS%",
    "duration_ms": "%DURATION%",
    "bytes_received": "%BYTES_RECEIVED%",
    "bytes_sent": "%BYTES_SENT%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "request_id": "%REQUEST_HEADER(X-REQUEST-ID)%",
    "service": "%UPSTREAM_CLUSTER%",
    "upstream": "%UPSTREAM_HOST%",
    "rule": f"%DYNAMIC_METADATA({AUTHORIZATION}:rule_id)%",
    **{
        name: f"%DYNAMIC_METADATA({AUTHORIZATION}:{name})%"
        for name in ("outcome", "state", "apikey", "degraded", "reason", "shadow_denied")
    },
    "response_cost": f"%DYNAMIC_METADATA({COST}:{COST_KEY})%",
}
"""The access log, without queries: they may contain API keys."""


def connection_manager(gateway: Gateway, routes: Json, *, filters: bool = True) -> Json:
    """Return the HTTP filter of a listener.

    Its routes are ``{"rds": ...}`` or ``{"route_config": ...}``. Without filters, Headgate does not decide: a redirect.
    """
    router = _filter(ROUTER, "router.v3.Router", suppress_envoy_headers=True)
    manager = {
        "stat_prefix": "gateway" if filters else "redirect",
        **routes,
        "http_filters": [*(_filters(gateway) if filters else ()), router],
        "server_name": SERVER,
        "use_remote_address": True,
        "xff_num_trusted_hops": gateway.trusted_hops,
        "internal_address_config": {"cidr_ranges": [_NO_ADDRESS]},
        "early_header_mutation_extensions": [
            extension(
                "envoy.http.early_header_mutation.header_mutation",
                "http.early_header_mutation.header_mutation.v3.HeaderMutation",
                mutations=_removals(gateway),
            )
        ],
        "always_set_request_id_in_response": True,
        "strip_trailing_host_dot": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        "max_request_headers_kb": gateway.max_header_kb + (_ROOM_KB if filters else 0),
        "common_http_protocol_options": {
            "headers_with_underscores_action": "DROP_HEADER",
            "idle_timeout": duration(_KEEP_ALIVE_SECONDS),
            "max_headers_count": _MOST_HEADERS + len(UPSTREAM),  # with those that Headgate adds for the service
        },
        "request_headers_timeout": duration(_HEADER_SECONDS),
        "stream_idle_timeout": duration(gateway.idle_timeout),
        "http2_protocol_options": {
            "max_concurrent_streams": 100,
            "initial_stream_window_size": 262_144,
            "initial_connection_window_size": 1_048_576,
            "allow_connect": True,
        },
        "upgrade_configs": [{"upgrade_type": "websocket", "enabled": False}],
        "local_reply_config": {"mappers": _mappers()},
    }
    if gateway.access_log:
        log_format = {"json_format": _LOGGED, "omit_empty_values": True}
        kind = "access_loggers.stream.v3.StdoutAccessLog"
        manager["access_log"] = [extension("envoy.access_loggers.stdout", kind, log_format=log_format)]
    return typed_config("filters.network.http_connection_manager.v3.HttpConnectionManager", **manager)


def _filters(gateway: Gateway) -> list[Json]:
    filters = [*_size_limits(gateway), _filter(CORS, "cors.v3.Cors")]
    if any(service.is_http2 for service in gateway.services.values()):  # others get no trailers
        mutations = {"request_trailers_mutations": _removals(gateway)}
        filters.append(_filter(TRAILERS, "header_mutation.v3.HeaderMutation", mutations=mutations))
    if gateway.issuers:
        filters.append(_filter(JWT, "jwt_authn.v3.JwtAuthentication", **_tokens(gateway)))
    filters.append(_filter(AUTHORIZATION, "ext_authz.v3.ExtAuthz", **_authorization(gateway)))
    if gateway.on_headgate_failure == "allow":
        filters.append(_filter(REQUIREMENT, "rbac.v3.RBAC"))
    # a large body of unannounced length is buffered to its end, and gets 413
    announced = _call("_[_]", _of_request("headers"), {"const_expr": {"string_value": "content-length"}})
    is_announced = _call("_!=_", announced, {"const_expr": {"string_value": ""}})  # a missing header is an error: false
    buffer = _filter(BODY, "buffer.v3.Buffer", max_request_bytes=gateway.max_body_mb << 20)
    filters.append(_unless(is_announced, buffer))
    if any(route.cost_from_response for route in gateway.routes):
        service = {"grpc_service": _grpc_service(gateway), "transport_api_version": "V3"}
        timeout = duration(gateway.decisions.timeout)
        kind = "ratelimit.v3.RateLimit"
        filters.append(_filter(RATE_LIMIT, kind, domain=DOMAIN, timeout=timeout, rate_limit_service=service))
        filters.append(_filter(COST, "header_to_metadata.v3.Config"))
    return filters


def _size_limits(gateway: Gateway) -> list[Json]:
    """Return filters that answer 431 and 413 before anything is counted; Envoy could not add our headers to more.

    Each is Envoy's fault filter, skipped if the headers, including those that Envoy has added, or the announced length
    are within the limits.
    """

    def number(value: int) -> Json:
        return {"const_expr": {"int64_value": value}}

    count = _call("_<=_", _call("size", _of_request("headers")), number(_MOST_HEADERS))
    size = _call("_<=_", _of_request("total_size"), number(gateway.max_header_kb * 1024))
    length = _call("_<=_", _of_request("size"), number(gateway.max_body_mb << 20))
    limits = ((SIZE, 431, _call("_&&_", count, size)), (LENGTH, 413, length))
    return [
        _unless(
            is_within,
            _filter(name, "fault.v3.HTTPFault", abort={"http_status": status, "percentage": {"numerator": 100}}),
        )
        for name, status, is_within in limits
    ]


def _unless(condition: Json, filter_: Json) -> Json:
    """Return a filter that is skipped if a condition holds."""
    xds = "type.googleapis.com/xds.type.matcher.v3."
    matcher = {"@type": f"{xds}CelMatcher", "expr_match": {"cel_expr_parsed": {"expr": condition}}}
    holds = {
        "input": {"name": "request", "typed_config": {"@type": f"{xds}HttpAttributesCelMatchInput"}},
        "custom_match": {"name": "expression", "typed_config": matcher},
    }
    skip = {"action": extension("skip", "filters.common.matcher.action.v3.SkipFilter")}
    matchers = [{"predicate": {"single_predicate": holds}, "on_match": skip}]
    return extension(
        filter_["name"],
        "common.matching.v3.ExtensionWithMatcher",
        extension_config=filter_,
        xds_matcher={"matcher_list": {"matchers": matchers}},
    )


def _call(function: str, *arguments: Json) -> Json:
    return {"call_expr": {"function": function, "args": [*arguments]}}


def _of_request(name: str) -> Json:
    return {"select_expr": {"operand": {"ident_expr": {"name": "request"}}, "field": name}}


def _filter(name: str, kind: str, **settings: Any) -> Json:
    return extension(name, f"filters.http.{kind}", **settings)


def _grpc_service(gateway: Gateway) -> Json:
    """Return the decision service, and the metadata of every call."""
    metadata = []
    if gateway.decisions.caller_key:
        metadata.append({"key": "authorization", "value": f"Bearer {gateway.decisions.caller_key}"})
    if gateway.trusted_hops:  # else the client is the peer, which Envoy sends anyway
        metadata.append({"key": _CLIENT, "value": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"})
    return {
        "envoy_grpc": {"cluster_name": HEADGATE, "authority": SERVER},
        "timeout": duration(gateway.decisions.timeout),
        "initial_metadata": metadata,
    }


def _authorization(gateway: Gateway) -> Json:
    settings: Json = {
        "transport_api_version": "V3",
        "grpc_service": _grpc_service(gateway),
        "encode_raw_headers": True,
        "failure_mode_allow": gateway.on_headgate_failure == "allow",
        "failure_mode_allow_header_add": True,
        "status_on_error": {"code": "ServiceUnavailable"},
        "metadata_context_namespaces": [JWT],
        "stat_prefix": "headgate",
    }
    if not gateway.decisions.remote:  # one elsewhere may know credentials that this file does not name
        # the path too, as it came: else Envoy shows "!" for bytes that are not UTF-8, over HTTP/2
        names = (":path", "authorization", (gateway.api_keys or {}).get("header", "x-api-key").lower())
        ours = {"safe_regex": {"regex": "x[-_]headgate[-_].*"}}
        settings["allowed_headers"] = {"patterns": [*({"exact": name} for name in dict.fromkeys(names)), ours]}
    return settings


def _tokens(gateway: Gateway) -> Json:
    """Return the issuers of tokens. Invalid tokens are left to Headgate, which counts them by address and refuses them.

    If requests may pass without a decision, Envoy refuses invalid tokens.
    """
    named = [{"provider_name": each.name} for each in gateway.issuers]
    others = "allow_missing" if gateway.on_headgate_failure == "allow" else "allow_missing_or_failed"
    return {
        "providers": {each.name: _provider(each) for each in gateway.issuers},
        "rules": [{"match": {"prefix": "/"}, "requires": {"requires_any": {"requirements": [*named, {others: {}}]}}}],
        "bypass_cors_preflight": True,
    }


def _provider(issuer: TokenIssuer) -> Json:
    provider: Json = {
        "from_headers": [{"name": "Authorization", "value_prefix": f"{scheme} "} for scheme in ("Bearer", "bearer")],
        "forward": True,
        "payload_in_metadata": issuer.name,
        "clock_skew_seconds": issuer.leeway,
        "require_expiration": True,
    }
    if issuer.issuer:
        provider["issuer"] = issuer.issuer
    if issuer.audience:
        provider["audiences"] = [*issuer.audience]
    if issuer.jwks:
        provider["local_jwks"] = {"inline_string": issuer.jwks}
    else:
        uri = {"uri": issuer.jwks_url, "cluster": f"@{issuer.name}", "timeout": "5s"}
        provider["remote_jwks"] = {
            "http_uri": uri,
            "cache_duration": "60s",  # Envoy does not fetch them for a key that it does not know
            "async_fetch": {"fast_listener": True},
            "retry_policy": {"num_retries": 2},
        }
    return provider


def _removals(gateway: Gateway) -> list[Json]:
    names = FORBIDDEN if gateway.trusted_hops else FORBIDDEN + OF_PROXIES
    return [{"remove_on_match": {"key_matcher": {"safe_regex": {"regex": "|".join(map(_spelt, names))}}}}]


def _spelt(name: str) -> str:
    """Return a regular expression for a header's spellings; ``-*`` at the end of a name matches any ending."""
    whole = name.lower().removesuffix("-*").replace("-", f"{_SIGNS}*")
    return f"{whole}(?:{_SIGNS}.*)?" if name.endswith("-*") else whole


def _mappers() -> list[Json]:
    """Return how Envoy's own responses become problem documents; those of Headgate already are."""
    kept = []
    for outcome in ("denied", "error"):
        value = {"string_match": {"exact": outcome}}
        matcher = {"filter": AUTHORIZATION, "path": [{"key": "outcome"}], "value": value}
        decided = {"metadata_filter": {"matcher": matcher, "match_if_key_not_found": False}}
        kept.append({"filter": decided, "body_format_override": _AS_IT_IS})
    present = {"header_filter": {"header": {"name": UNDECIDED, "present_match": True}}}
    undecided = {
        **_mapper(503, _DETAILS[503]),
        "filter": {"and_filter": {"filters": [_status(403), present]}},
        "status_code": 503,
    }
    document = {"status": 401, "title": "Unauthorized", "detail": "%LOCAL_REPLY_BODY%"}
    format_401 = {"json_format": document, "content_type": problem.CONTENT_TYPE}
    unverified = {"filter": _status(401), "body_format_override": format_401}
    others = [_mapper(status, detail) for status, detail in _DETAILS.items()]
    kind = {"safe_regex": {"regex": r"application/grpc(\+.*)?"}}
    calls = {"header_filter": {"header": {"name": "content-type", "string_match": kind}}}
    code = {"key": "grpc-status", "value": str(StatusCode.RESOURCE_EXHAUSTED.value)}  # Envoy's would be UNAVAILABLE
    exhausted = {
        "filter": {"and_filter": {"filters": [_status(429), calls]}},
        "headers_to_add": [{"header": code, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
    }
    return [exhausted, *kept, undecided, unverified, *others]


def _mapper(status: int, detail: str) -> Json:
    body = problem.of_status(status, detail).encode().decode()
    return {"filter": _status(status), "body": {"inline_string": body}, "body_format_override": _AS_IT_IS}


def _status(status: int) -> Json:
    number = {"default_value": status, "runtime_key": f"headgate.status_{status}"}
    return {"status_code_filter": {"comparison": {"op": "EQ", "value": number}}}
