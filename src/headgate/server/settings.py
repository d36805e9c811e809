"""The settings of a decision service, checked as a whole before anything starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import parse_qsl

from headgate.core.errors import UsageError
from headgate.core.mode import Mode
from headgate.core.numbers import short
from headgate.web.headers import RESET_FORMATS

RLS_SECONDS, API_SECONDS = 0.015, 0.1
"""How long a decision waits for a store on the network, where its address does not say: Envoy gives up after 20 ms, and
other callers may say themselves how long they wait."""
STORE_SECONDS = 1.0
"""After so long a connection that does not answer is given up, where the address does not say. The longest wait."""
START_SECONDS = 0.25
"""How long a node waits for its store before it serves, where the address does not give it longer."""
PROXY_HEADERS = ("either", "original", "forwarded")
CLIENT_TIMESTAMPS = ("check", "ignore")
LOG_FORMATS = ("text", "json")
LOG_PRINCIPALS = ("digest", "plain")
LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_WORKERS = 256
KEYS_OF_DATABASE = "database"
"""As `caller_keys`: only keys of the admin plane, of the role check. With a file they open as well."""


class InvalidSetting(UsageError):
    """A setting that cannot work; its message begins with the setting's name."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one service, whatever it was told by. Raises InvalidSetting."""

    rules: str = ""
    """A file, which is watched; empty for the example that comes with the package, or with `envoy_config` for none."""
    database: str = field(default="", repr=False)
    """The URL of a database that has the rules, instead of a file. It may have a password, so it is not shown."""
    data_dir: str = ""
    """A folder for the last good rules of a database; empty for one in the home of the user."""
    audit_days: int = 90
    """How long the audit trail is kept."""
    enforcement: bool = True
    """Whether limits refuse; if not, every rule is a shadow. SIGUSR1 turns it off, SIGUSR2 on."""
    envoy_config: str = ""
    """A folder of files of envoyproxy/ratelimit, which is watched; empty if Envoy is answered by the rules."""
    envoy_merge_domains: bool = False
    """Whether several of those files may have the same domain."""
    envoy_shadow: bool = False
    """Whether nothing is refused by them."""
    envoy_count_refused: bool = False
    """Whether hits that are refused use up what is left, for hits that are known only after the response."""
    envoy_trust_tier: bool = False
    """Whether a descriptor's entry ``tier`` is believed."""
    envoy_headers: bool = True
    """Whether Envoy's clients get the header fields of their limits."""

    store: str = field(default="memory", repr=False)
    """An address; it may have a password, so it is not shown."""
    on_store_failure: str = Mode.LOCAL
    nodes: int = 1
    """How many services share the limits, this one included."""

    host: str = "127.0.0.1"
    http_port: int = 8080
    """0 takes any that is free."""
    grpc_port: int = 8081
    admin_host: str = "127.0.0.1"
    """Where the admin plane listens."""
    admin_port: int = 8082
    """0 takes any that is free."""
    admin_insecure: bool = False
    """Whether the admin plane may listen on other addresses than those of this machine without TLS."""
    grpc_reflection: bool = True
    """Whether the server tells clients which services it has."""
    tls_cert: str = ""
    """A file with the certificate chain, PEM; empty for no TLS."""
    tls_key: str = ""
    client_ca: str = ""
    """A file with the authorities of client certificates, which are demanded then; empty for none."""

    deny_status: int = 429
    """Of forward authentication."""
    trusted_proxies: tuple[str, ...] = ()
    """Networks whose word about the client is taken; empty for this machine alone."""
    identity: str = ""
    """A file that says who the clients of proxies are: by API key, token and address; empty for address alone."""
    reset_format: str = "epoch"
    """What X-RateLimit-Reset is, on all APIs: seconds since 1970, or from now."""
    proxy_headers: str = "either"
    """Which headers the proxy writes: X-Original-*, X-Forwarded-*, or whichever comes."""
    client_timestamps: str = "check"
    """What is done about a client's timestamp that is far from our clock: "check" refuses it."""

    deprecations: str = ""
    """A file that says which versions of the HTTP APIs are going to go; empty if none is."""

    workers: int = 1
    drain_seconds: float = 25.0
    """How long requests in progress may take to end after SIGTERM."""

    max_checks_per_second: int = 100_000
    """On this node, by all workers together; 0 for no ceiling."""
    max_in_flight: int = 10_000
    """The same, at once."""
    max_connections: int = 10_000
    """The same."""
    caller_keys: str = ""
    """A file of those who may ask, or `KEYS_OF_DATABASE`; empty for everybody who can reach the port."""

    log_format: str = "text"
    log_level: str = "info"
    log_denials: int = 10
    """So many lines in a second about refusals by one rule; 0 for none."""
    log_principals: str = "digest"
    """What logs and hot keys show of who asked."""
    log_access: bool = False
    """Whether there is a line for every request."""
    tracing: bool = False
    """Whether every request has a span, sent where OpenTelemetry's own variables say."""

    def __post_init__(self) -> None:
        for name in ("http_port", "grpc_port", "admin_port"):
            _whole(self, name, 0, 65_535)
        _whole(self, "audit_days", 1, 36_500)
        _whole(self, "workers", 1, MAX_WORKERS)
        _whole(self, "nodes", 1, 10_000)
        _whole(self, "deny_status", 400, 599)
        _whole(self, "max_checks_per_second", 0, 10_000_000)
        _whole(self, "max_in_flight", 1, 1_000_000)
        _whole(self, "max_connections", 1, 1_000_000)
        _one_of(self, "on_store_failure", tuple(Mode))
        _one_of(self, "reset_format", RESET_FORMATS)
        _one_of(self, "proxy_headers", PROXY_HEADERS)
        _one_of(self, "client_timestamps", CLIENT_TIMESTAMPS)
        _one_of(self, "log_format", LOG_FORMATS)
        _one_of(self, "log_level", LOG_LEVELS)
        _one_of(self, "log_principals", LOG_PRINCIPALS)
        _whole(self, "log_denials", 0, 1_000_000)
        if not 0 <= self.drain_seconds <= 3600:
            raise InvalidSetting("drain_seconds", f"seconds from 0 to 3600, not {self.drain_seconds:g}")
        if self.http_port and self.http_port == self.grpc_port:
            raise InvalidSetting("grpc_port", f"HTTP has port {self.http_port} already: take another one")
        if self.admin_port and self.admin_port in {self.http_port, self.grpc_port}:
            raise InvalidSetting("admin_port", f"port {self.admin_port} is in use already: take another one")
        if self.rules and self.database:
            raise InvalidSetting(
                "database",
                "rules come from a file or from a database. To bring those of the file into the database: "
                f"headgate rules apply {self.rules} --database URL",
            )
        if self.workers > 1 and not self.is_shared:
            raise InvalidSetting(
                "workers",
                f"{self.workers} workers need a store that they share: in memory each would count on its own, and "
                f"{self.workers} times the limit would pass. Use --store redis://HOST:6379/0, or --workers 1",
            )
        self._check_admin()
        self._check_tls()
        self._check_files()
        for network in self.trusted_proxies:
            _check_network(network)

    @property
    def is_shared(self) -> bool:
        """Whether other processes see the same state."""
        return self.store.lower().startswith("redis")

    @property
    def store_address(self) -> str:
        """The address of the store, with a timeout."""
        if not self.is_shared or self._has_timeout:
            return self.store
        address, _, query = self.store.partition("?")
        return f"{address}?{query}{'&' if query else ''}timeout={STORE_SECONDS}"

    @property
    def rls_seconds(self) -> float | None:
        """How long a decision for Envoy waits for the store; None for the timeout in its address."""
        return None if self._has_timeout else RLS_SECONDS

    @property
    def api_seconds(self) -> float | None:
        """How long any other decision does, where its caller does not say; None for the same."""
        return None if self._has_timeout else API_SECONDS

    @property
    def start_seconds(self) -> float:
        """How long a node waits for its store before it serves; the address is known to be right by then."""
        given = dict(parse_qsl(self.store.partition("?")[2])).get("timeout", 0) if self.is_shared else 0
        return max(START_SECONDS, float(given))

    @property
    def _has_timeout(self) -> bool:
        return any(option.startswith("timeout=") for option in self.store.partition("?")[2].split("&"))

    @property
    def shares(self) -> int:
        """How many processes share the limits, over all nodes."""
        return self.workers * self.nodes

    def _check_admin(self) -> None:
        if not (self.is_local_admin or self.tls_cert or self.admin_insecure):
            raise InvalidSetting(
                "admin_host",
                f"on {self.admin_host} others could listen to what is said, keys included: give --tls-cert and "
                "--tls-key, or, where something else encrypts, --admin-insecure on",
            )

    @property
    def is_local_admin(self) -> bool:
        """Whether only this machine reaches the admin plane."""
        return self.admin_host in {"localhost", "::1"} or self.admin_host.startswith("127.")

    def _check_tls(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            missing = "tls_key" if self.tls_cert else "tls_cert"
            raise InvalidSetting(missing, "a certificate and its key are given together, or neither")
        if self.client_ca and not self.tls_cert:
            raise InvalidSetting(
                "client_ca", "client certificates come with TLS: give --tls-cert and --tls-key as well"
            )

    def _check_files(self) -> None:
        if self.caller_keys == KEYS_OF_DATABASE and not self.database and (self.rules or self.envoy_config):
            raise InvalidSetting("caller_keys", "there is no database, so there are no keys of one: give a file")
        for name in ("rules", "tls_cert", "tls_key", "client_ca", "caller_keys", "identity", "deprecations"):
            path = getattr(self, name)
            if path and not Path(path).exists() and (name, path) != ("caller_keys", KEYS_OF_DATABASE):
                raise InvalidSetting(name, f"there is no file {short(path)}")
        if self.envoy_config and not Path(self.envoy_config).is_dir():
            raise InvalidSetting("envoy_config", f"there is no folder {short(self.envoy_config)}")


def _whole(settings: Settings, name: str, low: int, high: int) -> None:
    value = getattr(settings, name)
    if type(value) is not int or not low <= value <= high:
        raise InvalidSetting(name, f"a whole number from {low} to {high}, not {short(value)}")


def _one_of(settings: Settings, name: str, accepted: tuple[str, ...]) -> None:
    value = getattr(settings, name)
    if value not in accepted:
        raise InvalidSetting(name, f"one of {', '.join(accepted)}, not {short(value)}")


def _check_network(text: str) -> None:
    try:
        ip_network(text)
    except ValueError as error:
        raise InvalidSetting("trusted_proxies", f"networks such as 10.0.0.0/8,192.0.2.7: {error}") from None
