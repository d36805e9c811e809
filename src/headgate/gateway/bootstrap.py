"""A gateway as Envoy's configuration: listeners, clusters, routes and secrets, as plain data.

A running Envoy watches one file for each kind of resource (xDS over the filesystem). `Resources.whole` is a single
configuration, for Envoy's validation and for readers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from headgate.gateway.filters import HEADGATE, SERVER, connection_manager
from headgate.gateway.model import Certificate, Gateway, GatewayListener, UpstreamService, UpstreamTls
from headgate.gateway.routing import (
    ROUTE_TABLE,
    Json,
    duration,
    extension,
    redirect_configuration,
    route_configuration,
    typed_config,
)
from headgate.gateway.scalars import UpstreamEndpoint

CLUSTERS, SECRETS, ROUTES, LISTENERS = "clusters", "secrets", "routes", "listeners"
"""The kinds of resources, and the names of their files, without ``.json``."""
_TYPES = {
    CLUSTERS: "envoy.config.cluster.v3.Cluster",
    SECRETS: "envoy.extensions.transport_sockets.tls.v3.Secret",
    ROUTES: "envoy.config.route.v3.RouteConfiguration",
    LISTENERS: "envoy.config.listener.v3.Listener",
}
_TLS_PARAMETERS = {"tls_minimum_protocol_version": "TLSv1_2"}
_BUFFER = 1_048_576
"""Bytes of a request or a response that Envoy buffers for a slow peer."""
_CIRCUITS = {"max_connections": 10_000, "max_pending_requests": 10_000, "max_requests": 10_000, "max_retries": 100}
_RUNTIME = {"re2.max_program_size.error_level": 100_000}
"""Instead of 100: our expressions are trusted, and one for all headers is faster than many."""
HIDDEN = "(hidden)"


@dataclass(frozen=True, slots=True)
class Resources:
    gateway: Gateway
    clusters: tuple[Json, ...]
    secrets: tuple[Json, ...]
    routes: tuple[Json, ...]
    listeners: tuple[Json, ...]

    def file(self, kind: str) -> bytes:
        """Return the file of a kind. Its version is a digest of its content."""
        return discovery(kind, getattr(self, kind))

    def with_clusters(self, others: Iterable[Json]) -> Sequence[Json]:
        """Return the clusters, and those of others with different names."""
        names = {cluster["name"] for cluster in self.clusters}
        return [*self.clusters, *(each for each in others if each["name"] not in names)]

    def whole(self, *, secret: bool) -> Json:
        """Return a complete configuration, for `envoy --mode validate`; with `secret`, without secrets."""
        kept = {each["name"]: each for each in self.secrets}
        listeners = [_inline(listener, self.routes[0], kept) for listener in self.listeners]
        resources = {"clusters": [*self.clusters], "listeners": listeners}
        whole = {**_process(self.gateway), "static_resources": resources}
        return _without_keys(whole) if secret else whole


def discovery(kind: str, resources: Iterable[Json]) -> bytes:
    """Return the file of a kind of resources, for Envoy to watch."""
    typed = [{"@type": f"type.googleapis.com/{_TYPES[kind]}", **resource} for resource in resources]
    content = msgspec.json.encode(typed)
    version = hashlib.sha256(content).hexdigest()[:16]
    return msgspec.json.encode({"version_info": version, "resources": msgspec.Raw(content)})


def bootstrap(gateway: Gateway, folder: str) -> Json:
    """Return the configuration that Envoy starts with: the files with all the rest. It does not change."""
    return {
        **_process(gateway),
        "node": {"id": SERVER, "cluster": SERVER},
        "admin": {"address": {"pipe": {"path": f"{folder}/admin.sock", "mode": 0o600}}},
        "dynamic_resources": {"cds_config": _watch(folder, CLUSTERS), "lds_config": _watch(folder, LISTENERS)},
    }


def _watch(folder: str, kind: str) -> Json:
    return {"path_config_source": {"path": f"{folder}/{kind}.json"}, "resource_api_version": "V3"}


def resources_of(gateway: Gateway, folder: str) -> Resources:
    """Return Envoy's configuration, with a folder for its files and the sockets of the decision service."""
    clusters = [_service(service) for service in gateway.services.values()]
    clusters += [_issuer(f"@{each.name}", each.jwks_url, each.authorities) for each in gateway.issuers if each.jwks_url]
    clusters.append(_headgate(gateway, folder))
    secrets = [
        {"name": _secret_name(listener, index), "tls_certificate": _certificate(each)}
        for listener in gateway.listeners
        for index, each in enumerate(listener.certificates)
    ]
    listeners = [_listener(gateway, each, folder) for each in gateway.listeners]
    return Resources(gateway, tuple(clusters), tuple(secrets), (route_configuration(gateway),), tuple(listeners))


def decision_sockets(folder: str, workers: int, kind: str) -> list[str]:
    """Return the Unix sockets of the decision service, one for each worker, for Envoy to balance."""
    return [f"{folder}/{kind}-{slot}.sock" for slot in range(workers)]


def _process(gateway: Gateway) -> Json:
    connections = extension(
        "envoy.resource_monitors.global_downstream_max_connections",
        "resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
        max_active_downstream_connections=gateway.max_connections,
    )
    return {
        "layered_runtime": {"layers": [{"name": "static", "static_layer": _RUNTIME}]},
        "overload_manager": {"resource_monitors": [connections]},
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
    "enforcing_consecutive_5xx": 0,
    "enforcing_consecutive_gateway_failure": 0,
    "enforcing_success_rate": 0,
    "enforcing_local_origin_success_rate": 0,
}
"""A server is ejected for a while after two requests in a row that timed out or found no connection, or if at least
half of all events of a second were failures: each connection counts as a success, so that sequential requests never
fail in a row. Error responses do not count."""


def _listener(gateway: Gateway, listener: GatewayListener, folder: str) -> Json:
    if listener.redirect_to:
        routes: Json = {"route_config": redirect_configuration(listener.redirect_to)}
    else:
        routes = {"rds": {"config_source": _watch(folder, ROUTES), "route_config_name": ROUTE_TABLE}}
    manager = connection_manager(gateway, routes, filters=not listener.redirect_to)
    chain: Json = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    if listener.certificates:
        names = [_secret_name(listener, index) for index in range(len(listener.certificates))]
        common = {
            "alpn_protocols": ["h2", "http/1.1"],
            "tls_params": _TLS_PARAMETERS,
            "tls_certificate_sds_secret_configs": [
                {"name": name, "sds_config": _watch(folder, SECRETS)} for name in names
            ],
        }
        chain["transport_socket"] = _tls("DownstreamTlsContext", common_tls_context=common)
    return {
        "name": listener.name,
        "address": _address(UpstreamEndpoint(listener.address, listener.port)),
        "per_connection_buffer_limit_bytes": _BUFFER,
        "filter_chains": [chain],
    }


def _service(service: UpstreamService) -> Json:
    cluster = _cluster(service.name, service.endpoints, is_http2=service.is_http2, tls=service.tls)
    cluster["connect_timeout"] = duration(service.connect_timeout)
    cluster["outlier_detection"] = _EJECTION
    if check := service.health_check:
        host = service.tls.name if service.tls else service.endpoints[0].host
        request = {
            "host": f"[{host}]" if ":" in host else host,  # Envoy's default is our name of the service
            "path": check.path,
            "codec_client_type": "HTTP2" if service.is_http2 else "HTTP1",
        }
        cluster["health_checks"] = [
            {
                "interval": duration(check.interval),
                "timeout": duration(check.timeout),
                "healthy_threshold": check.healthy_after,
                "unhealthy_threshold": check.unhealthy_after,
                "http_health_check": request,
            }
        ]
        cluster["ignore_health_on_host_removal"] = True
    return cluster


def _headgate(gateway: Gateway, folder: str) -> Json:
    decisions = gateway.decisions
    if decisions.remote:
        return _cluster(HEADGATE, [decisions.remote], is_http2=True, tls=decisions.remote_tls)
    return _cluster(HEADGATE, decision_sockets(folder, decisions.workers, "grpc"), is_http2=True)


def _issuer(name: str, url: str, authorities: str) -> Json:
    parts = urlsplit(url)
    is_encrypted = parts.scheme == "https"
    endpoint = UpstreamEndpoint(parts.hostname or "", parts.port or (443 if is_encrypted else 80))
    tls = UpstreamTls(authorities, endpoint.host) if is_encrypted else None
    return _cluster(name, [endpoint], is_http2=False, tls=tls)


def _cluster(
    name: str, servers: Sequence[UpstreamEndpoint | str], *, is_http2: bool, tls: UpstreamTls | None = None
) -> Json:
    """Return a cluster of servers, each an endpoint or the path of a Unix socket."""
    protocol: Json = {"http2_protocol_options": {}} if is_http2 else {"http_protocol_options": {}}
    options = typed_config("upstreams.http.v3.HttpProtocolOptions", explicit_http_config=protocol)
    cluster: Json = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "per_connection_buffer_limit_bytes": _BUFFER,
        "circuit_breakers": {"thresholds": [_CIRCUITS]},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": _address(each)}} for each in servers]}],
        },
    }
    if not all(isinstance(each, str) or each.is_address for each in servers):
        # by default, Envoy takes only the IPv6 addresses of a name such as localhost
        cluster |= {"type": "STRICT_DNS", "dns_lookup_family": "V4_PREFERRED"}
    if tls:
        cluster["transport_socket"] = _client_tls(tls, is_http2=is_http2)
    return cluster


def _client_tls(tls: UpstreamTls, *, is_http2: bool) -> Json:
    is_address = UpstreamEndpoint(tls.name, 0).is_address
    san = {"san_type": "IP_ADDRESS" if is_address else "DNS", "matcher": {"exact": tls.name}}
    trusted = {"inline_string": tls.authorities}
    common: Json = {
        "alpn_protocols": ["h2" if is_http2 else "http/1.1"],
        "tls_params": _TLS_PARAMETERS,
        "validation_context": {"trusted_ca": trusted, "match_typed_subject_alt_names": [san]},
    }
    if tls.certificate:
        common["tls_certificates"] = [_certificate(tls.certificate)]
    name = {} if is_address else {"sni": tls.name}
    return _tls("UpstreamTlsContext", common_tls_context=common, **name)


def _certificate(certificate: Certificate) -> Json:
    return {
        "certificate_chain": {"inline_string": certificate.chain},
        "private_key": {"inline_string": certificate.key},
    }


def _tls(kind: str, **context: Any) -> Json:
    return extension("envoy.transport_sockets.tls", f"transport_sockets.tls.v3.{kind}", **context)


def _address(server: UpstreamEndpoint | str) -> Json:
    if isinstance(server, str):
        return {"pipe": {"path": server}}
    both = {"ipv4_compat": True} if server.host == "::" else {}  # the addresses of IPv4, too
    return {"socket_address": {"address": server.host, "port_value": server.port, **both}}


def _secret_name(listener: GatewayListener, index: int) -> str:
    return f"{listener.name}/{index}"


def _inline(listener: Json, routes: Json, secrets: Mapping[str, Json]) -> Json:
    """Return a listener that includes its routes and secrets."""
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
    """Return data without private keys, secrets of issuers, and the caller key."""
    if isinstance(value, dict):
        inline = {"inline_string": HIDDEN}
        hidden = {"initial_metadata": [], "local_jwks": inline, "private_key": inline}
        return {name: hidden.get(name, _without_keys(inner)) for name, inner in value.items()}
    return [_without_keys(inner) for inner in value] if isinstance(value, list) else value
