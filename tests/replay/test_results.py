"""What is counted stays exact when buckets of time are merged, and right by a few percent where it is sampled."""

from __future__ import annotations

from headgate.replay.results import MOST_BUCKETS, MOST_CELLS, Distinct, Timeline, hash_of
from tests.replay.samples import SECOND, START


def test_buckets_get_wider_and_lose_nothing() -> None:
    timeline = Timeline()
    series = timeline.series()
    for number in range(5000):
        timeline.move(START + number * number * SECOND)
        series.setdefault(timeline.bucket, [0, 0])[0] += 1
        assert timeline.bucket * timeline.width_us <= START + number * number * SECOND < timeline.ends
    counts = timeline.dense(series, 0)
    assert sum(counts) == 5000
    assert MOST_BUCKETS / 6 < len(counts) <= MOST_BUCKETS
    assert timeline.width_us == 86_400 * SECOND
    first = [
        n
        for n in range(5000)
        if (START + n * n * SECOND) // timeline.width_us == timeline.starts() // timeline.width_us
    ]
    assert counts[0] == len(first)


def test_a_log_of_thousands_of_years_has_few_buckets() -> None:
    timeline = Timeline()
    series = timeline.series()
    for at in (0, 253_402_300_799 * SECOND):
        timeline.move(at)
        series[timeline.bucket] = [1]
    assert 1 < len(timeline.dense(series, 0)) <= MOST_BUCKETS
    assert sum(timeline.dense(series, 0)) == 2


def test_many_rules_share_the_buckets() -> None:
    timeline = Timeline()
    every = [timeline.series() for _ in range(5000)]
    for second in range(300):
        timeline.move(START + second * SECOND)
        for series in every:
            series.setdefault(timeline.bucket, [0])[0] += 1
    assert sum(map(len, every)) <= MOST_CELLS + 5000
    assert all(sum(timeline.dense(series, 0)) == 300 for series in every)


def test_principals_are_counted_exactly_and_then_about_right() -> None:
    few, many = Distinct(500), Distinct(500)
    for number in range(1000):
        few.add(hash_of(f"user{number % 800}"))
    assert (few.count(), few.is_exact) == (800, True)
    for number in range(200_000):
        many.add(hash_of(f"user{number}"))
    assert not many.is_exact
    assert abs(many.count() - 200_000) < 20_000
