"""Commands on a running service: options, calls by its client, and messages for failures."""

from __future__ import annotations

import argparse
import os
import ssl
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

import msgspec

from headgate.cli.admin_client import PORTS, exchange
from headgate.cli.command import DEFAULT_URL, NoAnswer, Terminal, attributes_of, principal_of
from headgate.core.decision import Decision
from headgate.core.errors import StoreError, StoreUnavailable, UsageError
from headgate.core.numbers import printable
from headgate.core.quota import SECOND
from headgate.engine import Ruling
from headgate.policy.request import Request
from headgate.sdk.clients import Client
from headgate.sdk.settings import ClientOptions, Credentials, endpoint_of
from headgate.sdk.transport import CallerRefused, ServiceFailure
from headgate.sdk.verbs import Step

T = TypeVar("T")


def add_service_options(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """Add the options for the service and the caller; `is_optional` if a file may replace the service."""
    place = "the address of the service; or HEADGATE_URL"
    url = None if is_optional else os.environ.get("HEADGATE_URL") or DEFAULT_URL
    parser.add_argument("--url", default=url, help=place if is_optional else f"{place} [%(default)s]")
    parser.add_argument(
        "--caller-key",
        metavar="KEY",
        default=os.environ.get("HEADGATE_CALLER_KEY") or None,
        help="the caller key, if the service requires one; better set HEADGATE_CALLER_KEY",
    )
    for name, about in (
        ("ca", "trust the authorities in this file (PEM) instead of the system's"),
        ("cert", "the client certificate (PEM), if the service requires one"),
        ("key", "its private key (PEM), if in a separate file"),
    ):
        parser.add_argument(f"--{name}", metavar="FILE", help=about)
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=5.0, help="seconds to wait for the service [%(default)g]"
    )


def request_of(arguments: argparse.Namespace, **more: Any) -> Request:
    """Return the request of the options, with more of its fields. Raises UsageError."""
    endpoint = "/" if arguments.endpoint is None else arguments.endpoint
    return Request(principal_of(arguments), endpoint, arguments.method.upper(), attributes_of(arguments), **more)


class _Direct(Client):
    """A client that raises failures of the service instead of deciding locally."""

    def __init__(self, address: str, **options: Unpack[ClientOptions]) -> None:
        super().__init__(address, **options)
        self._has_fallback = False

    def _do(self, step: Step) -> Sequence[Any]:
        outcomes = super()._do(step)
        for each in outcomes:
            if isinstance(each, ServiceFailure):
                raise NoAnswer(f"{each.error}{_hint(each.error)}")
        return outcomes


def _hint(error: StoreError) -> str:
    match error.__cause__:
        case ssl.SSLCertVerificationError():
            return "\n  give the authority that signed it with --ca, and its host name in --url"
        case ssl.SSLError():
            return "\n  a service without TLS is at http://"
    return "\n  start one with headgate serve" if isinstance(error, StoreUnavailable) else ""


def call_service(arguments: argparse.Namespace, verb: Callable[[Client], T]) -> T:
    """Return the result of a client call. Raises NoAnswer, and UsageErrors of the service."""
    given = {name: getattr(arguments, name) for name in ("ca", "cert", "key", "caller_key")}
    options: Any = {name: value for name, value in given.items() if value is not None}
    if options.get("caller_key") == "":
        raise UsageError("the caller key must not be empty")
    with _Direct(arguments.url, timeout=arguments.timeout, **options) as client:
        try:
            return verb(client)
        except CallerRefused as error:
            raise NoAnswer(f"{error}\n  put the key into HEADGATE_CALLER_KEY") from None


def post_json(arguments: argparse.Namespace, path: str, question: Any) -> Any:
    """Post JSON to a service, and return its JSON response. Raises NoAnswer."""
    target = endpoint_of(arguments.url, PORTS, DEFAULT_URL)
    identity = Credentials(*[getattr(arguments, name) or "" for name in ("ca", "cert", "key", "caller_key")])
    headers = {**identity.headers, "content-type": "application/json"}
    tls = identity.context() if target.is_tls else None
    body = msgspec.json.encode(question)
    return msgspec.json.decode(exchange(target, "POST", path, body, headers, tls, arguments.timeout)[1])


def write_outcome(ruling: Ruling, terminal: Terminal, passes: str, refused: str) -> None:
    """Write whether a request passes, and why."""
    word, colour = (passes, "green") if ruling.allowed else (refused, "red")
    terminal.write(f"{terminal.styled(word, colour)}: {printable(_because(ruling))}")


def _because(ruling: Ruling) -> str:
    if ruling.decision is None:
        return ruling.reason or ("only shadows apply, which refuse nothing" if ruling.matched else "no rule applies")
    if ruling.allowed:
        return f"rule {ruling.rule_id} is the most restrictive"
    return f"rule {ruling.rule_id}, {wait_of(ruling.decision)}"


def wait_of(decision: Decision) -> str:
    """Return how long a refusal lasts, in whole seconds."""
    return f"for another {-(-decision.retry_after_us // SECOND) or 1} s"


def write_unmatched(ruling: Ruling, terminal: Terminal) -> None:
    """Write the names of the request that limit nothing."""
    if ruling.unmatched_principals:
        names = ", ".join(ruling.unmatched_principals)
        terminal.write(terminal.styled(printable(f"no rule counts by {names}"), "yellow"))
