"""Values in gateway files: times, ports, hosts, and paths."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from headgate.config.problems import Findings, shown
from headgate.config.problems import Path as Place
from headgate.config.schema import Form, ListOf, Meaningless, OrWord, Scalar, Schema
from headgate.config.times import length
from headgate.core.quota import SECOND
from headgate.policy.paths import normalised
from headgate.policy.request import InvalidRequest
from headgate.web.errors import InvalidSettings
from headgate.web.lines import header_name

_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_NAME = rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})*\.?"
_HOST_PORT = rf"(?:{_NAME}|\[[0-9A-Fa-f:.]+\]):[0-9]{{1,5}}"


@dataclass(frozen=True, slots=True)
class Seconds:
    low: float
    high: float

    def read(self, value: object, path: Place, findings: Findings) -> float | None:
        if value == 0 and type(value) is int and not self.low:
            return 0.0
        read = length().read(value, path, findings)
        if read is None:
            return None
        if not self.low <= read / SECOND <= self.high:
            message = f"{shown(value)} is not from {self.low:g} s to {self.high:g} s"
            findings.reject(path, message)
            return None
        return float(read / SECOND)

    def schema(self) -> Schema:
        return {"anyOf": [length().schema(), *([] if self.low else [{"const": 0}])]}


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
    host: str
    port: int

    @property
    def is_address(self) -> bool:
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
RESPONSE_TIME = OrWord("none", 0.0, Seconds(0.01, 86_400))
ORIGIN = Scalar(
    {"type": "string", "pattern": rf"^(?:\*|https?://(?:{_NAME})(?::[0-9]{{1,5}})?)$", "maxLength": 260},
    "is not an origin",
    "scheme and host, such as https://app.example.com, or '*'",
)
