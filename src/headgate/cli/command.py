"""Shared by subcommands: the terminal, exit codes, and the options that describe a request."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import getdoc
from io import TextIOWrapper
from typing import Any, Self, TextIO, TypeAlias

from headgate.config.times import length_of
from headgate.core.errors import HeadgateError, UsageError
from headgate.core.numbers import short
from headgate.messages import printable

DEFAULT_URL = "http://127.0.0.1:8080"
OK, NO, WRONG_USAGE = 0, 1, 2
"""Exit codes: success; a negative result; a usage error."""
_LONGEST_TIMEOUT, _LONGEST_NUMBER = 3600, 20
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_PRINCIPALS = {"user": "user", "ip": "address", "apikey": "name of the API key"}
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}  # noqa: S104  wildcards, and a reachable address


class NoAnswer(HeadgateError):
    """A service did not perform a request, for the reason in the message."""


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
        if isinstance(out, TextIOWrapper):
            out.reconfigure(errors="backslashreplace")  # as on standard error
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(out, err, wanted and out.isatty(), wanted and err.isatty())

    def write(self, text: str = "", style: str = "") -> None:
        self.out.write(self.styled(text, style) + "\n")

    def write_json(self, data: Any) -> None:
        self.out.write(as_json(data))

    def write_table(self, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Write an aligned table under a head; None is an empty cell."""
        texts = [[printable("" if cell is None else str(cell)) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
        for style, row in (("bold", head), *(("", row) for row in texts)):
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            self.write(line, style)

    def write_error(self, text: str, style: str = "") -> None:
        self.err.write(self.styled(text, style, err=True) + "\n")

    def styled(self, text: str, style: str, *, err: bool = False) -> str:
        """Return `text` in a style, if there is one and the stream has colours."""
        has_colours = self.err_colours if err else self.out_colours
        return f"\033[{_STYLES[style]}m{text}\033[0m" if style and has_colours else text


Run: TypeAlias = Callable[[argparse.Namespace, Terminal], int]
"""Runs a command; returns its exit code."""
AddOptions: TypeAlias = Callable[[Any], object]
"""Adds options to a parser, or to a group of one."""
Subparsers: TypeAlias = Any
"""The result of `ArgumentParser.add_subparsers`, whose type has no public name."""


class Commands:
    """Commands, each declared by the function that runs it."""

    def __init__(self) -> None:
        self._declared: list[tuple[str, str, Run | Commands, Sequence[AddOptions]]] = []
        """The name, the help, the function or the group, and the options of each."""

    def command(self, name: str, *options: AddOptions) -> Callable[[Run], Run]:
        """Declare a command. The docstring of its function is its help, whose first line is in the list of commands."""

        def declare(run: Run) -> Run:
            self._declared.append((name, getdoc(run) or "", run, options))
            return run

        return declare

    def group(self, name: str, text: str) -> Commands:
        """Declare a group of commands, with its help."""
        group = Commands()
        self._declared.append((name, text, group, ()))
        return group

    def include(self, others: Commands) -> None:
        self._declared += others._declared

    def add_to(self, parsers: Subparsers) -> None:
        """Add a parser for each command; that of a group without a command prints its help."""
        for name, text, runs, options in self._declared:
            about, heading, examples = text.partition("\n\nExamples:\n")
            summary = about.partition("\n\n")[0].removesuffix(".")
            parser = parsers.add_parser(
                name,
                help=summary if summary[:2].isupper() else summary[:1].lower() + summary[1:],
                description=about,
                epilog=f"{heading.strip()}\n{examples}" if examples else None,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
            if isinstance(runs, Commands):
                parser.set_defaults(parser=parser)
                runs.add_to(parser.add_subparsers(title="commands", metavar="COMMAND"))
            else:
                parser.set_defaults(run=runs, parser=parser)
            for add in options:
                add(parser)


def option(form: str, about: str, default: Any = None, **settings: Any) -> AddOptions:
    """Declare an option as its usage shows it: ``-o --output FILE``, ``--json``, ``--entry KEY=VALUE ...``.

    A form without a dash is positional: ``PATH``, ``PATH?``, ``PATH*`` or ``PATH+``. A default is shown, and gives the
    type of a number; `settings` are those of `ArgumentParser.add_argument`.
    """
    *names, placeholder = form.removesuffix(" ...").split()
    if placeholder.startswith("-"):
        names.append(placeholder)
        settings = {"action": "store_true", **settings}
    elif not names:
        word = placeholder.rstrip("?*+")
        settings |= {"nargs": placeholder[-1]} if word != placeholder else {}
        names, placeholder = [word.lower().partition("=")[0]], word
    if not placeholder.startswith("-") and "choices" not in settings:
        settings["metavar"] = placeholder
    if form.endswith(" ..."):
        settings |= {"action": "append", "default": []}
    if default is not None:
        settings["default"] = default
        if type(default) in {int, float}:
            settings.setdefault("type", type(default))
        if default != "" and "default" not in about:
            about += " [%(default)g]" if type(default) is float else " [%(default)s]"
    return lambda parser: parser.add_argument(*names, help=about, **settings)


def heading(title: str, about: str | None, *options: AddOptions) -> AddOptions:
    def add(parser: argparse.ArgumentParser) -> None:
        group = parser.add_argument_group(title, about)
        for each in options:
            each(group)

    return add


JSON = option("--json", "write JSON, for programs")


def add_principal_options(parser: Any, about: str = "the caller") -> None:
    for name, noun in _PRINCIPALS.items():
        option(f"--{name} VALUE", f"{about}: the {noun}")(parser)
    option("--attribute NAME=VALUE ...", f"{about}: any other dimension of rules; may be repeated")(parser)


def add_request_options(parser: Any) -> None:
    add_principal_options(parser)
    option("--method METHOD", "the HTTP method; default: GET", "GET")(parser)
    option("--tier TIER", "the tier; default: that of the user", "")(parser)
    option("--cost COST", "the cost of the request; default: 1", 1)(parser)


def principal_of(arguments: argparse.Namespace) -> dict[str, str]:
    return {name: getattr(arguments, name) for name in _PRINCIPALS if getattr(arguments, name) is not None}


def attributes_of(arguments: argparse.Namespace) -> dict[str, str]:
    return dict(split_pair(text, "--attribute", "region=eu") for text in arguments.attribute)


def split_pair(text: str, option: str, example: str) -> tuple[str, str]:
    """Split NAME=VALUE. Raises UsageError."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise UsageError(f"{option} takes NAME=VALUE, such as {example}, not {text!r}")
    return name, value


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return the type of an option that is a whole number."""

    def parse(text: str) -> int:
        if text.removeprefix("-").isdecimal() and len(text) < _LONGEST_NUMBER and low <= int(text) <= high:
            return int(text)
        raise argparse.ArgumentTypeError(f"must be a whole number from {low} to {high}, not {short(text)}")

    return parse


def seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) <= _LONGEST_TIMEOUT:
            return float(text)
    raise argparse.ArgumentTypeError(
        f"must be a number of seconds above 0 and up to {_LONGEST_TIMEOUT}, not {short(text)}"
    )


def duration_us(text: str, name: str) -> int:
    """Return the duration that an option names. Raises UsageError."""
    try:
        return length_of(text)
    except ValueError:
        raise UsageError(f"{name} must be a duration, such as 30m, 1h or 7d, not {short(text)}") from None


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


def as_json(data: Any) -> str:
    return json.dumps(data, indent=2) + "\n"
