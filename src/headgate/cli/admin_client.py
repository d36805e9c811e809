"""Commands on an admin plane or its database: options, calls, and output."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import ssl
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import wraps
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from headgate.cli import progress
from headgate.cli.command import JSON, NO, OK, AddOptions, Commands, NoAnswer, Terminal, heading, option, seconds
from headgate.core.errors import UsageError
from headgate.messages import printable

if TYPE_CHECKING:
    from headgate.admin.audit import Actor
    from headgate.admin.database import Database
    from headgate.sdk.settings import Credentials, NodeAddress

ADMIN_URL = "http://127.0.0.1:8082"
API = "/api/v1"
KEY = (
    "These commands call the admin plane of a service, with the key in HEADGATE_ADMIN_KEY: `headgate serve` prints\n"
    "one when it starts with a new database."
)
BULK_TIMEOUT = 600.0
"""Timeout for requests that may cover 100,000 users."""
_PAGE = 1000
_LONGEST_WAIT = 60.0
"""Longest time that the admin plane waits for nodes, in seconds."""
_MOST_BYTES = 1 << 28
_AT_ONCE = 1 << 16
PORTS = {"http": 80, "https": 443}
T = TypeVar("T")
Json = dict[str, Any]


def admin_options(
    *, changes: bool = False, database: bool = False, waits: bool = False, timeout: float = 30.0
) -> AddOptions:
    """Declare the options for the admin plane, or with `database`, for working on a database instead.

    A command with `changes` takes a reason; one that `waits` may wait until all nodes run the change.
    """

    def add(parser: argparse.ArgumentParser) -> None:
        if waits:
            about = "wait until all nodes run the change, by default for 5s; exit with 1 if some do not"
            option("--wait TIME", about, "", nargs="?", const="5s")(parser)
        if changes:
            option("--reason TEXT", "the reason, for the audit trail", "")(parser)
        JSON(parser)
        known = os.environ.get("HEADGATE_ADMIN_URL") or ADMIN_URL
        plane = [
            option("--url URL", "its address; or HEADGATE_ADMIN_URL", known),
            option("--ca FILE", "trust the authorities in this file (PEM) instead of the system's"),
            option("--timeout SECONDS", "the longest wait for a response", timeout, type=seconds),
        ]
        if database:
            plane.append(option("--database URL", "use this database instead, without a service and a key", ""))
        heading("the admin plane", "Its key is read from HEADGATE_ADMIN_KEY.", *plane)(parser)

    return add


class AdminCommand:
    """A command on an admin plane: its options, its terminal and its calls."""

    def __init__(self, options: argparse.Namespace, terminal: Terminal) -> None:
        self.options, self.terminal = options, terminal
        self._lagging = ""

    def call(
        self,
        method: str,
        *path: str,
        body: Any = None,
        text: str = "",
        query: Mapping[str, Any] | None = None,
        expected: int | None = None,
        doing: str = "",
        shown: progress.Progress | None = None,
    ) -> Any:
        """Send a request to the admin plane, with JSON (`body`) or YAML (`text`); return the response.

        Raises UsageError and NoAnswer. `path` is below that of the API; empty parameters of the query are left out. A
        change is refused if the version is not the `expected` one. `shown` is the progress of a larger task that this
        request is part of.
        """
        from headgate.sdk.settings import Credentials as Given  # noqa: PLC0415  slow to load
        from headgate.sdk.settings import endpoint_of  # noqa: PLC0415

        options = self.options
        target = endpoint_of(options.url, PORTS, ADMIN_URL)
        if options.ca and not target.is_tls:
            raise UsageError(f"--ca requires TLS: the address should be https://{target.place}")
        credentials = Given(ca=options.ca or "", caller_key=os.environ.get("HEADGATE_ADMIN_KEY", ""))
        if not credentials.caller_key:
            raise UsageError("the admin plane requires a key: set HEADGATE_ADMIN_KEY")
        headers = {"accept": "application/json"}
        if getattr(options, "reason", ""):
            headers["x-reason"] = options.reason.encode("ascii", "backslashreplace").decode()
        if expected is not None:
            headers["if-match"] = f'"{expected}"'
        content = None
        if text:
            content, headers["content-type"] = text.encode(), "application/yaml"
        elif body is not None:
            content, headers["content-type"] = msgspec.json.encode(body), "application/json"
        given = {name: value for name, value in (query or {}).items() if value not in {"", None}}
        wait = getattr(options, "wait", "")
        if wait and method != "GET" and "dry_run" not in given:
            given["wait"] = wait
        where = _path(path) + (f"?{urlencode(given)}" if given else "")
        request = target, method, where, content, headers, credentials, options.timeout + _LONGEST_WAIT * bool(wait)
        if shown is not None:
            answer, self._lagging = exchange(*request)
        else:
            with progress.show(self.terminal, doing or f"waiting for {target.place}", "bytes") as seen:
                answer, self._lagging = exchange(*request, seen)
        if path == ("export",):
            return answer.decode()
        return msgspec.json.decode(answer) if answer else None

    def pages(self, path: str, **query: Any) -> list[Json]:
        """Return all items of a paginated list. Raises NoAnswer."""
        found: list[Json] = []
        offset: int | None = 0
        with progress.show(self.terminal, f"reading {path}") as seen:
            while offset is not None:
                page = self.call("GET", path, query={**query, "offset": offset, "limit": _PAGE}, shown=seen)
                found += page["items"]
                seen.done, seen.total, offset = len(found), page["total"], page["next"]
        return found

    def write_list(self, found: Any, columns: Mapping[str, str], items: Iterable[Json] | None = None) -> int:
        """Write a table with a column for each of some fields of the items, or JSON."""
        rows = [[each.get(name) for name in columns.values()] for each in (found if items is None else items)]
        return self.write_rows(found, [*columns], rows)

    def write_rows(self, found: Any, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> int:
        if self.options.json:
            self.terminal.write_json(found)
        else:
            self.terminal.write_table(head, rows)
        return OK

    def write_result(self, answer: Any, *lines: str) -> int:
        """Write the result in words, or as JSON."""
        if self.options.json:
            self.terminal.write_json(answer)
        else:
            for line in lines:
                self.terminal.write(printable(line))
        return self.report_lagging()

    def report_lagging(self) -> int:
        """Report the nodes that do not run a change after --wait; return the exit code."""
        if not getattr(self.options, "wait", ""):
            return OK
        if self._lagging:
            self.terminal.write_error(printable(f"not all nodes run it yet: {self._lagging}"))
            return NO
        if not self.options.json:
            self.terminal.write("all nodes run it")
        return OK

    def confirm(self, question: str) -> bool:
        """Ask for confirmation; raises UsageError without a terminal."""
        if self.options.yes:
            return True
        if not sys.stdin.isatty():
            raise UsageError(f"{question} Without a terminal, confirm with --yes.")
        self.terminal.out.write(f"{question} [y/N] ")
        self.terminal.out.flush()
        return sys.stdin.readline().strip().lower() in {"y", "yes"}

    def on_database(self, work: Callable[[Database, Actor], Awaitable[T]], *, may_be_new: bool = False) -> T:
        """Work on an existing database, or with `may_be_new`, on a new one. Raises UsageError, DatabaseError."""
        from headgate.admin.audit import Actor  # noqa: PLC0415  an extra, slow to load
        from headgate.admin.database import Database as Opened  # noqa: PLC0415

        url = self.options.database
        if not may_be_new and not (named := Opened(url)).exists:
            raise UsageError(f"{named.name} does not exist: set --database to the database of the service")
        actor = Actor(f"{getpass.getuser()} (command line)"[:128], reason=getattr(self.options, "reason", ""))

        async def main() -> T:
            database = await Opened.open(url)
            try:
                return await work(database, actor)
            finally:
                await database.close()

        return asyncio.run(main())


def admin_command(
    commands: Commands,
    name: str,
    *options: AddOptions,
    changes: bool = False,
    database: bool = False,
    waits: bool = False,
    timeout: float = 30.0,
) -> Callable[[Callable[[AdminCommand], int]], Callable[[AdminCommand], int]]:
    """Declare a command on an admin plane; see `Commands.command` and `admin_options`."""
    plane = admin_options(changes=changes, database=database, waits=waits, timeout=timeout)

    def declare(run: Callable[[AdminCommand], int]) -> Callable[[AdminCommand], int]:
        @commands.command(name, *options, plane)
        @wraps(run)
        def wrapped(arguments: argparse.Namespace, terminal: Terminal) -> int:
            return run(AdminCommand(arguments, terminal))

        return run

    return declare


def exchange(  # noqa: PLR0917  as many as a request has
    target: NodeAddress,
    method: str,
    path: str,
    content: bytes | None,
    headers: dict[str, str],
    credentials: Credentials,
    timeout: float,
    seen: progress.Progress | None = None,
) -> tuple[bytes, str]:
    """Send a request; return the body of the response, and the nodes that lag behind. Raises NoAnswer."""
    connection = HTTPConnection(target.host, target.port, timeout=timeout)
    if target.is_tls:
        connection = HTTPSConnection(target.host, target.port, timeout=timeout, context=credentials.context())
    try:
        try:
            connection.connect()
        except OSError as error:
            raise NoAnswer(unreachable(target, error)) from None
        connection.request(method, path, content, {**credentials.headers, **headers})
        response = connection.getresponse()
        seen = seen or progress.Progress("")
        seen.total = response.length or 0
        body = bytearray()
        while len(body) < _MOST_BYTES and (part := response.read(_AT_ONCE)):
            body += part
            seen.done = len(body)
        if response.length:
            raise NoAnswer(f"{target.place} closed the connection, or its response has more than {_MOST_BYTES:,} bytes")
    except TimeoutError:
        raise NoAnswer(f"{target.place} did not respond within {timeout:g} s") from None
    except (OSError, HTTPException) as error:
        hint = "" if target.is_tls else " (for TLS, use https://)"
        raise NoAnswer(f"{target.place} closed the connection, or does not use HTTP{hint}: {error!r}") from None
    finally:
        connection.close()
    if response.status not in {200, 201, 204}:
        raise NoAnswer(_refusal(target, response.status, body, response.headers.get("retry-after", "")))
    return bytes(body), response.headers.get("x-nodes-behind", "")


def _path(segments: Sequence[str]) -> str:
    """Return a path of the API. Raises UsageError for an empty name: without it, the path is that of a list."""
    if "" in segments:
        raise UsageError("a name or an id must not be empty")
    return "/".join([API, *(quote(segment, "") for segment in segments)])


def unreachable(target: NodeAddress, error: OSError) -> str:
    match error:
        case ssl.SSLCertVerificationError():
            return f"the certificate of {target.place} is not trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"{target.place} failed the TLS handshake: {error.strerror or error}"
        case TimeoutError():
            return f"{target.place} did not respond in time"
        case ConnectionRefusedError():
            return f"no service listens at {target.place} (connection refused): start one with headgate serve"
        case _:
            return f"{target.place} cannot be reached: {error.strerror or error}"


def _refusal(target: NodeAddress, status: int, body: bytearray, retry_after: str) -> str:
    from headgate.sdk.transport import Problem  # noqa: PLC0415  slow to load

    try:
        problem = msgspec.json.decode(body, type=Problem)
    except (ValueError, RecursionError):
        problem = Problem()
    message = f"{target.place} answered {status}"
    if text := problem.detail or problem.title:
        message += f": {text}"
    elif status == 404:
        message += ": is it a Headgate service?"
    if status == 401:
        message += "\n  put the key into HEADGATE_ADMIN_KEY"
    for place in problem.places:
        message += f"\n  {place}"
    return f"{message}\n  try again in {retry_after} s" if status == 503 and retry_after.isdigit() else message
