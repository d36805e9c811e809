"""What a check costs a client: every way to ask is measured, and those that travel together cost less."""

from __future__ import annotations

from benchmarks.sdk import TOGETHER, measure


def test_every_way_to_ask_is_measured() -> None:
    rows = measure(TOGETHER * 2, rounds=1)
    assert len({row.name for row in rows}) == len(rows) == 9
    assert all(row.cpu_us > 0 for row in rows)
