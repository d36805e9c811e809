"""Commands on an admin plane or its database: options, calls, and output."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

import msgspec

from headgate.cli import progress
from headgate.cli.command import NO, OK, NoAnswer, Terminal
from headgate.core.errors import UsageError
from headgate.core.numbers import printable

if TYPE_CHECKING:
    from headgate.admin.database import Database
    from headgate.sdk.settings import NodeAddress

ADMIN_URL = "http://127.0.0.1:8082"
API = "/api/v1"
KEY = (
    "These commands call the admin plane of a service, with the key in HEADGATE_ADMIN_KEY: `headgate serve` prints\n"
    "one when it starts with a new database."
)
_PAGE = 1000
_LONGEST_WAIT = 60.0
"""Longest time that the admin plane waits for nodes, in seconds."""
_MOST_BYTES = 1 << 28
_AT_ONCE = 1 << 16
PORTS = {"http": 80, "https": 443}
"""Default ports of the schemes."""
T = TypeVar("T")
Json = dict[str, Any]


def add_admin_options(
    parser: argparse.ArgumentParser,
    *,
    changes: bool = False,
    database: bool = False,
    waits: bool = False,
    seconds: float = 30.0,
) -> None:
    """Add the options for the admin plane, or with `database`, for working on a database instead.

    A command with `changes` takes a reason; one that `waits` may wait until all nodes run the change.
    """
    if waits:
        about = "wait until all nodes run the change, by default for 5s; exit with 1 if some do not"
        parser.add_argument("--wait", metavar="TIME", nargs="?", const="5s", default="", help=about)
    if changes:
        parser.add_argument("--reason", metavar="TEXT", default="", help="why; recorded in the audit trail")
    parser.add_argument("--json", action="store_true", help="write JSON, for programs")
    known = os.environ.get("HEADGATE_ADMIN_URL") or ADMIN_URL
    plane = parser.add_argument_group("the admin plane", "It requires a key, which is read from HEADGATE_ADMIN_KEY.")
    plane.add_argument("--url", default=known, help="its address; or HEADGATE_ADMIN_URL [%(default)s]")
    plane.add_argument("--ca", metavar="FILE", help="trust the authorities in this file (PEM)")
    plane.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=seconds, help="seconds to wait [%(default)g]"
    )
    if database:
        plane.add_argument(
            "--database",
            metavar="URL",
            default="",
            help="work on this database instead, without a service and a key",
        )


def call(
    arguments: argparse.Namespace,
    method: str,
    path: str,
    body: Any = None,
    *,
    raw: str | None = None,
    query: dict[str, Any] | None = None,
    expected: int | None = None,
    doing: str = "",
    shown: progress.Progress | None = None,
) -> Any:
    """Send a request to the admin plane of the arguments; return the response. Raises NoAnswer.

    A change is refused unless the current version is `expected`. A slow request shows progress as `doing`, unless it
    is part of the `shown` one.
    """
    from headgate.sdk.settings import Credentials, endpoint_of  # noqa: PLC0415  slow to load

    target = endpoint_of(arguments.url, PORTS, ADMIN_URL)
    if arguments.ca and not target.is_tls:
        raise UsageError(f"--ca requires TLS: the address should be https://{target.place}")
    credentials = Credentials(ca=arguments.ca or "", caller_key=os.environ.get("HEADGATE_ADMIN_KEY", ""))
    if not credentials.caller_key:
        raise UsageError("the admin plane requires a key: set HEADGATE_ADMIN_KEY")
    headers = {**credentials.headers, "accept": "application/json"}
    if getattr(arguments, "reason", ""):
        headers["x-reason"] = arguments.reason.encode("ascii", "backslashreplace").decode()
    if expected is not None:
        headers["if-match"] = f'"{expected}"'
    content = None
    if raw is not None:
        content, headers["content-type"] = raw.encode(), "application/yaml"
    elif body is not None:
        content, headers["content-type"] = msgspec.json.encode(body), "application/json"
    given = {name: value for name, value in (query or {}).items() if value not in {"", None}}
    wait = getattr(arguments, "wait", "")
    if wait and method != "GET" and "dry_run" not in given:
        given["wait"] = wait
    where = f"{API}{path}?{urlencode(given)}" if given else f"{API}{path}"
    tls = credentials.context() if target.is_tls else None
    timeout = arguments.timeout + _LONGEST_WAIT * bool(wait)
    request = target, method, where, content, headers, tls, timeout
    if shown is not None:
        status, answer, arguments.behind = exchange(*request)
    else:
        with progress.show(
            Terminal.of(sys.stdout, sys.stderr), doing or f"waiting for {target.place}", "bytes"
        ) as seen:
            status, answer, arguments.behind = exchange(*request, seen)
    if status == 204:
        return None
    return msgspec.json.decode(answer) if not where.startswith(f"{API}/export") else answer.decode()


def unreachable(target: NodeAddress, error: OSError) -> str:
    """Return why there is no connection, and a hint."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"{target.place} has a certificate that is not trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"{target.place} failed the TLS handshake: {error.strerror or error}"
        case TimeoutError():
            return f"{target.place} does not answer in time"
        case ConnectionRefusedError():
            return f"nothing listens at {target.place} (connection refused): start one with headgate serve"
        case _:
            return f"{target.place} cannot be reached: {error.strerror or error}"


def exchange(  # noqa: PLR0917  as many as a request has
    target: NodeAddress,
    method: str,
    path: str,
    content: bytes | None,
    headers: dict[str, str],
    tls: ssl.SSLContext | None,
    timeout: float,
    seen: progress.Progress | None = None,
) -> tuple[int, bytes, str]:
    """Send a request; return status and body of a response that is no error, and the nodes that lag behind.

    Raises NoAnswer.
    """
    if tls is None:
        connection = HTTPConnection(target.host, target.port, timeout=timeout)
    else:
        connection = HTTPSConnection(target.host, target.port, timeout=timeout, context=tls)
    try:
        try:
            connection.connect()
        except OSError as error:
            raise NoAnswer(unreachable(target, error)) from None
        connection.request(method, path, content, headers)
        response = connection.getresponse()
        body = _body_of(response, seen)
        if response.length:
            raise NoAnswer(f"{target.place} closed the connection, or its response has more than {_MOST_BYTES:,} bytes")
    except TimeoutError:
        raise NoAnswer(f"{target.place} does not answer within {timeout:g} s") from None
    except (OSError, HTTPException) as error:
        hint = "" if tls else " (if it speaks TLS, use https://)"
        raise NoAnswer(f"{target.place} closed the connection, or does not speak HTTP{hint}: {error!r}") from None
    finally:
        connection.close()
    if response.status not in {200, 201, 204}:
        raise NoAnswer(_refusal(target, response.status, body, response.headers.get("retry-after", "")))
    return response.status, body, response.headers.get("x-nodes-behind", "")


def _body_of(response: HTTPResponse, seen: progress.Progress | None) -> bytes:
    if seen is not None:
        seen.total = response.length or 0
    body = bytearray()
    while len(body) < _MOST_BYTES and (part := response.read(_AT_ONCE)):
        body += part
        if seen is not None:
            seen.done = len(body)
    return bytes(body)


def _refusal(target: NodeAddress, status: int, body: bytes, retry_after: str) -> str:
    from headgate.sdk.transport import Problem  # noqa: PLC0415  slow to load

    try:
        problem = msgspec.json.decode(body, type=Problem)
    except (ValueError, RecursionError):
        problem = Problem()
    message = f"{target.place} answers {status}"
    if text := problem.detail or problem.title:
        message += f": {text}"
    elif status == 404:
        message += ": is it Headgate?"
    if status == 401:
        message += "\n  put the key into HEADGATE_ADMIN_KEY"
    for wrong in problem.errors:
        message += f"\n  {wrong.pointer or 'the request'} {wrong.detail}"
    return f"{message}\n  try again in {retry_after} s" if status == 503 and retry_after.isdigit() else message


def read_pages(arguments: argparse.Namespace, path: str, **query: Any) -> list[Json]:
    """Return all items of a paginated list. Raises NoAnswer."""
    found: list[Json] = []
    offset: int | None = 0
    with progress.show(Terminal.of(sys.stdout, sys.stderr), f"reading {path[1:]}") as seen:
        while offset is not None:
            page = call(arguments, "GET", path, query={**query, "offset": offset, "limit": _PAGE}, shown=seen)
            found += page["items"]
            seen.done, seen.total, offset = len(found), page["total"], page["next"]
    return found


def on_database(url: str, work: Callable[[Database], Awaitable[T]], *, may_be_new: bool = False) -> T:
    """Work on an existing database, or with `may_be_new`, on a new one. Raises UsageError, DatabaseError."""
    from headgate.admin.database import Database as Opened  # noqa: PLC0415  an extra, slow to load

    if not may_be_new and not (named := Opened(url)).exists:
        raise UsageError(f"{named.name}: no such file; name the database of the service")

    async def main() -> T:
        database = await Opened.open(url)
        try:
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(main())


def operator() -> str:
    """Return the local user, for the audit trail."""
    return f"{getpass.getuser()} (command line)"[:128]


def confirm(arguments: argparse.Namespace, terminal: Terminal, question: str) -> bool:
    """Ask for confirmation; raises UsageError without a terminal."""
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Without a terminal, confirm with --yes.")
    terminal.out.write(f"{question} [y/N] ")
    terminal.out.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def write_list(
    arguments: argparse.Namespace, terminal: Terminal, found: Any, head: Sequence[str], rows: Iterable[Sequence[Any]]
) -> int:
    """Write a table, or JSON."""
    if arguments.json:
        terminal.write_json(found)
    else:
        terminal.write_table(head, rows)
    return OK


def write_result(arguments: argparse.Namespace, terminal: Terminal, answer: Any, *lines: str) -> int:
    """Write the result in words, or as JSON."""
    if arguments.json:
        terminal.write_json(answer)
    else:
        for line in lines:
            terminal.write(printable(line))
    return report_lagging(arguments, terminal)


def report_lagging(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Report the nodes that do not run a change after --wait; return the exit code."""
    if not getattr(arguments, "wait", ""):
        return OK
    if arguments.behind:
        terminal.write_error(printable(f"not all nodes run it yet: {arguments.behind}"))
        return NO
    if not arguments.json:
        terminal.write("all nodes run it")
    return OK
