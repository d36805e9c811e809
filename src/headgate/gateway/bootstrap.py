"""A gateway as Envoy's configuration: listeners, clusters, routes and secrets, as plain data.

A running Envoy reads them from files of a folder, one for each kind (xDS over the filesystem), and follows those files.
All of them in one piece, `Resources.whole`, are for Envoy's own validation, and for people.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headgate.gateway.filters import HEADGATE, SERVER, connection_manager
from headgate.gateway.model import (
    Certificate,
    Gateway,
    GatewayListener,
    HealthCheck,
    UpstreamService,
    UpstreamTls,
)
from headgate.gateway.routing import (
    EXTENSION,
    ROUTE_TABLE,
    Json,
    duration,
    redirect_configuration,
    route_configuration,
)
from headgate.gateway.scalars import UpstreamEndpoint

CLUSTERS, SECRETS, ROUTES, LISTENERS = "clusters", "secrets", "routes", "listeners"
"""The kinds of resources, and the files that they are in, without ``.json``."""
_TYPES = {
    CLUSTERS: "envoy.config.cluster.v3.Cluster",
    SECRETS: f"{EXTENSION.partition('/')[2]}transport_sockets.tls.v3.Secret",
    ROUTES: "envoy.config.route.v3.RouteConfiguration",
    LISTENERS: "envoy.config.listener.v3.Listener",
}
_TLS = f"{EXTENSION}transport_sockets.tls.v3."
_HTTP = f"{EXTENSION}upstreams.http.v3.HttpProtocolOptions"
_BUFFER = 1_048_576
"""Bytes of one request, or response, that Envoy holds when the other side is slow."""
_CIRCUITS = {"max_connections": 10_000, "max_pending_requests": 10_000, "max_requests": 10_000, "max_retries": 100}
_RUNTIME = {"re2.max_program_size.error_level": 100_000}
"""Instead of 100: the expressions are ours, and one for all headers is faster than many."""
HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True)
class Resources:
    """All that Envoy is told about a gateway, by kind."""

    clusters: tuple[Json, ...]
    secrets: tuple[Json, ...]
    routes: tuple[Json, ...]
    listeners: tuple[Json, ...]

    def file(self, kind: str) -> bytes:
        """Return the file of a kind, as Envoy reads it. Its version is made of what is in it."""
        return discovery(kind, getattr(self, kind))

    def with_clusters(self, others: Iterable[Json]) -> Sequence[Json]:
        """Return the clusters, and those of others that are not among them."""
        names = {cluster["name"] for cluster in self.clusters}
        return [*self.clusters, *(each for each in others if each["name"] not in names)]

    def whole(self, gateway: Gateway, *, secret: bool) -> Json:
        """Return a configuration of its own, for `envoy --mode validate`; with `secret`, one that may be shown."""
        kept = {each["name"]: each for each in self.secrets}
        listeners = [_inlined(listener, self.routes[0], kept) for listener in self.listeners]
        resources = {"clusters": [*self.clusters], "listeners": listeners}
        whole = {**_process(gateway), "static_resources": resources}
        return _without_keys(whole) if secret else whole


def discovery(kind: str, resources: Iterable[Json]) -> bytes:
    """Return resources of one kind as a file that Envoy follows."""
    typed = [{"@type": f"type.googleapis.com/{_TYPES[kind]}", **resource} for resource in resources]
    content = msgspec.json.encode(typed)
    version = hashlib.sha256(content).hexdigest()[:16]
    return msgspec.json.encode({"version_info": version, "resources": msgspec.Raw(content)})


def version_of(file: bytes) -> str:
    """Return the version of such a file."""
    return str(msgspec.json.decode(file)["version_info"])


def bootstrap(gateway: Gateway, folder: str) -> Json:
    """Return what Envoy starts with, which never changes while it runs: where the rest is."""
    return {
        **_process(gateway),
        "node": {"id": SERVER, "cluster": SERVER},
        "admin": {"address": {"pipe": {"path": f"{folder}/admin.sock", "mode": 0o600}}},
        "dynamic_resources": {
            "cds_config": followed(folder, CLUSTERS),
            "lds_config": followed(folder, LISTENERS),
        },
    }


def followed(folder: str, kind: str) -> Json:
    """Return where resources of a kind are."""
    return {"path_config_source": {"path": f"{folder}/{kind}.json"}, "resource_api_version": "V3"}


def resources_of(gateway: Gateway, folder: str) -> Resources:
    """Return what Envoy is told, with its files in a folder, and the sockets of the decision service, too."""
    clusters = [_service(service) for service in gateway.services.values()]
    clusters += [_issuer(f"@{each.name}", each.jwks_url, each.authorities) for each in gateway.issuers if each.jwks_url]
    clusters.append(_headgate(gateway, folder))
    secrets = [
        {"name": _secret_name(listener, index), "tls_certificate": _certificate(each)}
        for listener in gateway.listeners
        for index, each in enumerate(listener.certificates)
    ]
    listeners = [_listener(gateway, each, folder) for each in gateway.listeners]
    return Resources(tuple(clusters), tuple(secrets), (route_configuration(gateway),), tuple(listeners))


def decision_sockets(folder: str, workers: int, kind: str) -> list[str]:
    """Return the Unix sockets of the decision service, one for each worker: Envoy spreads requests over them."""
    return [f"{folder}/{kind}-{slot}.sock" for slot in range(workers)]


def _process(gateway: Gateway) -> Json:
    """Return what is true of the process as a whole."""
    monitor = f"{EXTENSION}resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig"
    return {
        "layered_runtime": {"layers": [{"name": "static", "static_layer": _RUNTIME}]},
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {"@type": monitor, "max_active_downstream_connections": gateway.max_connections},
                }
            ]
        },
    }


_EJECTION: Json = {
    "split_external_local_origin_errors": True,
    "consecutive_local_origin_failure": 2,
    "enforcing_consecutive_local_origin_failure": 100,
    "failure_percentage_threshold": 50,
    "failure_percentage_minimum_hosts": 1,
    "failure_percentage_request_volume": 1,
    "enforcing_failure_percentage_local_origin": 100,
    "interval": "1s",
    "base_ejection_time": "10s",
    "max_ejection_percent": 50,
    **dict.fromkeys(
        [f"enforcing_{kind}" for kind in ("consecutive_5xx", "consecutive_gateway_failure", "success_rate")], 0
    ),
    "enforcing_local_origin_success_rate": 0,
}
"""A server that lets two requests in a row time out, or cannot be reached, gets none for a while. So does one for which
at least half of what happened in a second was a failure: each request that finds a connection counts as a success, so
that requests one after the other never fail in a row. What a server answers is its own affair, errors included."""


def _listener(gateway: Gateway, listener: GatewayListener, folder: str) -> Json:
    if listener.redirect_to:
        routes: Json = {"route_config": redirect_configuration(listener.redirect_to)}
    else:
        routes = {"rds": {"config_source": followed(folder, ROUTES), "route_config_name": ROUTE_TABLE}}
    manager = connection_manager(gateway, routes, filters=not listener.redirect_to)
    chain: Json = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    if listener.certificates:
        chain["transport_socket"] = _server_tls(listener, folder)
    return {
        "name": listener.name,
        "address": _address(UpstreamEndpoint(listener.address, listener.port)),
        "per_connection_buffer_limit_bytes": _BUFFER,
        "filter_chains": [chain],
    }


def _server_tls(listener: GatewayListener, folder: str) -> Json:
    secrets = [
        {"name": _secret_name(listener, index), "sds_config": followed(folder, SECRETS)}
        for index in range(len(listener.certificates))
    ]
    common = {
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "tls_certificate_sds_secret_configs": secrets,
    }
    return _transport("DownstreamTlsContext", {"common_tls_context": common})


def _service(service: UpstreamService) -> Json:
    cluster = _cluster(service.name, service.endpoints, is_http2=service.is_http2, tls=service.tls)
    cluster["connect_timeout"] = duration(service.connect_timeout)
    cluster["outlier_detection"] = _EJECTION
    if service.health_check:
        host = service.tls.name if service.tls else service.endpoints[0].host
        cluster["health_checks"] = [_health(service.health_check, host, is_http2=service.is_http2)]
        cluster["ignore_health_on_host_removal"] = True
    return cluster


def _headgate(gateway: Gateway, folder: str) -> Json:
    decisions = gateway.decisions
    if decisions.remote:
        return _cluster(HEADGATE, [decisions.remote], is_http2=True, tls=decisions.remote_tls)
    sockets = [{"pipe": {"path": path}} for path in decision_sockets(folder, decisions.workers, "grpc")]
    return _cluster_of(HEADGATE, "STATIC", sockets, is_http2=True)


def _issuer(name: str, url: str, authorities: str) -> Json:
    parts = urlsplit(url)
    is_encrypted = parts.scheme == "https"
    endpoint = UpstreamEndpoint(parts.hostname or "", parts.port or (443 if is_encrypted else 80))
    tls = UpstreamTls(authorities, endpoint.host) if is_encrypted else None
    return _cluster(name, [endpoint], is_http2=False, tls=tls)


def _cluster(name: str, endpoints: Iterable[UpstreamEndpoint], *, is_http2: bool, tls: UpstreamTls | None) -> Json:
    found = [*endpoints]
    kind = "STATIC" if all(each.is_address for each in found) else "STRICT_DNS"
    cluster = _cluster_of(name, kind, [_address(each) for each in found], is_http2=is_http2)
    if kind == "STRICT_DNS":  # by default, Envoy takes addresses of IPv6 alone where a name has both, as localhost has
        cluster["dns_lookup_family"] = "V4_PREFERRED"
    if tls:
        cluster["transport_socket"] = _client_tls(tls, is_http2=is_http2)
    return cluster


def _cluster_of(name: str, kind: str, addresses: Iterable[Json], *, is_http2: bool) -> Json:
    protocol: Json = {"http2_protocol_options": {}} if is_http2 else {"http_protocol_options": {}}
    options = {"@type": _HTTP, "explicit_http_config": protocol}
    return {
        "name": name,
        "type": kind,
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": _BUFFER,
        "circuit_breakers": {"thresholds": [_CIRCUITS]},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}} for address in addresses]}],
        },
    }


def _client_tls(tls: UpstreamTls, *, is_http2: bool) -> Json:
    is_address = UpstreamEndpoint(tls.name, 0).is_address
    kind = "IP_ADDRESS" if is_address else "DNS"
    validation = {
        "trusted_ca": {"inline_string": tls.authorities},
        "match_typed_subject_alt_names": [{"san_type": kind, "matcher": {"exact": tls.name}}],
    }
    context: Json = {
        "common_tls_context": {
            "alpn_protocols": ["h2" if is_http2 else "http/1.1"],
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "validation_context": validation,
        }
    }
    if tls.certificate:
        context["common_tls_context"]["tls_certificates"] = [_certificate(tls.certificate)]
    if not is_address:
        context["sni"] = tls.name
    return _transport("UpstreamTlsContext", context)


def _certificate(certificate: Certificate) -> Json:
    return {
        "certificate_chain": {"inline_string": certificate.chain},
        "private_key": {"inline_string": certificate.key},
    }


def _transport(kind: str, context: Json) -> Json:
    return {"name": "envoy.transport_sockets.tls", "typed_config": {"@type": f"{_TLS}{kind}", **context}}


def _health(check: HealthCheck, host: str, *, is_http2: bool) -> Json:
    return {
        "interval": duration(check.interval),
        "timeout": duration(check.timeout),
        "healthy_threshold": check.healthy_after,
        "unhealthy_threshold": check.unhealthy_after,
        "http_health_check": {
            # else Envoy sends the name that the service has here, which it may never have heard of
            "host": f"[{host}]" if ":" in host else host,
            "path": check.path,
            "codec_client_type": "HTTP2" if is_http2 else "HTTP1",
        },
    }


def _address(endpoint: UpstreamEndpoint) -> Json:
    both = {"ipv4_compat": True} if endpoint.host == "::" else {}  # all addresses: else it would be those of IPv6
    return {"socket_address": {"address": endpoint.host, "port_value": endpoint.port, **both}}


def _secret_name(listener: GatewayListener, index: int) -> str:
    return f"{listener.name}/{index}"


def _inlined(listener: Json, routes: Json, secrets: Mapping[str, Json]) -> Json:
    """Return a listener with its routes and secrets in it, rather than in files."""
    (chain,) = listener["filter_chains"]
    (manager,) = chain["filters"]
    typed = {name: value for name, value in manager["typed_config"].items() if name != "rds"}
    if "rds" in manager["typed_config"]:
        typed["route_config"] = routes
    whole = {**chain, "filters": [{**manager, "typed_config": typed}]}
    if "transport_socket" in chain:
        context = dict(chain["transport_socket"]["typed_config"])
        common = dict(context["common_tls_context"])
        named = common.pop("tls_certificate_sds_secret_configs")
        common["tls_certificates"] = [secrets[each["name"]]["tls_certificate"] for each in named]
        context["common_tls_context"] = common
        whole["transport_socket"] = {**chain["transport_socket"], "typed_config": context}
    return {**listener, "filter_chains": [whole]}


def _without_keys(value: Any) -> Any:
    """Return data without private keys, secrets that are shared with issuers, and the key of a caller."""
    if isinstance(value, dict):
        inline = {"inline_string": HIDDEN}
        hidden = {"initial_metadata": [], "local_jwks": inline, "private_key": inline}
        return {name: hidden.get(name, _without_keys(inner)) for name, inner in value.items()}
    return [_without_keys(inner) for inner in value] if isinstance(value, list) else value
