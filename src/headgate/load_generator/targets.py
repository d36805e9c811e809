"""Where questions go: ``http://host:port``, ``https://``, ``grpc://`` or ``grpcs://``."""

from __future__ import annotations

import ssl
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from headgate.core.errors import HeadgateError, UsageError

_PORTS = {"http": 80, "https": 443, "grpc": 8081, "grpcs": 8081}


class Unreachable(HeadgateError):
    """No service can be asked there."""

    def __init__(self, target: Target, error: OSError) -> None:
        super().__init__(_why(target, error))


class NotSpoken(HeadgateError):
    """Somebody listens there, and does not speak the protocol."""

    def __init__(self, target: Target, seconds: float) -> None:
        protocol = "HTTP/2, which gRPC needs" if target.grpc else "HTTP"
        super().__init__(f"what listens at {target.place} has not begun to speak {protocol}, in {seconds:g} s")


class Target(msgspec.Struct, frozen=True):
    """A service, and how it is spoken to."""

    host: str
    port: int
    grpc: bool = False
    tls: bool = False

    @property
    def place(self) -> str:
        """The host and port, as in an address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_here(self) -> bool:
        """Is it on this machine?"""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:  # some other name
            return False


def _why(target: Target, error: OSError) -> str:
    """Say why there was no connection, and what may help."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"{target.place} has a certificate that is not trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"{target.place} does not speak TLS as it should: {error.strerror or error}"
        case TimeoutError():
            return f"{target.place} does not answer in time"
        case ConnectionRefusedError():
            return f"nothing listens at {target.place} (connection refused): start one with headgate serve"
        case _:
            return f"{target.place} cannot be reached: {error.strerror or error}"


def parse_target(text: str, schemes: tuple[str, ...] = tuple(_PORTS)) -> Target:
    """Return what an address says; UsageError if it is none of these `schemes`."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{text!r} is not an address of a service: {error}") from None
    right = f"{schemes[0]}://127.0.0.1:8080" if schemes[0] == "http" else f"{schemes[0]}://127.0.0.1:8081"
    if parts.scheme not in schemes or not parts.hostname:
        raise UsageError(f"{text!r} is not an address of a service; one is like {right} ({', '.join(schemes)})")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or "@" in parts.netloc:
        raise UsageError(f"{text!r} has more than scheme, host and port; it should be like {right}")
    if not (parts.hostname.isascii() and parts.hostname.isprintable() and " " not in parts.hostname):
        raise UsageError(f"{text!r} has no host that can be asked")
    tls = parts.scheme in {"https", "grpcs"}
    return Target(parts.hostname, port or _PORTS[parts.scheme], parts.scheme.startswith("grpc"), tls)


def client_tls(ca: str | None = None, cert: str | None = None, key: str | None = None) -> ssl.SSLContext:
    """Return how a client speaks TLS: whom it trusts, and who it says it is."""
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert is not None:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        files = " or ".join(name for name in (ca, cert, key) if name)
        raise UsageError(f"{files} cannot be used for TLS: {error.strerror or error}") from None
    if key is not None and cert is None:
        raise UsageError("a key needs its certificate: --cert FILE")
    return context
