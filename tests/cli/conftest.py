"""The command in this process: its exit code, and what it writes."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import pytest

from headgate.cli.__main__ import main


class Screen(io.StringIO):
    """A terminal, or a file."""

    def __init__(self, *, is_terminal: bool = True) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


class Output(NamedTuple):
    out: str
    err: str


Cli: TypeAlias = Callable[..., Output]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs the command, whose first words may be one text, and returns its output; it ends with `code`."""

    def run(words: str, *more: str, code: int = 0) -> Output:
        capsys.readouterr()
        ended = main([*words.split(), *more])
        output = Output(*capsys.readouterr())
        assert ended == code, output
        assert "Traceback" not in output.err
        return output

    return run
