"""Metrics as text: what Prometheus reads is what was counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.latency import BOUNDS_NS, BUCKETS, bucket_of
from headgate.observe.families import (
    CHECK_DURATION,
    CIRCUIT_STATE,
    CONNECTIONS,
    CPU,
    FAMILIES,
    PEEKS,
    RULE_DECISIONS,
    RULES_LOADED_AT,
)
from headgate.observe.labels import LONGEST, written
from headgate.observe.rendering import merged, rendered, wants_openmetrics
from headgate.observe.table import Series
from tests.observe.readings import families, samples, value


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
        "# HELP headgate_peeks_total Questions that took nothing.\n"
        "# TYPE headgate_peeks_total counter\n"
        "headgate_peeks_total 5\n"
        "# HELP headgate_connections Connections open now.\n"
        "# TYPE headgate_connections gauge\n"
        "headgate_connections 2\n"
    )


@pytest.mark.parametrize("openmetrics", [False, True])
def test_every_metric_is_read_as_what_it_is(*, openmetrics: bool) -> None:
    series = []
    for family in FAMILIES.values():
        labels = written(family.labels, tuple("x" for _ in family.labels))
        series.append(Series(family, labels, tuple(range(family.cells))))
    found = families(shown(*series, openmetrics=openmetrics), openmetrics=openmetrics)
    assert {(each.name, each.type, each.documentation) for each in found} == {
        (family.name, str(family.kind), family.help) for family in FAMILIES.values()
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


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["C", "Z"]), max_size=LONGEST))
def test_any_printable_label_is_read_as_it_was(name: str) -> None:
    text = shown(Series(RULE_DECISIONS, written(RULE_DECISIONS.labels, (name, "denied")), (1,)))
    assert value(text, "headgate_rule_decisions_total", rule=name, outcome="denied") == 1


@given(st.text(max_size=400))
def test_no_label_breaks_the_text(name: str) -> None:
    """Control characters, lone surrogates, quotes, line ends: one line, one sample, of this metric."""
    text = shown(Series(RULE_DECISIONS, written(RULE_DECISIONS.labels, (name, "denied")), (1,)))
    (found,) = families(text)
    (sample,) = found.samples
    assert sample.name == "headgate_rule_decisions_total"
    assert sample.labels.keys() == {"rule", "outcome"}
    assert len(sample.labels["rule"]) <= LONGEST
    assert len(text.decode().split("\n")) == 4


@pytest.mark.parametrize(
    ("label", "escaped"),
    [('a"b', 'a\\"b'), ("a\\b", "a\\\\b"), ("a\nb", "a\\nb"), ("a\x00\x1b[2Jb", "a\ufffd\ufffd[2Jb"), ("\ud800", "?")],
)
def test_what_would_break_a_line_is_escaped(label: str, escaped: str) -> None:
    assert written(("rule",), (label,)) == f'rule="{escaped}"'
