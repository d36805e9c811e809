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
from hypothesis import given
from hypothesis import strategies as st

from headgate.clock import BOUNDS_NS, BUCKETS, bucket_of
from headgate.core.errors import UsageError
from headgate.observe.metrics import (
    CHECK_DURATION,
    CIRCUIT_STATE,
    CONNECTIONS,
    CPU,
    METRICS,
    PEEKS,
    RULE_DECISIONS,
    RULES_LOADED_AT,
)
from headgate.observe.recorder import Recorder
from headgate.observe.table import LONGEST_VALUE, Series, labels_of
from headgate.observe.workers import Slots, merged, rendered, wants_openmetrics
from tests.observe.readings import families, samples, value

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
    dead.table.cells[dead.table.cell_of(CONNECTIONS)] = 7
    dead.table.cells[dead.table.cell_of(PEEKS)] = 7
    assert value(alive.metrics()[1], "headgate_connections") == 7
    dead.close()
    text = alive.metrics()[1]
    assert ("headgate_connections", frozenset()) not in samples(text)
    assert value(text, "headgate_peeks_total") == 7
    alive.close()


def test_a_slot_has_one_worker(tmp_path: Path) -> None:
    first = Slots(tmp_path).open(3)
    with pytest.raises(UsageError, match="its own slot"):
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
        "from headgate.observe.workers import Slots\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: Slots(sys.argv[1]).open(0)\n"
        "except OSError as error: print(error.filename)"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True, text=True)
    assert ended.stdout == f"{tmp_path / '0.metrics'}\n"


def histogram(*durations: int) -> tuple[int, ...]:
    cells = [0] * (BUCKETS + 1)
    for each in durations:
        cells[bucket_of(each)] += 1
        cells[BUCKETS] += each
    return tuple(cells)


def shown(*series: Series, openmetrics: bool = False) -> bytes:
    return rendered(merged([(True, series)]), openmetrics=openmetrics)


def test_a_counter_and_a_gauge_look_like_this() -> None:
    assert shown(Series(PEEKS, "", (5,)), Series(CONNECTIONS, "", (2,))).decode() == (
        "# HELP headgate_peeks_total Peeks, which take nothing.\n"
        "# TYPE headgate_peeks_total counter\n"
        "headgate_peeks_total 5\n"
        "# HELP headgate_connections Connections open now.\n"
        "# TYPE headgate_connections gauge\n"
        "headgate_connections 2\n"
    )


@pytest.mark.parametrize("openmetrics", [False, True])
def test_every_metric_is_read_as_what_it_is(*, openmetrics: bool) -> None:
    series = []
    for family in METRICS.values():
        labels = labels_of(family.labels, tuple("x" for _ in family.labels))
        series.append(Series(family, labels, tuple(range(family.cells))))
    found = families(shown(*series, openmetrics=openmetrics), openmetrics=openmetrics)
    assert {(each.name, each.type, each.documentation) for each in found} == {
        (family.name, str(family.kind), family.help) for family in METRICS.values()
    }


def test_openmetrics_ends_with_its_end() -> None:
    assert shown(Series(PEEKS, "", (5,)), openmetrics=True).endswith(b"headgate_peeks_total 5\n# EOF\n")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, False),
        (b"*/*", False),
        (b"text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        (b"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4", True),
        (b"Application/OpenMetrics-Text", True),
    ],
)
def test_openmetrics_is_for_those_who_ask_for_it(accept: bytes | None, *, expected: bool) -> None:
    assert wants_openmetrics(accept) is expected


@given(st.lists(st.integers(0, 2**62)))
def test_a_histogram_counts_every_duration_once_below_its_bound(durations: list[int]) -> None:
    if sum(durations) >= 2**63:
        durations = durations[:1]
    found = samples(shown(Series(CHECK_DURATION, 'api="check"', histogram(*durations))))
    for bound in BOUNDS_NS:
        key = "headgate_check_duration_seconds_bucket", frozenset({("api", "check"), ("le", repr(bound / 1e9))})
        assert found[key] == sum(each < bound for each in durations)
    for end in ("count", "bucket"):
        labels = {("api", "check")} | ({("le", "+Inf")} if end == "bucket" else set())
        assert found[f"headgate_check_duration_seconds_{end}", frozenset(labels)] == len(durations)
    assert found["headgate_check_duration_seconds_sum", frozenset({("api", "check")})] == sum(durations) / 10**9


def test_numbers_of_workers_become_one_as_each_metric_says() -> None:
    workers = [
        (True, [Series(PEEKS, "", (1,)), Series(CIRCUIT_STATE, 'shard="a"', (2,)), Series(CONNECTIONS, "", (3,))]),
        (True, [Series(PEEKS, "", (2,)), Series(CIRCUIT_STATE, 'shard="a"', (0,)), Series(CONNECTIONS, "", (4,))]),
        (False, [Series(PEEKS, "", (4,)), Series(CIRCUIT_STATE, 'shard="b"', (2,)), Series(CONNECTIONS, "", (5,))]),
        (True, [Series(RULES_LOADED_AT, "", (7 * 10**9,)), Series(CPU, 'worker="0"', (1_500_000_000,))]),
        (True, [Series(RULES_LOADED_AT, "", (5 * 10**9,))]),
    ]
    text = rendered(merged(workers))
    assert value(text, "headgate_peeks_total") == 7
    assert value(text, "headgate_connections") == 7
    assert value(text, "headgate_store_circuit_state", shard="a") == 2
    assert value(text, "headgate_rules_loaded_timestamp_seconds") == 5
    assert value(text, "headgate_process_cpu_seconds_total", worker="0") == 1.5
    assert b'shard="b"' not in text


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=LONGEST_VALUE))
def test_any_printable_label_is_read_as_it_was(name: str) -> None:
    text = shown(Series(RULE_DECISIONS, labels_of(RULE_DECISIONS.labels, (name, "denied")), (1,)))
    assert value(text, "headgate_rule_decisions_total", rule=name, outcome="denied") == 1


@given(st.text(max_size=400))
def test_no_label_breaks_the_text(name: str) -> None:
    """Control characters, lone surrogates, quotes, line ends: one line, one sample, of this metric."""
    text = shown(Series(RULE_DECISIONS, labels_of(RULE_DECISIONS.labels, (name, "denied")), (1,)))
    (found,) = families(text)
    (sample,) = found.samples
    assert sample.name == "headgate_rule_decisions_total"
    assert sample.labels.keys() == {"rule", "outcome"}
    assert len(sample.labels["rule"]) <= LONGEST_VALUE
    assert len(text.decode().split("\n")) == 4


@pytest.mark.parametrize(
    ("label", "escaped"),
    [('a"b', 'a\\"b'), ("a\\b", "a\\\\b"), ("a\nb", "a\\nb"), ("a\x00\x1b[2Jb", "a\ufffd\ufffd[2Jb"), ("\ud800", "?")],
)
def test_what_would_break_a_line_is_escaped(label: str, escaped: str) -> None:
    assert labels_of(("rule",), (label,)) == f'rule="{escaped}"'
