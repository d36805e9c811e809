"""The table of counters, with one writer, any readers, and successors."""

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


def test_a_series_keeps_its_cells(memory: bytearray) -> None:
    table = CounterTable(memoryview(memory))
    cells = [table.cell_of(CHECKS, api, "allowed") for api in ("check", "batch", "check")]
    assert cells[0] == cells[2] != cells[1]
    histogram = table.cell_of(CHECK_DURATION, "check")
    assert table.cell_of(PEEKS) == histogram + CHECK_DURATION.cells
    assert len(table) == 4


def test_a_successor_continues_counters_and_clears_gauges(memory: bytearray) -> None:
    first = CounterTable(memoryview(memory))
    first.cells[first.cell_of(PEEKS)] += 5
    first.cells[first.cell_of(CONNECTIONS)] = 5
    second = CounterTable(memoryview(memory))
    second.clear_gauges()
    second.cells[second.cell_of(PEEKS)] += 1
    second.cells[second.cell_of(CHECKS, "check", "denied")] += 1
    denied = "headgate_checks", 'api="check",outcome="denied"'
    assert seen(memory) == {("headgate_peeks", ""): (6,), ("headgate_connections", ""): (0,), denied: (1,)}


def test_a_series_that_was_not_announced_is_ignored_and_its_cells_are_reused(memory: bytearray) -> None:
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


def test_a_reader_skips_an_announced_series_until_it_is_written(memory: bytearray) -> None:
    table = CounterTable(memoryview(memory))
    table.cell_of(PEEKS)
    reader = TableReader(memoryview(memory))
    table.cells[tables._SERIES] += 1
    assert [series.metric for series in reader.read()] == [PEEKS]
    table.cells[tables._SERIES] -= 1
    table.cell_of(CHECKS, "check", "denied")
    assert [series.metric for series in reader.read()] == [PEEKS, CHECKS]


def test_memory_of_another_version_is_cleared() -> None:
    assert seen(bytearray(SIZE)) == {}
    memory = bytearray(b"\xff" * SIZE)
    assert seen(memory) == {}
    table = CounterTable(memoryview(memory))
    table.cells[table.cell_of(PEEKS)] += 1
    assert seen(memory) == {("headgate_peeks", ""): (1,)}


def test_damaged_memory_is_refused(memory: bytearray) -> None:
    table = CounterTable(memoryview(memory))
    table.cells[tables._SERIES] = 5
    with pytest.raises(UsageError, match="damaged"):
        CounterTable(memoryview(memory))


def test_unknown_metrics_are_kept_and_not_shown(memory: bytearray) -> None:
    table = CounterTable(memoryview(memory))
    table._added(type(PEEKS)("headgate_of_tomorrow", PEEKS.kind, "?"), "")
    table.cells[table.cell_of(PEEKS)] += 1
    successor = CounterTable(memoryview(memory))
    successor.cells[successor.cell_of(PEEKS)] += 1
    assert seen(memory) == {("headgate_peeks", ""): (2,)}


def test_a_full_table_accepts_no_more_series_and_damages_none(
    memory: bytearray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "CELLS", 500)
    table = CounterTable(memoryview(memory))
    peeks = table.cell_of(PEEKS)
    for rule in range(tables.CELLS):
        place = table.cell_of(RULE_DECISIONS, f"{rule}", "allowed")
        table.cells[place] += 1
    assert len(table) == tables.CELLS
    for cell in range(CHECK_DURATION.cells):  # the scratch cells have room for a histogram
        table.cells[table.cell_of(CHECK_DURATION, "check") + cell] += 1
    assert table.cells[peeks] == 0
    assert len(seen(memory)) == tables.CELLS


def test_the_space_for_names_is_bounded(memory: bytearray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "SIZE", SIZE - tables.NAMES + 20_000)
    table = CounterTable(memoryview(memory))
    for rule in range(100):
        table.cell_of(RULE_DECISIONS, f"{rule:0190}", "allowed")
    assert 0 < len(seen(memory)) == len(table) < 100


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


def test_the_values_of_labels_are_parsed_unchanged() -> None:
    for value in ("orders", "", 'a "b", c="d"', "back\\slash", "back\\n", "two\nlines", "\u00e9"):
        assert values_of(labels_of(("rule", "outcome"), (value, "denied"))) == (value, "denied")
