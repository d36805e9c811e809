"""Asking an admin plane from a terminal, or working on its database: options, calls, and how answers are written."""

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
    "The admin plane of a service is asked, with the key in HEADGATE_ADMIN_KEY: `headgate serve` prints one when it\n"
    "begins with a new database."
)
_PAGE = 1000
_LONGEST_WAIT = 60.0
"""Seconds that the admin plane waits for nodes, at most."""
_MOST_BYTES = 1 << 28
_AT_ONCE = 1 << 16
PORTS = {"http": 80, "https": 443}
"""Of the schemes, where an address has none."""
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
    """Add the options that say which admin plane is asked, or if that is possible, on which `database` it is done.

    A command that changes something may be given a reason, and if it `waits`, it may wait until all nodes run that.
    """
    if waits:
        about = "wait until all nodes run the change, 5s if no time is given; exit with 1 if some do not"
        parser.add_argument("--wait", metavar="TIME", nargs="?", const="5s", default="", help=about)
    if changes:
        parser.add_argument("--reason", metavar="TEXT", default="", help="why; it is kept in the audit trail")
    parser.add_argument("--json", action="store_true", help="write JSON, for programs")
    known = os.environ.get("HEADGATE_ADMIN_URL") or ADMIN_URL
    plane = parser.add_argument_group("the admin plane", "It wants a key, which is read from HEADGATE_ADMIN_KEY.")
    plane.add_argument("--url", default=known, help="where it is; or HEADGATE_ADMIN_URL [%(default)s]")
    plane.add_argument("--ca", metavar="FILE", help="trust the authorities in this file (PEM)")
    plane.add_argument(
        "--timeout", metavar="SECONDS", type=float, default=seconds, help="seconds to wait [%(default)g]"
    )
    if database:
        plane.add_argument(
            "--database",
            metavar="URL",
            default="",
            help="do it on this database instead; no service has to run, and no key is needed",
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
    """Send a request to the admin plane that the arguments name; returns the answer. Raises NoAnswer.

    A change is refused unless the present version is `expected`. A request that takes long is shown as what it is
    `doing`, unless it is one of several whose progress is `shown` already.
    """
    from headgate.sdk.settings import Credentials, endpoint_of  # noqa: PLC0415  slow to load

    target = endpoint_of(arguments.url, PORTS, ADMIN_URL)
    if arguments.ca and not target.is_tls:
        raise UsageError(f"--ca is for TLS: the address should be https://{target.place}")
    credentials = Credentials(ca=arguments.ca or "", caller_key=os.environ.get("HEADGATE_ADMIN_KEY", ""))
    if not credentials.caller_key:
        raise UsageError("the admin plane wants a key: put it into HEADGATE_ADMIN_KEY")
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
    asked = target, method, where, content, headers, tls, timeout
    if shown is not None:
        status, answer, arguments.behind = exchanged(*asked)
    else:
        with progress.shown(
            Terminal.of(sys.stdout, sys.stderr), doing or f"waiting for {target.place}", "bytes"
        ) as seen:
            status, answer, arguments.behind = exchanged(*asked, seen)
    if status == 204:
        return None
    return msgspec.json.decode(answer) if not where.startswith(f"{API}/export") else answer.decode()


def unreachable(target: NodeAddress, error: OSError) -> str:
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


def exchanged(  # noqa: PLR0917  as many as a request has
    target: NodeAddress,
    method: str,
    path: str,
    content: bytes | None,
    headers: dict[str, str],
    tls: ssl.SSLContext | None,
    timeout: float,
    seen: progress.Progress | None = None,
) -> tuple[int, bytes, str]:
    """Send a request, and return the status and body of an answer that is not a problem, and the nodes that lag.

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
            raise NoAnswer(f"{target.place} hung up, or its answer has more than {_MOST_BYTES:,} bytes")
    except TimeoutError:
        raise NoAnswer(f"{target.place} does not answer within {timeout:g} s") from None
    except (OSError, HTTPException) as error:
        hint = "" if tls else " (if it speaks TLS, use https://)"
        raise NoAnswer(f"{target.place} hung up, or does not speak HTTP{hint}: {error!r}") from None
    finally:
        connection.close()
    if response.status not in {200, 201, 204}:
        raise NoAnswer(_refusal(target, response.status, body, response.headers.get("retry-after", "")))
    return response.status, body, response.headers.get("x-nodes-behind", "")


def _body_of(response: HTTPResponse, seen: progress.Progress | None) -> bytes:
    """Return the body of a response, up to a bound."""
    if seen is not None:
        seen.total = response.length or 0
    body = bytearray()
    while len(body) < _MOST_BYTES and (part := response.read(_AT_ONCE)):
        body += part
        if seen is not None:
            seen.done = len(body)
    return bytes(body)


class _Wrong(msgspec.Struct, frozen=True):
    pointer: str = ""
    detail: str = ""


class _Problem(msgspec.Struct, frozen=True):
    """Why nothing was done: RFC 9457."""

    title: str = ""
    detail: str = ""
    errors: tuple[_Wrong, ...] = ()


def _refusal(target: NodeAddress, status: int, body: bytes, retry_after: str) -> str:
    """Say why nothing was done, by what was answered."""
    try:
        problem = msgspec.json.decode(body, type=_Problem)
    except (ValueError, RecursionError):
        problem = _Problem()
    said = f"{target.place} answers {status}"
    if text := problem.detail or problem.title:
        said += f": {text}"
    elif status == 404:
        said += ": is it Headgate?"
    if status == 401:
        said += "\n  the key goes into HEADGATE_ADMIN_KEY"
    for wrong in problem.errors:
        said += f"\n  {wrong.pointer or 'the request'} {wrong.detail}"
    return f"{said}\n  try again in {retry_after} s" if status == 503 and retry_after.isdigit() else said


def paged(arguments: argparse.Namespace, path: str, **query: Any) -> list[Json]:
    """Return all items of a list that the admin plane gives in pages. Raises NoAnswer."""
    found: list[Json] = []
    offset: int | None = 0
    with progress.shown(Terminal.of(sys.stdout, sys.stderr), f"reading {path[1:]}") as seen:
        while offset is not None:
            page = call(arguments, "GET", path, query={**query, "offset": offset, "limit": _PAGE}, shown=seen)
            found += page["items"]
            seen.done, seen.total, offset = len(found), page["total"], page["next"]
    return found


def on_database(url: str, work: Callable[[Database], Awaitable[T]], *, may_be_new: bool = False) -> T:
    """Do something on a database itself, one that is there unless it may be new. Raises UsageError, DatabaseError."""
    from headgate.admin.database import Database as Opened  # noqa: PLC0415  an extra, slow to load

    if not may_be_new and not (named := Opened(url)).exists:
        raise UsageError(f"{named.name}: there is no such file; name the database of the service")

    async def main() -> T:
        database = await Opened.open(url)
        try:
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(main())


def operator() -> str:
    """Return who is at this terminal, for the audit trail."""
    return f"{getpass.getuser()} (command line)"[:128]


def confirmed(arguments: argparse.Namespace, terminal: Terminal, question: str) -> bool:
    """Ask whether something is really wanted; raises UsageError where nobody can be asked."""
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Say --yes where nobody can be asked.")
    terminal.out.write(f"{question} [y/N] ")
    terminal.out.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def listed(
    arguments: argparse.Namespace, terminal: Terminal, found: Any, head: Sequence[str], rows: Iterable[Sequence[Any]]
) -> int:
    """Write what was found: a table, or JSON."""
    if arguments.json:
        terminal.say_json(found)
    else:
        terminal.say_table(head, rows)
    return OK


def told(arguments: argparse.Namespace, terminal: Terminal, answer: Any, *lines: str) -> int:
    """Say what was done: in words, or as JSON."""
    if arguments.json:
        terminal.say_json(answer)
    else:
        for line in lines:
            terminal.say(printable(line))
    return waited(arguments, terminal)


def waited(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Say which nodes do not run a change that was waited for; returns the exit code."""
    if not getattr(arguments, "wait", ""):
        return OK
    if arguments.behind:
        terminal.complain(printable(f"not all nodes run it yet: {arguments.behind}"))
        return NO
    if not arguments.json:
        terminal.say("all nodes run it")
    return OK
