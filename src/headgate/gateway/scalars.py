"""The values that gateway files are made of: times, ports, hosts, paths, and files, which are read at once."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from headgate.config.problems import Findings, ProblemKind, shown
from headgate.config.problems import Path as Place
from headgate.config.schema import Form, ListOf, Meaningless, Scalar, Schema
from headgate.config.times import length
from headgate.core.quota import SECOND
from headgate.files import UnreadableFile, content_of
from headgate.policy.paths import normalised
from headgate.policy.request import InvalidRequest
from headgate.server.identity.loading import MAX_KEY_FILE
from headgate.web.errors import InvalidSettings
from headgate.web.lines import header_name

_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*\.?"
_HOST_PORT = rf"(?:{_NAME}|\[[0-9A-Fa-f:.]+\]):[0-9]{{1,5}}"


@dataclass(frozen=True, slots=True)
class Seconds:
    """A length of time between two, in seconds; with `none`, that word is 0."""

    low: float
    high: float
    none: bool = False

    def read(self, value: object, path: Place, findings: Findings) -> float | None:
        if self.none and value == "none":
            return 0.0
        if value == 0 and type(value) is int and not self.low:
            return 0.0
        read = length().read(value, path, findings)
        if read is None:
            return None
        if not self.low <= read / SECOND <= self.high:
            message = f"{shown(value)} is not from {self.low:g} s to {self.high:g} s"
            findings.add(path, message, kind=ProblemKind.MEANING)
            return None
        return float(read / SECOND)

    def schema(self) -> Schema:
        zero = [] if self.low else [{"enum": [0]}]
        return {"anyOf": [length().schema(), *zero, *([{"enum": ["none"]}] if self.none else [])]}


@dataclass(frozen=True, slots=True)
class OneOrMore:
    """A value, or a list of them; always read as a list."""

    of: Form

    def read(self, value: object, path: Place, findings: Findings) -> list[Any] | None:
        if type(value) is list:
            return ListOf(self.of, "a list").read(value, path, findings)
        return [self.of.read(value, path, findings)]

    def schema(self) -> Schema:
        return {"anyOf": [self.of.schema(), {"type": "array", "items": self.of.schema()}]}


@dataclass(frozen=True, slots=True)
class UpstreamEndpoint:
    """One server of a service."""

    host: str
    port: int

    @property
    def is_address(self) -> bool:
        """Whether nothing has to be looked up."""
        try:
            ip_address(self.host)
        except ValueError:
            return False
        return True


def _endpoint(text: str) -> UpstreamEndpoint:
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not 1 <= int(port) <= 65_535:
        raise Meaningless(f"{port} is not a port", "1 to 65535")
    if host != bare:
        try:
            ip_address(bare)
        except ValueError:
            raise Meaningless(f"{bare} is not an IPv6 address") from None
    if host.startswith("*"):
        raise Meaningless("a server has one name", "a host and a port, such as 10.0.0.5:8000")
    return UpstreamEndpoint(bare, int(port))


def _address(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        hint = "Write 127.0.0.1." if text == "localhost" else ""
        raise Meaningless(f"{shown(text)} is not an IP address", "127.0.0.1, 0.0.0.0, '::' ...", hint) from None


def _path(text: str) -> str:
    try:
        canonical = normalised(text)
    except InvalidRequest as error:
        raise Meaningless(str(error)) from None
    if canonical != text:
        raise Meaningless(f"{shown(text)} is another spelling of a path", hint=f"Write {canonical}.")
    return text


def _header(text: str) -> str:
    try:
        return header_name(text).decode()
    except InvalidSettings as error:
        raise Meaningless(str(error)) from None


PORT = Scalar.whole(1, 65_535)
FILE = Scalar.text("a file, from the folder of this one", most=4096, numbers=False)
HOST = Scalar(
    {"type": "string", "pattern": rf"^(?:{_NAME}|[0-9A-Fa-f:.]{{2,45}})$", "maxLength": 253},
    "is not a host",
    "a name such as api.example.com, or an address",
)
ADDRESS = Scalar(
    {"type": "string", "minLength": 2, "maxLength": 45},
    "is not an IP address",
    "127.0.0.1, 0.0.0.0, '::' ...",
    _address,
)
ENDPOINT = Scalar(
    {"type": "string", "pattern": f"^{_HOST_PORT}$", "maxLength": 260},
    "is not a host with a port",
    "such as 10.0.0.5:8000, orders.internal:8000 or '[2001:db8::5]:8000'",
    _endpoint,
)
PATH = Scalar(
    {"type": "string", "pattern": "^/.*$", "maxLength": 1024}, "is not a path", "a path such as /orders", _path
)
HEADER = Scalar(
    {"type": "string", "minLength": 1, "maxLength": 64}, "is not a header", "a name such as x-api-key", _header
)
ORIGIN = Scalar(
    {"type": "string", "pattern": rf"^(?:\*|https?://(?:{_NAME})(?::[0-9]{{1,5}})?)$", "maxLength": 260},
    "is not an origin",
    "scheme and host, such as https://app.example.com, or '*'",
)


class Folder:
    """Where the files are that a file names; they are read once, and what is wrong with one is noted.

    Args:
        path: of the folder.
        findings: where that is noted.
        reading: called with each of them before it is read.
    """

    def __init__(self, path: Path, findings: Findings, reading: Callable[[Path], object]) -> None:
        self.path, self._findings, self._reading = path, findings, reading

    def named(self, name: str) -> Path:
        """Return where a file is, which is about to be read."""
        file = self.path / name
        self._reading(file)
        return file

    def text(self, place: Place, name: str) -> str | None:
        """Return what is in a file; None if it cannot be used."""
        file = self.named(name)
        try:
            return content_of(file, MAX_KEY_FILE).decode()
        except (UnreadableFile, UnicodeDecodeError) as error:
            why = error if isinstance(error, UnreadableFile) else f"is not text: {error}"
            self._findings.add(place, f"{shown(str(file))} {why}", kind=ProblemKind.MEANING)
            return None

    def authorities(self, place: Place, name: str) -> str | None:
        """Return certificates of authorities, as PEM: those of a file or, if none is named, of the system."""
        usual = ssl.get_default_verify_paths().cafile or "/etc/ssl/certs/ca-certificates.crt"
        text = self.text((*place, "ca") if name else place, name or usual)
        if text is not None and "BEGIN CERTIFICATE" not in text:
            self._findings.add((*place, "ca"), "has no certificate", "a PEM file", kind=ProblemKind.MEANING)
            return None
        return text
