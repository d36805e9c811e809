"""Commands on a running service: options, calls by its client, and messages for failures."""

from __future__ import annotations

import argparse
import os
import ssl
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack

import msgspec

from headgate.cli.admin_client import PORTS, exchange
from headgate.cli.command import DEFAULT_URL, NoAnswer, Terminal, attributes_of, option, principal_of, seconds
from headgate.core.decision import Decision
from headgate.core.errors import StoreBusy, StoreUnavailable, UsageError
from headgate.core.quota import SECOND
from headgate.engine import Ruling
from headgate.messages import printable
from headgate.policy.request import Request
from headgate.sdk.clients import Client
from headgate.sdk.settings import ClientOptions, Credentials, endpoint_of
from headgate.sdk.transport import CallerRefused, ServiceFailure
from headgate.sdk.verbs import Step

T = TypeVar("T")


def add_service_options(parser: argparse.ArgumentParser, *, is_optional: bool = False) -> None:
    """Add the options for the service and the caller; `is_optional` if a file may replace the service."""
    url = None if is_optional else os.environ.get("HEADGATE_URL") or DEFAULT_URL
    key = "the caller key, if the service requires one; HEADGATE_CALLER_KEY is safer"
    for add in (
        option("--url URL", "the address of the service; or HEADGATE_URL", url),
        option("--caller-key KEY", key),
        option("--ca FILE", "trust the authorities in this file (PEM) instead of the system's"),
        option("--cert FILE", "the client certificate (PEM), if the service requires one"),
        option("--key FILE", "its private key (PEM), if in a separate file"),
        option("--timeout SECONDS", "the longest wait for a response", 5.0, type=seconds),
    ):
        add(parser)
    parser.set_defaults(caller_key=os.environ.get("HEADGATE_CALLER_KEY") or None)  # not shown as a default


def request_of(arguments: argparse.Namespace, **more: Any) -> Request:
    endpoint = "/" if arguments.path is None else arguments.path
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
                is_down = isinstance(each.error, StoreUnavailable) and not isinstance(each.error, StoreBusy)
                hint = "\n  start a service with headgate serve" if is_down else ""
                match each.error.__cause__:
                    case ssl.SSLCertVerificationError():
                        hint = "\n  set --ca to the authority that signed it, and --url to its host name"
                    case ssl.SSLError():
                        hint = "\n  for a service without TLS, use http://"
                raise NoAnswer(f"{each.error}{hint}")
        return outcomes


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


def post_json(arguments: argparse.Namespace, path: str, request: Any) -> Any:
    target = endpoint_of(arguments.url, PORTS, DEFAULT_URL)
    identity = Credentials(*[getattr(arguments, name) or "" for name in ("ca", "cert", "key", "caller_key")])
    body, headers = msgspec.json.encode(request), {"content-type": "application/json"}
    return msgspec.json.decode(exchange(target, "POST", path, body, headers, identity, arguments.timeout)[0])


def write_outcome(ruling: Ruling, terminal: Terminal, passes: str, refused: str) -> None:
    word, colour = (passes, "green") if ruling.allowed else (refused, "red")
    if ruling.decision is None:
        because = ruling.reason or ("only shadows apply, which refuse nothing" if ruling.matched else "no rule applies")
    elif ruling.allowed:
        because = f"rule {ruling.rule_id} is the most restrictive"
    else:
        because = f"rule {ruling.rule_id}, {wait_of(ruling.decision)}"
    terminal.write(f"{terminal.styled(word, colour)}: {printable(because)}")


def wait_of(decision: Decision) -> str:
    """Return how long a refusal lasts, in whole seconds."""
    return f"for another {-(-decision.retry_after_us // SECOND) or 1} s"


def write_unmatched(ruling: Ruling, terminal: Terminal) -> None:
    if ruling.unmatched_principals:
        names = ", ".join(ruling.unmatched_principals)
        terminal.write(printable(f"no rule counts by {names}"), "yellow")
