"""Counters of several processes: exact even if processes are killed, and exported by any of them."""

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
from headgate.observe.workers import CounterFiles, merge, render, wants_openmetrics
from tests.observe.readings import families, samples, value

Worker = subprocess.Popen[str]
Start = Callable[[int, int], Worker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a worker that counts; ended with the test."""
    with ExitStack() as started:

        def begin(number: int, count: int) -> Worker:
            program = [sys.executable, "-m", "tests.observe.counting", str(tmp_path), str(number), str(count)]
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


def test_nothing_is_lost_or_counted_twice_when_workers_are_killed_and_restarted(tmp_path: Path, start: Start) -> None:
    recorder = Recorder(CounterFiles(tmp_path), 0)
    counted = 0
    for generation in (1, 2):
        for worker in [start(number, 200) for number in (1, 2)]:
            has_counted(worker)
            kill(worker)
            counted += 180
            now = value(recorder.metrics()[1], "headgate_checks_total", api="check", outcome="allowed")
            assert counted <= now <= generation * 2 * 180
        text = recorder.metrics()[1]
        assert value(text, "headgate_checks_total", api="check", outcome="allowed") == counted
        assert value(text, "headgate_worker_starts_total") == 2 * generation  # this process has not published
        assert value(text, "headgate_workers") == 1
    recorder.close()


def test_a_worker_killed_while_it_counts_leaves_whole_numbers(tmp_path: Path, start: Start) -> None:
    recorder = Recorder(CounterFiles(tmp_path), 0)
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
    assert 0 <= outcomes - calls <= 1  # it may be killed between the two
    assert samples(first) == samples(second)
    has_counted(start(1, 100))
    assert value(recorder.metrics()[1], "headgate_check_duration_seconds_count", api="check") == calls + 100
    recorder.close()


def test_gauges_of_ended_workers_do_not_count(tmp_path: Path) -> None:
    files, siblings = CounterFiles(tmp_path), CounterFiles(tmp_path)
    dead, alive = siblings.open(1), Recorder(files, 0)
    dead.table.cells[dead.table.cell_of(CONNECTIONS)] = 7
    dead.table.cells[dead.table.cell_of(PEEKS)] = 7
    assert value(alive.metrics()[1], "headgate_connections") == 7
    dead.close()
    text = alive.metrics()[1]
    assert ("headgate_connections", frozenset()) not in samples(text)
    assert value(text, "headgate_peeks_total") == 7
    alive.close()


def test_a_file_is_private_to_one_worker_and_links_are_not_followed(tmp_path: Path) -> None:
    first = CounterFiles(tmp_path).open(0)
    with pytest.raises(UsageError, match="its own number"):
        CounterFiles(tmp_path).open(0)
    first.close()
    CounterFiles(tmp_path).open(0).close()
    assert (tmp_path / "0.metrics").stat().st_mode & 0o777 == 0o600
    (tmp_path / "1.metrics").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        CounterFiles(tmp_path).open(1)


def test_an_incomplete_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "5.metrics").touch()
    (tmp_path / "notes.metrics").touch()
    files = CounterFiles(tmp_path)
    assert files.read() == []


def test_the_files_of_a_directory_that_was_made_again_are_read(tmp_path: Path) -> None:
    directory = tmp_path / "shared"
    directory.mkdir()
    files = CounterFiles(directory)
    first, other = files.open(0), files.open(1)
    assert [(each.number, each.alive) for each in files.read()] == [(0, True), (1, True)]
    shutil.rmtree(directory)
    directory.mkdir()
    first.close()
    replacement = CounterFiles(directory).open(0)
    cell = replacement.table.cell_of(CONNECTIONS)
    replacement.table.cells[cell] += 7
    (read, survivor) = files.read()
    assert (read.number, read.alive, [each.values for each in read.series]) == (0, True, [(7,)])
    assert (survivor.number, survivor.alive) == (1, True), "its file is read until it ends"
    for each in (other, replacement, files):
        each.close()


def test_the_error_of_a_full_disk_names_the_file(tmp_path: Path) -> None:
    """A limit on the size of files has the same effect."""
    code = (
        "import resource, sys\n"
        "from headgate.observe.workers import CounterFiles\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try: CounterFiles(sys.argv[1]).open(0)\n"
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
    return render(merge([(True, series)]), openmetrics=openmetrics)


def test_the_text_of_a_counter_and_a_gauge() -> None:
    assert shown(Series(PEEKS, "", (5,)), Series(CONNECTIONS, "", (2,))).decode() == (
        "# HELP headgate_peeks_total Peeks, which take nothing.\n"
        "# TYPE headgate_peeks_total counter\n"
        "headgate_peeks_total 5\n"
        "# HELP headgate_connections Connections open now.\n"
        "# TYPE headgate_connections gauge\n"
        "headgate_connections 2\n"
    )


def test_parsers_find_every_metric_with_its_type_and_help() -> None:
    series = []
    for family in METRICS.values():
        labels = labels_of(family.labels, tuple("x" for _ in family.labels))
        series.append(Series(family, labels, tuple(range(family.cells))))
    expected = {(family.name, str(family.kind), family.help) for family in METRICS.values()}
    for openmetrics in (False, True):
        found = families(shown(*series, openmetrics=openmetrics), openmetrics=openmetrics)
        assert {(each.name, each.type, each.documentation) for each in found} == expected


def test_openmetrics_is_returned_to_clients_that_accept_it() -> None:
    both = b"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4"
    for accept in (both, b"Application/OpenMetrics-Text"):
        assert wants_openmetrics(accept), accept
    for other in (None, b"*/*", b"text/plain;version=0.0.4;q=0.5,*/*;q=0.1"):
        assert not wants_openmetrics(other), other


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


def test_values_of_workers_are_merged_as_each_metric_declares() -> None:
    workers = [
        (True, [Series(PEEKS, "", (1,)), Series(CIRCUIT_STATE, 'shard="a"', (2,)), Series(CONNECTIONS, "", (3,))]),
        (True, [Series(PEEKS, "", (2,)), Series(CIRCUIT_STATE, 'shard="a"', (0,)), Series(CONNECTIONS, "", (4,))]),
        (False, [Series(PEEKS, "", (4,)), Series(CIRCUIT_STATE, 'shard="b"', (2,)), Series(CONNECTIONS, "", (5,))]),
        (True, [Series(RULES_LOADED_AT, "", (7 * 10**9,)), Series(CPU, 'worker="0"', (1_500_000_000,))]),
        (True, [Series(RULES_LOADED_AT, "", (5 * 10**9,))]),
    ]
    text = render(merge(workers))
    assert value(text, "headgate_peeks_total") == 7
    assert value(text, "headgate_connections") == 7
    assert value(text, "headgate_store_circuit_state", shard="a") == 2
    assert value(text, "headgate_rules_loaded_timestamp_seconds") == 5
    assert value(text, "headgate_process_cpu_seconds_total", worker="0") == 1.5
    assert b'shard="b"' not in text


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=LONGEST_VALUE))
def test_printable_labels_are_parsed_unchanged(name: str) -> None:
    text = shown(Series(RULE_DECISIONS, labels_of(RULE_DECISIONS.labels, (name, "denied")), (1,)))
    assert value(text, "headgate_rule_decisions_total", rule=name, outcome="denied") == 1


@given(st.text(max_size=400))
def test_no_label_breaks_the_text(name: str) -> None:
    """With control characters, lone surrogates, quotes or newlines, it stays one line and one sample."""
    text = shown(Series(RULE_DECISIONS, labels_of(RULE_DECISIONS.labels, (name, "denied")), (1,)))
    (found,) = families(text)
    (sample,) = found.samples
    assert sample.name == "headgate_rule_decisions_total"
    assert sample.labels.keys() == {"rule", "outcome"}
    assert len(sample.labels["rule"]) <= LONGEST_VALUE
    assert len(text.decode().split("\n")) == 4


def test_characters_that_would_break_a_line_are_escaped() -> None:
    cases = {'a"b': 'a\\"b', "a\\b": "a\\\\b", "a\nb": "a\\nb", "a\x00\x1b[2Jb": "a\ufffd\ufffd[2Jb", "\ud800": "?"}
    for label, escaped in cases.items():
        assert labels_of(("rule",), (label,)) == f'rule="{escaped}"'
