"""The tour behind ``make tour``, driven through a pipe, and through a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import until

DEMO = Path(__file__).parents[2] / "docs" / "examples" / "tour.py"
COMMAND = [sys.executable, "-W", "error", str(DEMO)]
SECONDS = 60
"""How long a test waits for what should come soon."""


def piped(text: str | bytes) -> str:
    """Give `text` to the demo; return what it answers after its demonstration."""
    data = text.encode() if isinstance(text, str) else text
    done = subprocess.run(COMMAND, input=data, capture_output=True, timeout=SECONDS, check=True)
    assert done.stderr == b""
    out = done.stdout.decode()
    assert out.endswith("\nBye.\n")
    return out.partition("the others do not.\n")[2]


def test_without_input_it_shows_a_demonstration_and_ends() -> None:
    done = subprocess.run(
        COMMAND, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    assert done.stderr == ""
    assert "This demo limits every key to 5/10s" in done.stdout
    assert "denied   alice  [.....] 0 of 5 left  retry after 2 s" in done.stdout
    assert "sliding_window_counter" in done.stdout
    assert "\x1b" not in done.stdout


def test_each_line_is_a_request_and_enter_repeats_it() -> None:
    out = piped("quota 5/hour\nalice\n\n\n\n\n\nbob\n")  # in which nothing comes back meanwhile
    assert out.count("allowed  alice") == 5
    assert len(re.findall(r"denied   alice  \[\.{5}\] 0 of 5 left  retry after (?:12|11\.\d) min\n", out)) == 1
    assert out.count("allowed  bob  [####.] 4 of 5 left") == 1


def test_peek_takes_nothing_and_reset_forgets() -> None:
    out = piped("ada\npeek ada\npeek ada\nreset ada\npeek\n")
    assert out.count("would pass  ada  [####.] 4 of 5 left") == 2
    assert "would pass  ada  [#####] 5 of 5 left" in out


def test_acquire_waits_but_not_for_long() -> None:
    out = piped("quota 1/2s\nada\nacquire ada\nquota 1/hour\nada\nacquire ada\n")
    assert re.search(r"waiting [0-2]", out)
    assert "not waited for: that is longer than 30 s" in out
    assert out.count("allowed  ada") == 3


def test_a_new_limit_keeps_what_was_used() -> None:
    out = piped("ada\nada\nquota 10/10s\npeek\nquota 3/minute; 9/hour\nada\nquota\n")
    assert "would pass  ada  [########..] 8 of 10 left" in out
    assert "9/hour                   [########.] 8 of 9 left" in out
    assert out.count("3/minute, up to 3 at once") == 2


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("quota 5/fortnight", "InvalidQuota: bad quota '5/fortnight': expected a unit of time"),
        ("quota 0/s", "InvalidQuota: "),
        ("quota -1", "InvalidQuota: bad quota '-1': cannot read '-1'"),
        ("quota 5/s burst 5 fixed_window", ": fixed_window has no burst"),
        ("peek " + "x" * 70_000, "InvalidKey: a key has 1 to 65536 characters, not 70000"),
        (b"\xff\xfe", "InvalidKey: a key must be valid Unicode text"),
        ("a\x1b[31mb\x07", "allowed  'a\\x1b[31mb\\x07'"),
    ],
    ids=["unit", "zero", "negative", "burst", "long key", "bytes", "control characters"],
)
def test_a_mistake_is_told_and_the_demo_goes_on(line: str | bytes, answer: str) -> None:
    data = line.encode() if isinstance(line, str) else line
    out = piped(data + b"\nada\n")
    assert answer in out
    assert "allowed  ada  [####.] 4 of 5 left" in out


def test_help_quit_and_what_comes_after_it() -> None:
    out = piped("help\nQUIT\nada\n")
    assert "quota TEXT" in out
    assert "ada" not in out


def test_algorithms_shows_the_boundary_burst() -> None:
    rows = {line.split()[0]: line.split()[2:] for line in piped("algorithms\n").splitlines() if line.count("  ") > 1}
    assert rows["fixed_window"] == ["40", "20", "20"]
    assert rows["sliding_window_log"] == ["30", "10", "10"]


@pytest.mark.parametrize("end", ["end of input", "interrupt"])
@pytest.mark.parametrize("no_color", ["", "1"])
def test_in_a_terminal_it_has_colours_and_leaves_cleanly(end: str, no_color: str) -> None:
    controller, terminal = pty.openpty()
    environment = {**os.environ, "NO_COLOR": no_color, "TERM": "dumb"}
    process = subprocess.Popen(COMMAND, stdin=terminal, stdout=terminal, stderr=terminal, env=environment)
    try:
        os.close(terminal)
        out = read_until(controller, b"> ")
        os.write(controller, b"ada\n")
        out += read_until(controller, b"of 5 left\r\n> ")
        if end == "interrupt":
            until(lambda: is_asleep(process.pid), "it waits for input", SECONDS)  # and notices a signal at once
            process.send_signal(signal.SIGINT)
        else:
            os.write(controller, b"\x04")
        out += read_until(controller, b"docs/start.md.")
        assert process.wait(timeout=SECONDS) == 0
    finally:
        process.kill()
        process.wait()
    os.close(controller)
    assert (b"\x1b[32mallowed\x1b[0m  ada" in out) is not bool(no_color)
    assert b"Traceback" not in out


def is_asleep(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def read_until(controller: int, wanted: bytes) -> bytes:
    out = b""
    while wanted not in out:
        assert select.select([controller], [], [], SECONDS)[0], out
        out += os.read(controller, 4096)
    return out
