"""The table of counters: what a writer counts, any reader sees, and a successor goes on with."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import UsageError
from headgate.observe import table as tables
from headgate.observe.metrics import CHECK_DURATION, CHECKS, CONNECTIONS, PEEKS, RULE_DECISIONS
from headgate.observe.table import SIZE, CounterTable, TableReader, labels_of, values_of


@pytest.fixture
def memory() -> bytearray:
    return bytearray(SIZE)


def seen(memory: bytearray) -> dict[tuple[str, str], tuple[int, ...]]:
    return {(series.metric.name, series.labels): series.values for series in TableReader(memoryview(memory)).read()}


def test_a_reader_sees_what_a_writer_counts(memory: bytearray) -> None:
    table = CounterTable(memoryview(memory))
    place = table.cell_of(CHECKS, "check", "allowed")
    table.cells[place] += 3
    assert seen(memory) == {("headgate_checks", 'api="check",outcome="allowed"'): (3,)}


def test_a_series_keeps_its_place(memory: bytearray) -> None:
    table = CounterTable(memoryview(memory))
    places = [table.cell_of(CHECKS, api, "allowed") for api in ("check", "batch", "check")]
    assert places[0] == places[2] != places[1]
    assert len(table) == 2


def test_a_histogram_has_its_cells_side_by_side(memory: bytearray) -> None:
    table = CounterTable(memoryview(memory))
    first = table.cell_of(CHECK_DURATION, "check")
    assert table.cell_of(PEEKS) == first + CHECK_DURATION.cells


def test_a_successor_goes_on_counting(memory: bytearray) -> None:
    first = CounterTable(memoryview(memory))
    first.cells[first.cell_of(PEEKS)] += 5
    second = CounterTable(memoryview(memory))
    second.cells[second.cell_of(PEEKS)] += 1
    second.cells[second.cell_of(CHECKS, "check", "denied")] += 1
    assert seen(memory) == {("headgate_peeks", ""): (6,), ("headgate_checks", 'api="check",outcome="denied"'): (1,)}


def test_a_successor_does_not_inherit_gauges(memory: bytearray) -> None:
    first = CounterTable(memoryview(memory))
    first.cells[first.cell_of(CONNECTIONS)] = 5
    first.cells[first.cell_of(PEEKS)] = 5
    second = CounterTable(memoryview(memory))
    second.clear_gauges()
    assert seen(memory) == {("headgate_connections", ""): (0,), ("headgate_peeks", ""): (5,)}


def test_a_series_that_was_not_announced_does_not_exist_and_its_place_is_used_again(memory: bytearray) -> None:
    """As after kill -9 between writing a record and announcing it."""
    first = CounterTable(memoryview(memory))
    first.cell_of(PEEKS)
    place = first.cell_of(CHECKS, "check", "allowed")
    first.cells[place] = 77
    first.cells[tables._SERIES] -= 1
    assert seen(memory) == {("headgate_peeks", ""): (0,)}
    second = CounterTable(memoryview(memory))
    assert second.cell_of(RULE_DECISIONS, "orders", "denied") == place
    second.cells[second.cell_of(CHECKS, "check", "denied")] += 1
    assert seen(memory) == {
        ("headgate_peeks", ""): (0,),
        ("headgate_rule_decisions", 'rule="orders",outcome="denied"'): (0,),
        ("headgate_checks", 'api="check",outcome="denied"'): (1,),
    }


def test_a_reader_stops_before_what_is_announced_and_not_there_yet_and_finds_it_later(memory: bytearray) -> None:
    table = CounterTable(memoryview(memory))
    table.cell_of(PEEKS)
    reader = TableReader(memoryview(memory))
    table.cells[tables._SERIES] += 1
    assert [series.metric for series in reader.read()] == [PEEKS]
    table.cells[tables._SERIES] -= 1
    table.cell_of(CHECKS, "check", "denied")
    assert [series.metric for series in reader.read()] == [PEEKS, CHECKS]


def test_memory_that_no_table_was_written_to_has_no_series() -> None:
    assert seen(bytearray(SIZE)) == {}
    assert seen(bytearray(b"\xff" * SIZE)) == {}


def test_memory_of_another_version_is_begun_anew() -> None:
    memory = bytearray(b"\xff" * SIZE)
    table = CounterTable(memoryview(memory))
    table.cells[table.cell_of(PEEKS)] += 1
    assert seen(memory) == {("headgate_peeks", ""): (1,)}


def test_damaged_memory_is_refused(memory: bytearray) -> None:
    table = CounterTable(memoryview(memory))
    table.cells[tables._SERIES] = 5
    with pytest.raises(UsageError, match="damaged"):
        CounterTable(memoryview(memory))


def test_metrics_that_are_not_known_are_kept_and_not_shown(memory: bytearray) -> None:
    table = CounterTable(memoryview(memory))
    table._added(type(PEEKS)("headgate_of_tomorrow", PEEKS.kind, "?"), "")
    table.cells[table.cell_of(PEEKS)] += 1
    successor = CounterTable(memoryview(memory))
    successor.cells[successor.cell_of(PEEKS)] += 1
    assert seen(memory) == {("headgate_peeks", ""): (2,)}


def test_a_full_table_takes_no_more_series_and_harms_none(memory: bytearray) -> None:
    table = CounterTable(memoryview(memory))
    peeks = table.cell_of(PEEKS)
    for rule in range(tables.CELLS):
        place = table.cell_of(RULE_DECISIONS, f"{rule}", "allowed")
        table.cells[place] += 1
    assert len(table) == tables.CELLS
    for cell in range(CHECK_DURATION.cells):  # even a histogram has room where nobody reads
        table.cells[table.cell_of(CHECK_DURATION, "check") + cell] += 1
    assert table.cells[peeks] == 0
    assert len(seen(memory)) == tables.CELLS


def test_names_that_fill_their_room_end_there(memory: bytearray) -> None:
    table = CounterTable(memoryview(memory))
    for rule in range(tables.NAMES // 200):
        table.cell_of(RULE_DECISIONS, f"{rule:0190}", "allowed")
    assert 0 < len(seen(memory)) == len(table) < tables.NAMES // 200


def test_a_reader_sees_every_series_whole_while_a_writer_adds_more(memory: bytearray) -> None:
    table, readings = CounterTable(memoryview(memory)), []

    def write() -> None:
        for rule in range(3000):
            table.cells[table.cell_of(RULE_DECISIONS, f"rule-{rule}", "allowed")] += rule

    writer = threading.Thread(target=write)
    writer.start()
    reader = TableReader(memoryview(memory))
    while writer.is_alive():
        readings.append(reader.read())
    writer.join()
    readings.append(reader.read())
    for series in readings:
        assert [each.labels for each in series] == [
            f'rule="rule-{rule}",outcome="allowed"' for rule in range(len(series))
        ]
    assert [each.values for each in readings[-1]] == [(rule,) for rule in range(3000)]


@given(st.lists(st.tuples(st.text(max_size=300), st.sampled_from(["allowed", "denied"]))))
def test_any_label_is_found_again(names: list[tuple[str, str]]) -> None:
    memory = bytearray(SIZE)
    table, expected = CounterTable(memoryview(memory)), {}
    for name, outcome in names:
        place = table.cell_of(RULE_DECISIONS, name, outcome)
        table.cells[place] += 1
        expected[place] = table.cells[place]
    assert sorted(values for (values,) in seen(memory).values()) == sorted(expected.values())
    assert len(CounterTable(memoryview(memory))) == len(table)


@pytest.mark.parametrize("value", ["orders", "", 'a "b", c="d"', "back\\slash", "back\\n", "two\nlines", "\u00e9"])
def test_the_values_of_labels_are_read_as_they_were_written(value: str) -> None:
    assert values_of(labels_of(("rule", "outcome"), (value, "denied"))) == (value, "denied")
