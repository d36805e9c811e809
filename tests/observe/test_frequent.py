"""Frequent keys: those that come often are never missed, in bounded memory."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from headgate.observe.frequent import HALF_LIFE, Frequent


@given(st.lists(st.integers(0, 30)), st.integers(1, 8))
def test_counts_are_never_too_high_and_heavy_keys_are_never_missed(keys: list[int], size: int) -> None:
    """By the bound of Misra and Gries: what more than 1 in `size` is, is there."""
    frequent: Frequent[int] = Frequent(size)
    for key in keys:
        frequent.add(key)
        assert len(frequent) <= 2 * size
    exact = Counter(keys)
    found = dict(frequent._counts)
    assert all(count <= exact[key] for key, count in found.items())
    assert all(key in found for key, count in exact.items() if count * size > len(keys))


def test_the_heaviest_of_a_million_keys_are_found_in_bounded_memory() -> None:
    frequent: Frequent[str] = Frequent(500)
    heavy = [f"heavy-{number}" for number in range(10)]
    random = Random(1)
    for number in range(1_000_000):
        frequent.add(f"key-{number}")
        if number % 10 == 0:
            frequent.add(heavy[random.randrange(10)])
    assert len(frequent) <= 1000
    assert {key for key, _ in frequent.top(10)} == set(heavy)


def test_a_steady_key_is_shown_with_its_rate() -> None:
    frequent: Frequent[str] = Frequent(10)
    for _ in range(200):
        for _ in range(50):
            frequent.add("steady")
        frequent.second()
    ((key, rate),) = frequent.top(5)
    assert key == "steady"
    assert 45 <= rate <= 51


def test_what_does_not_come_any_more_is_forgotten() -> None:
    frequent: Frequent[str] = Frequent(10)
    frequent.add("old", 1000)
    (_, before), *_ = frequent.top(1)
    for _ in range(HALF_LIFE):
        frequent.second()
    (_, after), *_ = frequent.top(1)
    assert abs(after / before - 0.5) < 0.01
    for _ in range(20 * HALF_LIFE):
        frequent.second()
    assert len(frequent) == 0
