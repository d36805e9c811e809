"""Writing for people: colours on a terminal, and none where they are not wanted."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Self, TextIO

_STANDARD_ERROR = 2
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where output and complaints go, and whether each takes colours."""

    out: TextIO
    err: TextIO
    out_colours: bool = False
    err_colours: bool = False

    @classmethod
    def of(cls, out: TextIO, err: TextIO) -> Self:
        """Find out about colours: none if NO_COLOR is set (see no-color.org), or it is no terminal."""
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(out, err, wanted and out.isatty(), wanted and err.isatty())

    def say(self, text: str = "") -> None:
        """Write a line of output."""
        self.out.write(_printable(text, self.out) + "\n")

    def complain(self, text: str) -> None:
        """Write a line about what is wrong."""
        self.err.write(_printable(text, self.err) + "\n")

    def styled(self, text: str, style: str, *, err: bool = False) -> str:
        """Return `text` in a colour, if they are wanted there."""
        return coloured(text, style) if (self.err_colours if err else self.out_colours) else text


def silence(stream: TextIO) -> None:
    """Write nothing more to a stream that takes nothing any more: what waits in its buffer would fail again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def open_standard_streams() -> None:
    """Open those of standard input, output and error that are closed. Else the next socket would be taken for one."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        os.set_inheritable(number, True)
    os.close(number)
    for name, each in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(each, "w", closefd=False))


def coloured(text: str, style: str) -> str:
    """Return `text` between the codes of a style."""
    return f"\033[{_CODES[style]}m{text}\033[0m"


def safe(text: str) -> str:
    """Return text of a user's file so that it cannot steer the terminal: control characters are written out."""
    return "".join(character if character.isprintable() else f"\\x{ord(character):02x}" for character in text)


def _printable(text: str, stream: TextIO) -> str:
    """Return `text` with what the stream cannot encode written out."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)
