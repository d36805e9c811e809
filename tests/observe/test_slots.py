"""Counters of several processes: exact whatever happens to a process, and shown by any of them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.core.errors import UsageError
from headgate.observe.families import CONNECTIONS, PEEKS
from headgate.observe.recorder import Recorder
from headgate.observe.slots import Slots
from tests.observe.readings import samples, value

Worker = subprocess.Popen[str]
Start = Callable[[int, int], Worker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a worker that counts; ended with the test."""
    with ExitStack() as started:

        def begin(slot: int, count: int) -> Worker:
            program = [sys.executable, "-m", "tests.observe.counting", str(tmp_path), str(slot), str(count)]
            worker = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            started.enter_context(worker)
            started.callback(worker.kill)
            return worker

        yield begin


def has_counted(worker: Worker) -> None:
    assert worker.stdout is not None
    assert worker.stdout.readline() == "counted\n"


def kill(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait()


def test_any_worker_shows_what_all_counted(tmp_path: Path, start: Start) -> None:
    workers = [start(slot, 1000) for slot in (1, 2, 3)]
    for worker in workers:
        has_counted(worker)
    recorder = Recorder(Slots(tmp_path), 0)
    recorder.called("check", "allowed", 25_000)
    _, text = recorder.metrics()
    assert value(text, "headgate_checks_total", api="check", outcome="allowed") == 3 * 900 + 1
    assert value(text, "headgate_checks_total", api="check", outcome="denied") == 3 * 100
    assert value(text, "headgate_check_duration_seconds_count", api="check") == 3 * 1000 + 1
    assert value(text, "headgate_check_duration_seconds_bucket", api="check", le="2e-05") == 0
    assert value(text, "headgate_check_duration_seconds_bucket", api="check", le="4e-05") == 3 * 1000 + 1
    assert value(text, "headgate_workers") == 4
    recorder.close()


def test_nothing_is_lost_or_counted_twice_when_workers_are_killed_and_restarted(tmp_path: Path, start: Start) -> None:
    recorder = Recorder(Slots(tmp_path), 0)
    for generation in range(1, 4):
        worker = start(1, 500)
        has_counted(worker)
        kill(worker)
        _, text = recorder.metrics()
        assert value(text, "headgate_checks_total", api="check", outcome="allowed") == generation * 450
        assert value(text, "headgate_worker_starts_total") == generation  # this one has not published
        assert value(text, "headgate_workers") == 1
    recorder.close()


def test_a_worker_killed_while_it_counts_leaves_whole_numbers(tmp_path: Path, start: Start) -> None:
    recorder = Recorder(Slots(tmp_path), 0)
    worker = start(1, 10**9)
    path = ("headgate_checks_total", frozenset({("api", "check"), ("outcome", "allowed")}))
    while samples(recorder.metrics()[1]).get(path, 0) < 1000:  # it grows while it is read
        pass
    kill(worker)
    first, second = recorder.metrics()[1], recorder.metrics()[1]
    calls = value(first, "headgate_check_duration_seconds_count", api="check")
    outcomes = sum(
        value(first, "headgate_checks_total", api="check", outcome=outcome) for outcome in ("allowed", "denied")
    )
    assert 0 <= outcomes - calls <= 1  # it was killed between two of them, or not
    assert samples(first) == samples(second)
    has_counted(start(1, 100))
    assert value(recorder.metrics()[1], "headgate_check_duration_seconds_count", api="check") == calls + 100
    recorder.close()


def test_numbers_only_grow_while_workers_come_and_go(tmp_path: Path, start: Start) -> None:
    recorder, last = Recorder(Slots(tmp_path), 0), 0.0
    for _ in range(3):
        workers = [start(slot, 200) for slot in (1, 2)]
        for worker in workers:
            has_counted(worker)
            now = value(recorder.metrics()[1], "headgate_checks_total", api="check", outcome="allowed")
            assert now >= last
            last = now
            kill(worker)
    assert last == 3 * 2 * 180
    recorder.close()


def test_gauges_of_the_dead_do_not_count(tmp_path: Path) -> None:
    slots, siblings = Slots(tmp_path), Slots(tmp_path)
    dead, alive = siblings.open(1), Recorder(slots, 0)
    dead.table.cells[dead.table.place_of(CONNECTIONS)] = 7
    dead.table.cells[dead.table.place_of(PEEKS)] = 7
    assert value(alive.metrics()[1], "headgate_connections") == 7
    dead.close()
    text = alive.metrics()[1]
    assert ("headgate_connections", frozenset()) not in samples(text)
    assert value(text, "headgate_peeks_total") == 7
    alive.close()


def test_a_slot_has_one_worker(tmp_path: Path) -> None:
    first = Slots(tmp_path).open(3)
    with pytest.raises(UsageError, match="slot of its own"):
        Slots(tmp_path).open(3)
    first.close()
    Slots(tmp_path).open(3).close()


def test_files_are_for_this_user_alone_and_links_are_not_followed(tmp_path: Path) -> None:
    Slots(tmp_path).open(0).close()
    assert (tmp_path / "0.metrics").stat().st_mode & 0o777 == 0o600
    (tmp_path / "1.metrics").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        Slots(tmp_path).open(1)


def test_a_file_that_is_being_made_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "5.metrics").touch()
    (tmp_path / "notes.metrics").touch()
    slots = Slots(tmp_path)
    assert slots.read() == []


def test_a_directory_that_was_cleaned_up_is_made_again(tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    directory.mkdir(mode=0o700)
    slots = Slots(directory)
    first = slots.open(0)
    shutil.rmtree(directory)
    Slots(directory).open(1).close()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert [each.slot for each in slots.read()] == [1]
    first.close()
    slots.close()


def test_a_disk_that_is_full_is_told_with_the_file(tmp_path: Path) -> None:
    """Here it is a limit of the process on the size of files."""
    code = (
        "import resource, sys\n"
        "from headgate.observe.slots import Slots\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: Slots(sys.argv[1]).open(0)\n"
        "except OSError as error: print(error.filename)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True, text=True)
    assert ended.stdout == f"{tmp_path / '0.metrics'}\n"
