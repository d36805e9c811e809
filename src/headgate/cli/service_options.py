"""Which service is asked, and as whom: the options, and the address and credentials that come of them."""

from __future__ import annotations

import argparse
import os
import ssl
from urllib.parse import urlsplit

import msgspec

from headgate.core.errors import HeadgateError, UsageError

DEFAULT_URL = "http://127.0.0.1:8080"
_PORTS = {"http": 80, "https": 443}
_LONGEST_KEY = 2048
"""Characters of a caller key."""
_FILES = {
    "ca": "trust the authorities in this file (PEM) rather than the system's",
    "cert": "the client certificate (PEM), where the service wants one",
    "key": "its private key (PEM), if it is in a file of its own",
}


class Target(msgspec.Struct, frozen=True):
    """A service that is asked over HTTP."""

    host: str
    port: int
    tls: bool = False

    @property
    def place(self) -> str:
        """The host and port, as in an address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Unreachable(HeadgateError):
    """No service can be asked there."""

    def __init__(self, target: Target, error: OSError) -> None:
        super().__init__(_why(target, error))


def url() -> str:
    """Return where the service is by default."""
    return os.environ.get("HEADGATE_URL") or DEFAULT_URL


def add_service_options(parser: argparse.ArgumentParser, *, timeout: str) -> None:
    """Add the options; `timeout` says what it is for."""
    parser.add_argument(
        "--caller-key",
        metavar="KEY",
        default=os.environ.get("HEADGATE_CALLER_KEY") or None,
        help="the key, where the service wants one; better as HEADGATE_CALLER_KEY",
    )
    for name, about in _FILES.items():
        parser.add_argument(f"--{name}", metavar="FILE", help=about)
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=5.0, help=timeout)


def parse_target(text: str) -> Target:
    """Return what an address says; UsageError if it is not one of HTTP."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{text!r} is not an address of a service: {error}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise UsageError(f"{text!r} is not an address of a service; one is like {DEFAULT_URL} ({', '.join(_PORTS)})")
    if parts.path not in {"", "/"} or parts.query or parts.fragment or "@" in parts.netloc:
        raise UsageError(f"{text!r} has more than scheme, host and port; it should be like {DEFAULT_URL}")
    if not (parts.hostname.isascii() and parts.hostname.isprintable() and " " not in parts.hostname):
        raise UsageError(f"{text!r} has no host that can be asked")
    return Target(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "https")


def tls_of(arguments: argparse.Namespace, target: Target) -> ssl.SSLContext | None:
    """Return how to speak TLS with the service; None if it is not spoken."""
    if target.tls:
        return client_tls(arguments.ca, arguments.cert, arguments.key)
    given = [f"--{name}" for name in _FILES if getattr(arguments, name) is not None]
    if given:
        raise UsageError(f"{given[0]} is for TLS: the address should be https://{target.place}")
    return None


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


def caller_headers(caller_key: str | None) -> dict[str, str]:
    """Return the headers that say who calls the service, where it wants to know."""
    if caller_key is None:
        return {}
    if not (0 < len(caller_key) <= _LONGEST_KEY and caller_key.isascii() and caller_key.isprintable()):
        raise UsageError(f"a caller key is printable ASCII, up to {_LONGEST_KEY} characters")
    return {"authorization": f"Bearer {caller_key}"}


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
