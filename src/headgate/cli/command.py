"""Shared by subcommands: the terminal, exit codes, and the options that describe a request."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeAlias

from headgate.core.errors import HeadgateError, UsageError
from headgate.core.numbers import printable

DEFAULT_URL = "http://127.0.0.1:8080"
"""The default address of a service."""
OK, NO, WRONG_USAGE = 0, 1, 2
"""Exit codes: success; the answer is no; wrong usage."""
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_PRINCIPALS = {"user": "user", "ip": "address", "apikey": "name of the API key"}
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104  wildcards, and a reachable address


class NoAnswer(HeadgateError):
    """A service did not do what was requested, and why."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """Output for people: standard output and error, and whether each has colours."""

    out: TextIO
    err: TextIO
    out_colours: bool = False
    err_colours: bool = False

    @classmethod
    def of(cls, out: TextIO, err: TextIO) -> Self:
        """Detect colours: none if NO_COLOR is set (see no-color.org), or without a terminal."""
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(out, err, wanted and out.isatty(), wanted and err.isatty())

    def write(self, text: str = "") -> None:
        self.out.write(_encodable(text, self.out) + "\n")

    def write_json(self, data: Any) -> None:
        self.out.write(as_json(data))

    def write_table(self, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write an aligned table under a head; None is an empty cell."""
        texts = [[printable("" if cell is None else str(cell)) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
        for style, row in (("bold", head), *(("", row) for row in texts)):
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            self.write(self.styled(line, style) if style else line)

    def write_error(self, text: str) -> None:
        """Write a line to standard error."""
        self.err.write(_encodable(text, self.err) + "\n")

    def styled(self, text: str, style: str, *, err: bool = False) -> str:
        """Return `text` in a style, if the stream has colours."""
        return coloured(text, style) if (self.err_colours if err else self.out_colours) else text


Command: TypeAlias = Callable[[argparse.Namespace, Terminal], int]
if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  it has no public name
else:
    Commands: TypeAlias = Any


def add_command(
    commands: Commands, name: str, run: Command | None, summary: str, *, more: str = "", examples: str = ""
) -> argparse.ArgumentParser:
    """Add a subcommand, and return its parser. With nothing to run, it prints its help.

    `summary` is for the list of commands; `more` is added to the command's own help; `examples` has one per line.
    """
    epilog = "examples:\n" + "\n".join(f"  {line}" for line in examples.splitlines()) if examples else None
    parser = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[:1].upper()}{summary[1:]}.\n\n{more}".strip(),
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_group(commands: Commands, name: str, summary: str, *, more: str = "") -> Commands:
    """Add a group of subcommands, and return it."""
    return add_command(commands, name, None, summary, more=more).add_subparsers(title="commands", metavar="COMMAND")


def add_principal_options(parser: argparse.ArgumentParser, about: str = "the caller") -> None:
    """Add the options that name principals."""
    for name, noun in _PRINCIPALS.items():
        parser.add_argument(f"--{name}", metavar="VALUE", help=f"{about}: the {noun}")
    repeated = f"{about}: any other dimension of rules; may be repeated"
    parser.add_argument("--attribute", metavar="NAME=VALUE", action="append", default=[], help=repeated)


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a request."""
    add_principal_options(parser)
    parser.add_argument("--method", default="GET", help="the HTTP method; default: GET")
    parser.add_argument("--tier", default="", help="the tier; default: that of the user")
    parser.add_argument("--cost", type=int, default=1, help="the cost of the request; default: 1")


def principal_of(arguments: argparse.Namespace) -> dict[str, str]:
    return {name: getattr(arguments, name) for name in _PRINCIPALS if getattr(arguments, name) is not None}


def attributes_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the attributes. Raises UsageError."""
    return dict(named(text, "--attribute", "region=eu") for text in arguments.attribute)


def named(text: str, option: str, example: str) -> tuple[str, str]:
    """Split NAME=VALUE. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"{option} takes NAME=VALUE, such as {example}, not {text!r}")
    return name, value


def url_of(host: str, port: int, *, tls: bool) -> str:
    """Return a URL by which this machine reaches a listener, even on a wildcard address."""
    return f"{'https' if tls else 'http'}://{with_brackets(_EVERYWHERE.get(host, host))}:{port}"


def with_brackets(host: str) -> str:
    """Return a host as in an address with a port."""
    return f"[{host}]" if ":" in host else host


def discard_output(stream: TextIO) -> None:
    """Redirect a broken stream to /dev/null, so that flushing its buffer does not fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def open_standard_streams() -> None:
    """Open closed standard streams, so that no socket gets their descriptors."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name, each in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(each, "w", closefd=False))


def coloured(text: str, style: str) -> str:
    return f"\033[{_STYLES[style]}m{text}\033[0m"


def as_json(data: Any) -> str:
    return json.dumps(data, indent=2) + "\n"


def _encodable(text: str, stream: TextIO) -> str:
    """Return `text` with what the stream cannot encode escaped."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
