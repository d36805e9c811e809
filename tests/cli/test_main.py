"""The command: help, exit codes, pipes."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from headgate.cli import __main__ as command_line
from headgate.cli.command import Commands, Terminal
from headgate.core.errors import InvalidStore
from headgate.messages import printable
from tests.cli.conftest import Cli, Screen

COMMAND = [sys.executable, "-m", "headgate.cli"]


def test_help(cli: Cli) -> None:
    for words in ("", "rules"):
        assert "commands:" in cli(words, code=2).out
    for words in ("--help", "rules --help", "rules validate -h", "rules diff -h", "rules list -h", "rules schema -h"):
        assert cli(words).out.startswith("usage: headgate")


def test_wrong_usage_is_2_and_options_are_not_abbreviated(cli: Cli) -> None:
    for words, message in (
        *((words, "error") for words in ("rule", "rules validat", "rules validate", "rules diff", "-x")),
        ("serve --ruls rules.yaml", "unrecognized arguments: --ruls rules.yaml (did you mean --rules?)"),
        ("serve --rule=rules.yaml", "(did you mean --rules?)"),
        ("check --usr 42", "(did you mean --user?)"),
        ("check --frobnicate", "unrecognized arguments: --frobnicate\n"),
    ):
        assert message in cli(words, code=2).err


def test_every_command_is_in_the_help_and_has_one(cli: Cli) -> None:
    overview = cli("--help").out
    for name in command_line.COMMANDS:
        assert re.search(rf"^    {name}\s", overview, re.MULTILINE), name
        assert cli(f"{name} --help").out.startswith(f"usage: headgate {name} ")


def test_a_supervising_process_does_not_load_the_decision_plane() -> None:
    code = "import sys, headgate.cli.__main__, headgate.cli.serve, headgate.cli.serving; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    heavy = tuple(f"headgate.{name}" for name in ("server.node", "server.api", "server.wire", "policy", "engine"))
    assert [name for name in loaded if name.startswith(heavy)] == []


def test_the_version_of_the_command_and_the_package() -> None:
    for name in ("headgate", "headgate.cli"):
        command = [sys.executable, "-m", name, "--version"]
        assert subprocess.run(command, capture_output=True, check=True, text=True).stdout.startswith("headgate 0.")
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert 'headgate = "headgate.cli.__main__:main"' in text


@pytest.mark.parametrize(("error", "code"), [(InvalidStore("no such store"), 2), (KeyboardInterrupt(), 130)])
def test_a_mistake_has_no_stack_trace(
    error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    def fail(*_: object) -> int:
        raise error

    module = ModuleType("failing")
    module.COMMANDS = Commands()  # type: ignore[attr-defined]
    module.COMMANDS.command("fail")(fail)
    monkeypatch.setitem(sys.modules, "failing", module)
    monkeypatch.setitem(command_line.COMMANDS, "fail", "failing")
    assert cli("fail", code=code).err == ("headgate: no such store\n" if code == 2 else "")


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


def test_a_full_disk_is_an_error_without_a_stack_trace() -> None:
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [*COMMAND, "rules", "schema"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (2, "headgate: No space left on device\n")


def test_only_terminals_get_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Terminal.of(Screen(), io.StringIO()).styled("a", "red") == "\033[31ma\033[0m"
    assert Terminal.of(Screen(), io.StringIO()).styled("a", "red", err=True) == "a"
    monkeypatch.setenv("NO_COLOR", "1")
    assert Terminal.of(Screen(), Screen()).styled("a", "red", err=True) == "a"
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert Terminal.of(Screen(), Screen()).styled("a", "red") == "a"


def test_text_of_users_cannot_control_the_terminal() -> None:
    assert printable("a\033[31m\u202eb é") == "a\\x1b[31m\\u202eb é"


def test_text_that_a_stream_cannot_encode_is_escaped() -> None:
    ascii_only = io.TextIOWrapper(io.BytesIO(), "ascii")
    Terminal.of(ascii_only, ascii_only).write("é")
    ascii_only.seek(0)
    assert ascii_only.read() == "\\xe9\n"
