"""Asking a running service over HTTP: which one and as whom, by options; one question, and what it answers."""

from __future__ import annotations

import argparse
import os
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import urlsplit

import msgspec

from headgate.core.errors import HeadgateError, UsageError

DEFAULT_URL = "http://127.0.0.1:8080"
_MOST_BYTES = 1_048_576
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


class NoAnswer(HeadgateError):
    """The service did not decide."""


class Unreachable(HeadgateError):
    """No service can be asked there."""

    def __init__(self, target: Target, error: OSError) -> None:
        super().__init__(_why(target, error))


def url() -> str:
    """Return where the service is by default."""
    return os.environ.get("HEADGATE_URL") or DEFAULT_URL


def add_service_options(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """Add the options that say which service is asked, and as whom; optional where a file can say it instead."""
    place = "where the service is; or HEADGATE_URL"
    parser.add_argument(
        "--url", default=None if is_optional else url(), help=place if is_optional else f"{place} [%(default)s]"
    )
    parser.add_argument(
        "--caller-key",
        metavar="KEY",
        default=os.environ.get("HEADGATE_CALLER_KEY") or None,
        help="the key, where the service wants one; better as HEADGATE_CALLER_KEY",
    )
    for name, about in _FILES.items():
        parser.add_argument(f"--{name}", metavar="FILE", help=about)
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=5.0, help="seconds to wait for the service [%(default)g]"
    )


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


class _Wrong(msgspec.Struct, frozen=True):
    pointer: str = ""
    detail: str = ""


class _Problem(msgspec.Struct, frozen=True):
    """Why the service did not decide: RFC 9457."""

    title: str = ""
    detail: str = ""
    errors: tuple[_Wrong, ...] = ()


def exchanged(
    target: Target,
    method: str,
    path: str,
    content: bytes | None,
    headers: dict[str, str],
    *,
    tls: ssl.SSLContext | None = None,
    timeout: float = 5.0,
    key_variable: str,
) -> tuple[int, bytes]:
    """Send a request, and return the status and body of an answer that is not a problem. Raises Unreachable, NoAnswer.

    `key_variable` is where its key is read from.
    """
    if tls is None:
        connection = HTTPConnection(target.host, target.port, timeout=timeout)
    else:
        connection = HTTPSConnection(target.host, target.port, timeout=timeout, context=tls)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise Unreachable(target, error) from None
        connection.request(method, path, content, headers)
        response = connection.getresponse()
        body = response.read(_MOST_BYTES)
        if response.length:
            raise NoAnswer(f"{target.place} hung up, or says more than an answer has")
    except TimeoutError:
        raise NoAnswer(f"{target.place} does not answer within {timeout:g} s") from None
    except (OSError, HTTPException) as error:
        hint = "" if tls else " (if it speaks TLS, use https://)"
        raise NoAnswer(f"{target.place} hung up, or does not speak HTTP{hint}: {error!r}") from None
    finally:
        connection.close()
    if response.status not in {200, 201, 204}:
        hint = f"the key goes into {key_variable}" * (response.status == 401)
        raise NoAnswer(_explained(target, response.status, body, response.headers.get("retry-after", ""), hint))
    return response.status, body


def _explained(target: Target, status: int, body: bytes, retry_after: str, hint: str) -> str:
    """Say why a service did not decide, by what it answered."""
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except (ValueError, RecursionError):
        problem = _Problem()
    said = f"{target.place} answers {status}"
    if text := problem.detail or problem.title:
        said += f": {text}"
    elif status == 404:
        said += ": is it Headgate?"
    if hint:
        said += f"\n  {hint}"
    for wrong in problem.errors:
        said += f"\n  {wrong.pointer or 'the request'} {wrong.detail}"
    return f"{said}\n  try again in {retry_after} s" if status == 503 and retry_after.isdigit() else said


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
