"""The settings of a decision service, checked as a whole before anything starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from headgate.core.errors import InvalidQuota, UsageError
from headgate.core.mode import Mode
from headgate.core.numbers import short
from headgate.core.quota import Quota
from headgate.stores.breaker import LONGEST_PAUSE_US, PAUSE_US, THRESHOLD
from headgate.web.headers import RESET_FORMATS

if TYPE_CHECKING:  # a supervisor does not load the engine
    from headgate.engine.base import StoreOptions

RLS_SECONDS, API_SECONDS = 0.015, 0.1
"""How long a decision waits for a store on the network, if its address has no timeout: Envoy gives up after 20 ms;
other callers can send their own."""
STORE_SECONDS = 1.0
"""The longest wait for a reply, after which the connection is given up, if the address has no timeout."""
START_SECONDS = 0.25
"""How long a node waits for its store before it serves, unless the address has a longer timeout."""
PROXY_HEADERS = ("either", "original", "forwarded")
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_WORKERS = 256
_PORTS = (0, 65_535)
_SHORT, _LONG = (0.0, 60.0), (0.0, 3600.0)
KEYS_OF_DATABASE = "database"
"""The value of `caller_keys` for keys of the admin plane with the role check; those of a file are an addition."""


class InvalidSetting(UsageError):
    """A setting with an invalid value; the message begins with the setting's name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


def _option(
    default: Any, metavar: str, about: str, accepted: Iterable[Any] = (), *, group: str = "", is_secret: bool = False
) -> Any:
    """Declare a setting and its command-line option.

    `accepted` are its possible values; of a number, the least and the greatest. `group` is the heading that it begins
    in the help. A secret may contain a password, and is not shown.
    """
    metadata = {"metavar": metavar, "about": about, "accepted": tuple(accepted), "group": group}
    return field(default=default, repr=not is_secret, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a service. An empty file or folder is unset. Raises InvalidSetting."""

    rules: str = _option("", "FILE", "the rules file; or use a database", group="rules and state")
    database: str = _option(
        "",
        "URL",
        "the database of the rules: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE; "
        "without --rules and --envoy-config: headgate.db in the working folder",
        is_secret=True,
    )
    data_dir: str = _option("", "DIR", "the folder of the last valid rules of a database; default: in the user's home")
    store: str = _option(
        "memory",
        "ADDRESS",
        "the address of the store: memory, redis://HOST:6379/0, rediss://, redis+sentinel://, redis+cluster://; "
        f"without a timeout in the address, a store on the network has {RLS_SECONDS * 1000:g} ms for Envoy's requests "
        f"and {API_SECONDS * 1000:g} ms for others",
        is_secret=True,
    )
    on_store_failure: str = _option(
        Mode.LOCAL, "MODE", f"the mode while the store is unavailable, for rules without one: {', '.join(Mode)}", Mode
    )
    cache_peeks: float = _option(0.05, "SECONDS", "how long the result of a peek is reused; 0 for never", _SHORT)
    cache_denials: float = _option(
        1.0, "SECONDS", "how long a refusal is reused, at most until the request would pass; 0 for never", _SHORT
    )
    breaker_failures: int = _option(
        THRESHOLD, "N", "the number of consecutive failed calls after which the store counts as down", (1, 1_000_000)
    )
    breaker_pause: float = _option(
        PAUSE_US / 1_000_000,
        "SECONDS",
        "the pause before the store is tried again; each failed attempt doubles it, up to 2 s",
        (0.001, 60.0),
    )
    nodes: int = _option(
        0,
        "N",
        "the number of services that share the limits in the mode local, including this one; 0 counts them",
        (0, 10_000),
    )
    enforcement: bool = _option(True, "ON", "enforce the limits; off only counts and reports: on or off")

    host: str = _option("127.0.0.1", "HOST", "the address to listen on; 0.0.0.0 or :: for all", group="listening")
    http_port: int = _option(8080, "PORT", "the port for HTTP/1.1 and HTTP/2; 0 selects a free port", _PORTS)
    grpc_port: int = _option(8081, "PORT", "the port for gRPC, including Envoy's calls; 0 selects a free port", _PORTS)
    admin_host: str = _option(
        "127.0.0.1", "HOST", "the address of the admin plane; addresses other than loopback need TLS"
    )
    admin_port: int = _option(8082, "PORT", "the port of the admin plane; 0 selects a free port", _PORTS)
    admin_insecure: bool = _option(
        False, "ON", "allow an admin plane without TLS, behind a proxy that encrypts: on or off"
    )
    grpc_reflection: bool = _option(True, "ON", "list the gRPC services by reflection: on or off")
    http_docs: bool = _option(True, "ON", "serve the reference of the HTTP API at /docs: on or off")
    tls_cert: str = _option("", "FILE", "the certificate chain (PEM), for TLS on both ports")
    tls_key: str = _option("", "FILE", "its private key (PEM)")
    client_ca: str = _option("", "FILE", "the authorities (PEM) of client certificates, which are then required")

    envoy_config: str = _option(
        "", "DIR", "the folder with files of envoyproxy/ratelimit; the rules decide all other domains", group="Envoy"
    )
    envoy_merge_domains: bool = _option(False, "ON", "allow several of these files for one domain: on or off")
    envoy_shadow: bool = _option(False, "ON", "only count and report the limits of these files: on or off")
    envoy_count_refused: bool = _option(False, "ON", "count refused hits against the limit: on or off")
    envoy_trust_tier: bool = _option(False, "ON", "use the tier entry of a descriptor as the tier: on or off")
    envoy_headers: bool = _option(True, "ON", "send Envoy's clients the headers of their limits: on or off")
    envoy_metadata: bool = _option(
        False, "ON", "send dynamic metadata with the request and the metadata of admitted descriptors: on or off"
    )

    deny_status: int = _option(
        429,
        "STATUS",
        "the status of refusals by forward authentication; nginx needs 401 or 403",
        (400, 599),
        group="requests and responses",
    )
    trusted_proxies: tuple[str, ...] = _option(
        (), "NETWORKS", "the proxies that may use forward authentication: 10.0.0.0/8,192.0.2.7; default: this machine"
    )
    reset_format: str = _option(
        "epoch",
        "FORM",
        "the format of X-RateLimit-Reset: epoch (seconds since 1970) or seconds (from now)",
        RESET_FORMATS,
    )
    identity: str = _option(
        "", "FILE", "the file that configures the identification of clients: API keys, tokens (JWT), addresses"
    )
    proxy_headers: str = _option(
        "either",
        "KIND",
        f"the headers that proxies write, X-Original-* or X-Forwarded-*: {', '.join(PROXY_HEADERS)}",
        PROXY_HEADERS,
    )
    deprecations: str = _option("", "FILE", "the file of deprecated paths of the HTTP APIs, which responses announce")
    client_timestamps: str = _option(
        "check",
        "MODE",
        "check refuses timestamps that differ too much from the service's clock: check or ignore",
        ("check", "ignore"),
    )

    workers: int = _option(
        1,
        "N",
        "the number of processes that share the ports; more than one needs a store on the network",
        (1, MAX_WORKERS),
        group="processes",
    )
    drain_delay: float = _option(
        5.0,
        "SECONDS",
        "how long health checks fail after SIGTERM while requests are served; 0 treats SIGTERM like SIGINT",
        _LONG,
    )
    drain_seconds: float = _option(25.0, "SECONDS", "how long requests in progress may take after that", _LONG)

    max_checks_per_second: int = _option(
        100_000,
        "N",
        "the ceiling of checks over all workers; further checks are refused with 503; 0 for no limit",
        (0, 10_000_000),
        group="self-protection",
    )
    max_in_flight: int = _option(
        10_000, "N", "the maximum number of requests in progress, over all workers", (1, 1_000_000)
    )
    max_connections: int = _option(
        10_000, "N", "the maximum number of open connections, over all workers", (1, 1_000_000)
    )
    admin_reads: str = _option(
        "1000/minute", "QUOTA", "the rate at which a key of the admin plane may read, on all nodes together"
    )
    admin_writes: str = _option(
        "100/minute", "QUOTA", "the rate at which a key of the admin plane may write, on all nodes together"
    )
    caller_keys: str = _option(
        "", "FILE", "the file of caller keys, one per line: NAME and the key's SHA-256; or database"
    )

    audit_days: int = _option(
        90, "DAYS", "how long the audit trail of a database is kept", (1, 36_500), group="logs and traces"
    )
    log_format: str = _option("text", "FORMAT", f"the format of the log: {', '.join(LOG_FORMATS)}", LOG_FORMATS)
    log_level: str = _option("info", "LEVEL", f"the lowest level in the log: {', '.join(LOG_LEVELS)}", LOG_LEVELS)
    log_denials: int = _option(
        10, "N", "the maximum number of log lines per second for the refusals of one rule; 0 for none", (0, 1_000_000)
    )
    log_principals: str = _option(
        "digest", "FORM", "the form of callers in the log and in hot keys: digest or plain", ("digest", "plain")
    )
    log_access: bool = _option(False, "ON", "log every request: on or off")
    tracing: bool = _option(False, "ON", "send a span for every request to OTEL_EXPORTER_OTLP_ENDPOINT: on or off")

    consumers: str = field(default="", metadata={"accepted": ()})
    """A folder with keys of consumers that another process updates: no option; for a gateway."""

    def __post_init__(self) -> None:
        for each in fields(self):
            _check(each.name, getattr(self, each.name), each.metadata["accepted"])
        self._check_quotas()
        if self.http_port and self.http_port == self.grpc_port:
            raise InvalidSetting("grpc_port", f"port {self.http_port} is already the HTTP port: choose another")
        if self.admin_port and self.admin_port in {self.http_port, self.grpc_port}:
            raise InvalidSetting(
                "admin_port", f"port {self.admin_port} is already the HTTP or gRPC port: choose another"
            )
        if self.rules and self.database:
            raise InvalidSetting(
                "database",
                "rules come from a file or from a database. To copy those of the file into the database: "
                f"headgate rules apply {self.rules} --database URL",
            )
        if self.workers > 1 and not self.is_shared:
            raise InvalidSetting(
                "workers",
                f"{self.workers} workers need a shared store: in memory, each would count separately, and "
                f"{self.workers} times the limit would pass. Use --store redis://HOST:6379/0, or --workers 1",
            )
        self._check_admin()
        self._check_tls()
        self._check_files()
        for network in self.trusted_proxies:
            try:
                ip_network(network)
            except ValueError as error:
                message = f"must be networks such as 10.0.0.0/8,192.0.2.7: {error}"
                raise InvalidSetting("trusted_proxies", message) from None

    @property
    def is_shared(self) -> bool:
        return self.store.lower().startswith("redis")

    @property
    def store_name(self) -> str:
        """The address of the store, without its password and options."""
        if not self.is_shared:
            return "memory"
        scheme, _, rest = self.store.partition("?")[0].partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]}"

    @property
    def store_address(self) -> str:
        """The address of the store, with a timeout."""
        if not self.is_shared or self._has_timeout:
            return self.store
        address, _, query = self.store.partition("?")
        return f"{address}?{query}{'&' if query else ''}timeout={STORE_SECONDS}"

    @property
    def store_options(self) -> StoreOptions:
        """The options of the engines for a store on the network."""
        return {
            "peeks": self.cache_peeks,
            "denials": self.cache_denials,
            "fewest": self.workers,
            "failures": self.breaker_failures,
            "pause": self.breaker_pause,
            "longest_pause": max(LONGEST_PAUSE_US / 1_000_000, self.breaker_pause),
        }

    @property
    def rls_seconds(self) -> float | None:
        """How long a decision for Envoy waits for the store; None for the address's timeout."""
        return None if self._has_timeout else RLS_SECONDS

    @property
    def api_seconds(self) -> float | None:
        """How long other decisions wait, unless their caller sends a deadline; None for the address's timeout."""
        return None if self._has_timeout else API_SECONDS

    @property
    def start_seconds(self) -> float:
        """How long a node waits for its store before it serves; the address must be valid."""
        given = dict(parse_qsl(self.store.partition("?")[2])).get("timeout", 0) if self.is_shared else 0
        return max(START_SECONDS, float(given))

    @property
    def _has_timeout(self) -> bool:
        return any(option.startswith("timeout=") for option in self.store.partition("?")[2].split("&"))

    @property
    def shares(self) -> int | None:
        """How many processes share the limits, over all nodes; None to count them."""
        return self.workers * self.nodes or None

    def _check_quotas(self) -> None:
        for name in ("admin_reads", "admin_writes"):
            try:
                Quota.parse(getattr(self, name))
            except InvalidQuota as error:
                raise InvalidSetting(name, str(error)) from None

    def _check_admin(self) -> None:
        if not (self.is_local_admin or self.tls_cert or self.admin_insecure):
            raise InvalidSetting(
                "admin_host",
                f"on {self.admin_host}, the admin plane needs TLS, because requests contain keys: set --tls-cert and "
                "--tls-key or, behind a proxy that encrypts, --admin-insecure on",
            )

    @property
    def is_local_admin(self) -> bool:
        return self.admin_host in {"localhost", "::1"} or self.admin_host.startswith("127.")

    def _check_tls(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            missing = "tls_key" if self.tls_cert else "tls_cert"
            raise InvalidSetting(missing, "a certificate and its key must be set together")
        if self.client_ca and not self.tls_cert:
            raise InvalidSetting("client_ca", "client certificates need TLS: set --tls-cert and --tls-key as well")

    def _check_files(self) -> None:
        if self.caller_keys == KEYS_OF_DATABASE and not self.database and (self.rules or self.envoy_config):
            raise InvalidSetting("caller_keys", "no database with keys is configured: use a file")
        for name in ("rules", "tls_cert", "tls_key", "client_ca", "caller_keys", "identity", "deprecations"):
            path = getattr(self, name)
            if path and not Path(path).exists() and (name, path) != ("caller_keys", KEYS_OF_DATABASE):
                raise InvalidSetting(name, f"file {short(path)} does not exist")
        if self.envoy_config and not Path(self.envoy_config).is_dir():
            raise InvalidSetting("envoy_config", f"folder {short(self.envoy_config)} does not exist")


def _check(name: str, value: Any, accepted: tuple[Any, ...]) -> None:
    if accepted and isinstance(accepted[0], int):
        low, high = accepted
        if type(value) is not int or not low <= value <= high:
            raise InvalidSetting(name, f"must be a whole number from {low} to {high}, not {short(value)}")
    elif accepted and isinstance(accepted[0], float):
        low, high = accepted
        if not low <= value <= high:
            raise InvalidSetting(name, f"must be from {low:g} to {high:g} seconds, not {value:g}")
    elif accepted and value not in accepted:
        raise InvalidSetting(name, f"must be one of {', '.join(accepted)}, not {short(value)}")
