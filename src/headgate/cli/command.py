"""What subcommands share: a terminal to write to, exit codes, and the options that say who asks for what."""

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
"""Where a service is asked by default."""
OK, NO, WRONG_USAGE = 0, 1, 2
"""Exit codes: all is well; the answer is no; the command cannot be run as given."""
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_PRINCIPALS = {"user": "user", "ip": "address", "apikey": "name of the API key"}
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104  and where to reach it then


class NoAnswer(HeadgateError):
    """A service did not do what it was asked for, and why."""


@dataclass(frozen=True, slots=True)
class Terminal:
    """Writes for people: where output and complaints go, and whether each takes colours."""

    out: TextIO
    err: TextIO
    out_colours: bool = False
    err_colours: bool = False

    @classmethod
    def of(cls, out: TextIO, err: TextIO) -> Self:
        """Find out about colours: none if NO_COLOR is set (see no-color.org), or it is not a terminal."""
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(out, err, wanted and out.isatty(), wanted and err.isatty())

    def say(self, text: str = "") -> None:
        """Write a line of output."""
        self.out.write(_encodable(text, self.out) + "\n")

    def say_json(self, data: Any) -> None:
        """Write data as JSON, for programs."""
        self.out.write(as_json(data))

    def say_table(self, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write lines under a head, each cell below the others of its column; None is an empty one."""
        texts = [[printable("" if cell is None else str(cell)) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
        for style, row in (("bold", head), *(("", row) for row in texts)):
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            self.say(self.styled(line, style) if style else line)

    def complain(self, text: str) -> None:
        """Write a line about what is wrong."""
        self.err.write(_encodable(text, self.err) + "\n")

    def styled(self, text: str, style: str, *, err: bool = False) -> str:
        """Return `text` in a colour, if they are wanted there."""
        return coloured(text, style) if (self.err_colours if err else self.out_colours) else text


Command: TypeAlias = Callable[[argparse.Namespace, Terminal], int]
if TYPE_CHECKING:
    Commands: TypeAlias = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001  it has no public name
else:
    Commands: TypeAlias = Any


def add_command(
    commands: Commands, name: str, run: Command | None, summary: str, *, more: str = "", examples: str = ""
) -> argparse.ArgumentParser:
    """Add a subcommand, and return its parser for arguments. With nothing to run, it prints its help.

    `summary` is a line for the list of commands, `more` what else its own help says; `examples` has one on each line.
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
    """Add a group of subcommands, and return where to add them."""
    return add_command(commands, name, None, summary, more=more).add_subparsers(title="commands", metavar="COMMAND")


def add_principal_options(parser: argparse.ArgumentParser, about: str = "who asks") -> None:
    """Add the options that name somebody; `about` says what for."""
    for name, noun in _PRINCIPALS.items():
        parser.add_argument(f"--{name}", metavar="VALUE", help=f"{about}: the {noun}")
    repeated = f"{about}: anything else that rules count by; may be repeated"
    parser.add_argument("--attribute", metavar="NAME=VALUE", action="append", default=[], help=repeated)


def add_request_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say who asks, and how."""
    add_principal_options(parser)
    parser.add_argument("--method", default="GET", help="the HTTP method; default: GET")
    parser.add_argument("--tier", default="", help="the tier; default: that of the user")
    parser.add_argument("--cost", type=int, default=1, help="what the request takes; default: 1")


def principal_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return who asks."""
    return {name: getattr(arguments, name) for name in _PRINCIPALS if getattr(arguments, name) is not None}


def attributes_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the attributes; UsageError if one has no name."""
    return dict(named(text, "--attribute", "region=eu") for text in arguments.attribute)


def named(text: str, option: str, example: str) -> tuple[str, str]:
    """Return the name and the value that an option has, as in the example. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"{option} takes NAME=VALUE, such as {example}, not {text!r}")
    return name, value


def url_of(host: str, port: int, *, tls: bool) -> str:
    """Return the URL by which this machine reaches what listens on an address, be it on all that there are."""
    return f"{'https' if tls else 'http'}://{bracketed(_EVERYWHERE.get(host, host))}:{port}"


def bracketed(host: str) -> str:
    """Return a host as it stands before a port."""
    return f"[{host}]" if ":" in host else host


def silence(stream: TextIO) -> None:
    """Write nothing more to a stream that takes nothing any more: what waits in its buffer would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def open_standard_streams() -> None:
    """Open those of standard input, output and error that are closed. Else the next socket would be taken for one."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name, each in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(each, "w", closefd=False))


def coloured(text: str, style: str) -> str:
    """Return `text` between the codes of a style."""
    return f"\033[{_STYLES[style]}m{text}\033[0m"


def as_json(data: Any) -> str:
    """Return data as JSON, for programs."""
    return json.dumps(data, indent=2) + "\n"


def _encodable(text: str, stream: TextIO) -> str:
    """Return `text` with what the stream cannot encode written out."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
