"""Addresses of Redis and Valkey servers.

::

    redis://[[user]:password@]host[:port][/database][?option=value&...]
    rediss://...                 the same, with TLS
    redis+unix:///path/to/socket[?database=1&...]

Characters of a password that have a meaning in an address (``@ : / ? # %``) are written as ``%40`` and so on.

Options: `timeout` (seconds for a whole call, 0.25 unless told), `connect_timeout` (seconds, 1; a blocking call that has
to connect first may take this much longer), `connections` (2 for an event loop, 16 for threads), `ca`, `cert`, `key`
(PEM files, for TLS), `evicting` (``allow`` to accept a server that may evict state).
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

from headgate.core.errors import InvalidStore

ACCEPTED = '"redis://[user:password@]host:6379/0", "rediss://..." with TLS or "redis+unix:///path/to/socket"'
SCHEMES = ("redis", "rediss", "redis+unix")
_SECONDS = {"timeout": "timeout", "connect_timeout": "connect_timeout"}
_FILES = ("ca", "cert", "key")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is and how to talk to it."""

    host: str = "localhost"
    port: int = 6379
    path: str = ""
    """A Unix socket, instead of host and port."""
    database: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False, compare=False)
    timeout: float = 0.25
    connect_timeout: float = 1.0
    connections: int | None = None
    may_evict: bool = False

    def __str__(self) -> str:
        """Return the address without its secrets."""
        if self.path:
            return f"redis+unix://{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'rediss' if self.tls else 'redis'}://{host}:{self.port}"


def parse(text: str) -> Address:
    """Read an address. Raises InvalidStore, without showing a password."""
    try:
        parts = urlsplit(text)
        port = 6379 if parts.port is None else parts.port
    except ValueError:  # it would show a piece of a password that is not escaped
        raise InvalidStore(
            f"bad host or port in a store address: use {ACCEPTED}, with / ? # in a password escaped"
        ) from None
    if "@" in parts.path + parts.query + parts.fragment or not port:
        raise InvalidStore(f"bad store address: use {ACCEPTED}, with @ / ? # escaped where they are not delimiters")
    named = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(named)
    if len(options) < len(named):
        raise InvalidStore("an option is repeated in a store address")
    unix = parts.scheme == "redis+unix"
    if parts.scheme not in SCHEMES or (unix and (parts.netloc or not parts.path)) or parts.fragment:
        raise InvalidStore(f"bad store address {_without_secret(text)!r}: use {ACCEPTED}")
    database = options.pop("database", "") if unix else parts.path.strip("/")
    address = Address(
        host=parts.hostname or "localhost",
        port=port,
        path=unquote(parts.path) if unix else "",
        database=_number("database", database or "0", 0, 1_000_000),
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        tls=_context(options) if parts.scheme == "rediss" else None,
        timeout=_seconds("timeout", options.pop("timeout", "0.25")),
        connect_timeout=_seconds("connect_timeout", options.pop("connect_timeout", "1")),
        connections=_number("connections", options.pop("connections"), 1, 1000) if "connections" in options else None,
        may_evict=_flag("evicting", options.pop("evicting", "refuse")),
    )
    if options:
        raise InvalidStore(f"unknown option {min(options)!r} in a store address: use {ACCEPTED}")
    return address


def _number(name: str, text: str, low: int, high: int) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and low <= int(text) <= high):
        raise InvalidStore(f"{name} in a store address must be a whole number from {low} to {high}, not {text!r}")
    return int(text)


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 < seconds <= 3600:
        raise InvalidStore(f"{name} in a store address must be a number of seconds up to 3600, not {text!r}")
    return seconds


def _flag(name: str, text: str) -> bool:
    if text not in {"allow", "refuse"}:
        raise InvalidStore(f"{name} in a store address must be allow or refuse, not {text!r}")
    return text == "allow"


def _context(options: dict[str, str]) -> ssl.SSLContext:
    ca, cert, key = (options.pop(name, None) for name in _FILES)
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(
                cert, key, password=""
            )  # or it would ask on the terminal for that of an encrypted key
    except (OSError, ValueError) as error:
        raise InvalidStore(f"the certificates of a store address cannot be read: {error}") from None
    return context


def _without_secret(text: str) -> str:
    before, at, after = text.rpartition("@")
    return f"{before.split('//')[0]}//...@{after}" if at else text
