"""Leaky bucket, by hand: each row is (time, cost, allowed, remaining, retry_after, reset_after, delay), in us."""

from __future__ import annotations

from headgate.core.algorithms import Algorithm, State
from headgate.core.quota import Quota

SECOND = 1_000_000
START = 1_750_000_000 * SECOND
Row = tuple[int, int, bool, int, int, int, int]


def leaky(limit: int, *, burst: int = 0, queue: bool = True) -> Quota:
    return Quota(limit, SECOND, burst=burst, algorithm=Algorithm.LEAKY_BUCKET, queue=queue)


def play(quota: Quota, rows: list[Row], state: State = None) -> State:
    """Step through `rows`, with times relative to START, and return the last state."""
    for row in rows:
        time, cost, *_ = row
        state, said = quota.step(state, cost, START + time)
        answer = (said.allowed, said.remaining, said.retry_after_us, said.reset_after_us, said.delay_us)
        assert row == (time, cost, *answer)
    return state


def test_a_queue_says_when_it_is_the_requests_turn() -> None:
    play(
        leaky(4),
        [
            (0, 1, True, 3, 0, 250_000, 0),
            (0, 1, True, 2, 0, 500_000, 250_000),
            (0, 2, True, 0, 0, 1_000_000, 500_000),
            (0, 1, False, 0, 250_000, 1_000_000, 0),
            (250_000, 1, True, 0, 0, 1_000_000, 750_000),
            (1_250_000, 1, True, 3, 0, 250_000, 0),
        ],
    )


def test_delays_are_rounded_up_to_whole_microseconds() -> None:
    """At 7/s the turns come every 142857 1/7 us."""
    play(
        leaky(7),
        [
            (0, 1, True, 6, 0, 142_858, 0),
            (0, 1, True, 5, 0, 285_715, 142_858),
            (0, 1, True, 4, 0, 428_572, 285_715),
            (1, 1, True, 3, 0, 571_428, 428_571),
        ],
    )


def test_turns_are_rounded_up_to_whole_microseconds() -> None:
    """At 2 per 3 us, turns come at 0, 1.5, 3 and 4.5 us: from 2 to 3 us two pass, where 2 * 1 / 3 + 1 would be one."""
    quota, state, turns = Quota(2, 3, burst=9, algorithm=Algorithm.LEAKY_BUCKET, queue=True), None, []
    for _ in range(4):
        state, decision = quota.step(state, 1, START)
        turns.append(decision.delay_us)
    assert turns == [0, 2, 3, 5]


def test_burst_makes_the_queue_longer_and_not_faster() -> None:
    quota = leaky(4, burst=2)
    state: State = None
    delays = []
    for _ in range(6):
        state, decision = quota.step(state, 1, START)
        delays.append(decision.delay_us)
    assert delays == [0, 250_000, 500_000, 750_000, 1_000_000, 1_250_000]
    play(quota, [(0, 1, False, 0, 250_000, 1_500_000, 0)], state)


def test_a_capacity_below_the_limit_makes_the_queue_shorter_and_not_slower() -> None:
    play(
        leaky(4, burst=-2),
        [
            (0, 1, True, 1, 0, 250_000, 0),
            (0, 1, True, 0, 0, 500_000, 250_000),
            (0, 1, False, 0, 250_000, 500_000, 0),
            (250_000, 1, True, 0, 0, 500_000, 250_000),
        ],
    )


def test_a_look_tells_the_turn_of_a_request_that_came_now() -> None:
    play(leaky(4), [(0, 3, True, 1, 0, 750_000, 0), (100_000, 0, True, 1, 0, 650_000, 650_000)])


def test_a_refund_shortens_the_queue() -> None:
    play(
        leaky(4),
        [
            (0, 4, True, 0, 0, 1_000_000, 0),
            (0, -2, True, 2, 0, 500_000, 0),
            (0, 1, True, 1, 0, 750_000, 500_000),
            (0, -9, True, 4, 0, 0, 0),
            (0, 1, True, 3, 0, 250_000, 0),
        ],
    )


def test_a_clock_that_falls_back_does_not_bring_a_turn_forward() -> None:
    play(
        leaky(4),
        [
            (0, 2, True, 2, 0, 500_000, 0),
            (-100_000, 1, True, 1, 0, 850_000, 600_000),
            (-100_000, 2, False, 1, 350_000, 850_000, 0),
        ],
    )


def test_a_clock_that_falls_back_by_more_than_a_window_finds_the_queue_as_long_as_it_was() -> None:
    play(leaky(4), [(0, 2, True, 2, 0, 500_000, 0), (-1_000_001, 1, True, 1, 0, 750_000, 500_000)])


def test_a_changed_limit_lets_the_same_queue_out_faster_or_slower() -> None:
    state, _ = leaky(4).step(None, 2, START)
    play(leaky(8), [(0, 1, True, 5, 0, 375_000, 250_000)], state)
    play(leaky(3), [(0, 1, True, 0, 0, 1_000_000, 666_667)], state)
    play(leaky(2), [(0, 1, False, 0, 250_000, 500_000, 0), (0, 0, True, 0, 0, 500_000, 500_000)], state)
    play(leaky(8), [(100_000, 1, True, 5, 0, 325_000, 200_000)], state)  # 1.6 are still in it


def test_a_meter_and_a_queue_share_their_state() -> None:
    state = play(leaky(4, queue=False), [(0, 1, True, 3, 0, 250_000, 0), (0, 1, True, 2, 0, 500_000, 0)])
    play(leaky(4), [(0, 1, True, 1, 0, 750_000, 500_000)], state)


def test_a_queue_with_several_units_a_microsecond() -> None:
    """5 units in 2 us: all 5 are out after 2, 3 of them after 1.2."""
    quota = Quota(5, 2, algorithm=Algorithm.LEAKY_BUCKET, queue=True)
    play(quota, [(0, 3, True, 2, 0, 2, 0), (0, 2, True, 0, 0, 2, 2), (1, 2, True, 0, 0, 2, 1)])
