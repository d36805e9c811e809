"""The tour of ``make tour``, with a pipe and with a terminal."""

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
"""Timeout of tests."""


def piped(text: str | bytes) -> str:
    """Return the output for `text`, after the demonstration."""
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


CONVERSATIONS = {
    "each line is a request, and Enter repeats it": (
        "quota 5/hour\nalice\n\n\n\n\n\nbob\n",  # nothing is restored during the test
        [
            (r"allowed  alice", 5),
            (r"denied   alice  \[\.{5}\] 0 of 5 left  retry after (?:12|11\.\d) min\n", 1),
            (r"allowed  bob  \[####\.\] 4 of 5 left", 1),
        ],
    ),
    "peek takes nothing, and reset clears the usage": (
        "ada\npeek ada\npeek ada\nreset ada\npeek\n",
        [(r"would pass  ada  \[####\.\] 4 of 5 left", 2), (r"would pass  ada  \[#####\] 5 of 5 left", 1)],
    ),
    "acquire waits, but not for long": (
        "quota 1/2s\nada\nacquire ada\nquota 1/hour\nada\nacquire ada\n",
        [(r"waiting [0-2]", 1), (r"not waiting: the turn is more than 30 s away", 1), (r"allowed  ada", 3)],
    ),
    "a new limit keeps the usage": (
        "ada\nada\nquota 10/10s\npeek\nquota 3/minute; 9/hour\nada\nquota\n",
        [
            (r"would pass  ada  \[########\.\.\] 8 of 10 left", 1),
            (r"9/hour                   \[########\.\] 8 of 9 left", 1),
            (r"3/minute, up to 3 at once", 2),
        ],
    ),
    "help, quit, and ignored input": ("help\nQUIT\nada\n", [(r"quota TEXT", 1), (r"ada", 0)]),
}
"""Input, and the number of matches in the output."""


@pytest.mark.parametrize(("typed", "counts"), CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_a_conversation(typed: str, counts: list[tuple[str, int]]) -> None:
    out = piped(typed)
    assert [(pattern, len(re.findall(pattern, out))) for pattern, _ in counts] == counts, out


def test_a_mistake_is_reported_and_the_demo_goes_on() -> None:
    mistakes = {
        b"quota 5/fortnight": "InvalidQuota: bad quota '5/fortnight': expected a unit of time",
        b"quota 0/s": "InvalidQuota: ",
        b"quota -1": "InvalidQuota: bad quota '-1': cannot read '-1'",
        b"quota 5/s burst 5 fixed_window": ": fixed_window has no burst",
        b"peek " + b"x" * 70_000: "InvalidKey: a key must have 1 to 65536 characters, not 70000",
        b"\xff\xfe": "InvalidKey: a key must be valid Unicode text",
        b"a\x1b[31mb\x07": "allowed  'a\\x1b[31mb\\x07'",
    }
    out = piped(b"\n".join([*mistakes, b"ada\n"]))
    for line, answer in mistakes.items():
        assert answer in out, line[:40]
    assert "allowed  ada  [####.] 4 of 5 left" in out


def test_algorithms_shows_the_boundary_burst() -> None:
    rows = {line.split()[0]: line.split()[2:] for line in piped("algorithms\n").splitlines() if line.count("  ") > 1}
    assert rows["fixed_window"] == ["40", "20", "20"]
    assert rows["sliding_window_log"] == ["30", "10", "10"]


@pytest.mark.parametrize(("end", "no_color"), [("end of input", ""), ("interrupt", "1")])
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
