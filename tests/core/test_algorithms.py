"""What all algorithms share: their names, and from when on a state can be forgotten."""

from __future__ import annotations

import pytest

from headgate import Algorithm, Quota
from headgate.core.algorithms import State, void_at

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("quota", "state", "expected"),
    [
        (Quota(5, SECOND), None, 0),
        (Quota(5, SECOND), (400_000, 7, 5, 0), 400_007),
        (Quota(5, SECOND), (0, 7, 5, 0), 7),
        (Quota(5, SECOND, refill_every_us=300_000), (400_000, 7, 5, 0), 600_007),
        (Quota.one_off(5, keep_us=SECOND), (3, 7, 0, 0), SECOND + 7),
        (Quota(5, SECOND, algorithm=Algorithm.LEAKY_BUCKET), (400_000, 7, 5, 0), 400_007),
        (Quota(5, SECOND, algorithm=Algorithm.GCRA), (9, 0, 5, 0), 9),
        (Quota(7, SECOND, algorithm=Algorithm.GCRA), (9, 3, 7, 0), 10),
        (Quota(5, SECOND, algorithm=Algorithm.FIXED_WINDOW), (SECOND, 1, 0), SECOND),
        (Quota(5, SECOND, algorithm=Algorithm.FIXED_WINDOW), (SECOND, 0, 0), 0),
        (Quota(5, SECOND, algorithm=Algorithm.SLIDING_WINDOW_COUNTER), (SECOND, 1, 1, 0), 2 * SECOND),
        (Quota(5, SECOND, algorithm=Algorithm.SLIDING_WINDOW_COUNTER), (SECOND, 0, 1, 0), SECOND),
        (Quota(5, SECOND, algorithm=Algorithm.SLIDING_WINDOW_COUNTER), (SECOND, 0, 0, 0), 0),
        (Quota(5, SECOND, algorithm=Algorithm.SLIDING_WINDOW_LOG), ([], 0, 0, 2, 7, 2, 0), SECOND + 7),
        (Quota(5, SECOND, algorithm=Algorithm.SLIDING_WINDOW_LOG), ([], 0, 0, 0, 7, 0, 0), 0),
    ],
)
def test_a_state_is_void_when_nothing_counts_as_used(quota: Quota, state: State, expected: int) -> None:
    assert void_at(state, quota) == expected


def test_sliding_window_is_another_name_of_the_counter() -> None:
    assert Algorithm.named("sliding_window") is Algorithm.SLIDING_WINDOW_COUNTER


@pytest.mark.parametrize("algorithm", [each for each in Algorithm if each is not Algorithm.SLIDING_WINDOW_LOG])
def test_a_state_has_as_many_integers_for_ever(algorithm: Algorithm) -> None:
    quota, state, lengths = Quota(7, SECOND, algorithm=algorithm), None, set()
    for number in range(1000):
        state, _ = quota.step(state, number % 3, 1_750_000_000 * SECOND + number * 12_345)
        assert state is not None
        assert {type(part) for part in state} == {int}
        lengths.add(len(state))
    assert len(lengths) == 1
