"""The command as a whole: help, exit codes, pipes."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from headgate.cli import __main__ as command_line
from headgate.cli.__main__ import main
from headgate.cli.command import Commands, Terminal, add_command, coloured
from headgate.core.errors import InvalidStore
from headgate.core.numbers import printable

COMMAND = [sys.executable, "-m", "headgate.cli"]


@pytest.mark.parametrize("words", [[], ["rules"]])
def test_without_a_command_it_helps(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "commands:" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [["--help"], ["rules", "--help"], *(["rules", name, "-h"] for name in ("validate", "diff", "list", "schema"))],
)
def test_help_is_asked_for_and_given(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("usage: headgate")


@pytest.mark.parametrize("words", [["rule"], ["rules", "validat"], ["rules", "validate"], ["rules", "diff"], ["-x"]])
def test_wrong_usage_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "error" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["serve", "--ruls", "rules.yaml"], "unrecognized arguments: --ruls rules.yaml (did you mean --rules?)"),
        (["serve", "--rule=rules.yaml"], "(did you mean --rules?)"),
        (["check", "--usr", "42"], "(did you mean --user?)"),
        (["check", "--frobnicate"], "unrecognized arguments: --frobnicate\n"),
    ],
)
def test_no_option_is_guessed_and_a_misspelt_one_is_told(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("name", command_line.COMMANDS)
def test_a_command_loads_what_it_needs_and_is_in_the_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert re.search(rf"^    {name}\s", capsys.readouterr().out, re.MULTILINE)
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: headgate {name} ")


def test_a_process_that_supervises_does_not_load_what_serves() -> None:
    code = "import sys, headgate.cli.__main__, headgate.cli.serve, headgate.cli.serving; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    heavy = (
        "headgate.server.node",
        "headgate.server.api",
        "headgate.server.wire",
        "headgate.policy",
        "headgate.engine",
    )
    assert [name for name in loaded if name.startswith(heavy)] == []


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("headgate 0.")


@pytest.mark.parametrize("name", ["headgate", "headgate.cli"])
def test_the_package_is_the_command_too(name: str) -> None:
    command = [sys.executable, "-m", name, "--version"]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout.startswith("headgate 0.")


@pytest.mark.parametrize(("error", "code"), [(InvalidStore("no such store"), 2), (KeyboardInterrupt(), 130)])
def test_a_mistake_has_no_stack_trace(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise error

    def add(commands: Commands) -> None:
        add_command(commands, "fail", fail, summary="fails")

    module = ModuleType("failing")
    module.add = add  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "failing", module)
    monkeypatch.setitem(command_line.COMMANDS, "fail", "failing")
    assert main(["fail"]) == code
    told = capsys.readouterr().err
    assert told == ("headgate: no such store\n" if code == 2 else "")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    with subprocess.Popen(
        [*COMMAND, "rules", "schema"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_no_socket_is_taken_for_a_standard_stream_that_is_closed() -> None:
    code = (
        "import os, sys; os.close(0); os.close(1); sys.stdin = sys.stdout = None\n"
        "from headgate.cli.command import open_standard_streams; open_standard_streams()\n"
        "print('unheard', flush=True); sys.stderr.write(os.readlink('/proc/self/fd/1'))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert (ended.stdout, ended.stderr) == ("", "/dev/null")


def test_a_full_disk_is_told_without_a_stack_trace() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*COMMAND, "rules", "schema"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (2, "headgate: No space left on device\n")


def test_the_installed_command_is_this_one() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'headgate = "headgate.cli.__main__:main"' in text


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Terminal.of(Screen(), io.StringIO()).styled("a", "red") == coloured("a", "red") == "\033[31ma\033[0m"
    assert Terminal.of(Screen(), io.StringIO()).styled("a", "red", err=True) == "a"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Terminal.of(Screen(), Screen()).styled("a", "red", err=True) == "a"
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert Terminal.of(Screen(), Screen()).styled("a", "red") == "a"


def test_a_users_text_cannot_steer_the_terminal() -> None:
    assert printable("a\033[31m\u202eb é") == "a\\x1b[31m\\u202eb é"


def test_what_a_stream_cannot_show_is_written_out() -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), "ascii")
    Terminal(ascii_only, ascii_only).write("é")
    ascii_only.seek(0)
    assert ascii_only.read() == "\\xe9\n"
