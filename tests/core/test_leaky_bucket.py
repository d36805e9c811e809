"""Leaky bucket, by hand: each row is (time, cost, allowed, remaining, retry_after, reset_after, delay), in us."""

from __future__ import annotations

from headgate import Algorithm, Quota
from tests.core.test_buckets import SECOND, START, play


def leaky(limit: int, *, burst: int = 0, queue: bool = True) -> Quota:
    return Quota(limit, SECOND, burst=burst, algorithm=Algorithm.LEAKY_BUCKET, queue=queue)


def test_a_queue_returns_the_delay_until_the_turn() -> None:
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


def test_a_peek_returns_the_delay_of_a_request_made_now() -> None:
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


def test_a_changed_limit_lets_the_same_queue_out_faster_or_slower() -> None:
    state, _ = leaky(4).step(None, 2, START)
    play(leaky(8), [(0, 1, True, 5, 0, 375_000, 250_000)], state)
    play(leaky(3), [(0, 1, True, 0, 0, 1_000_000, 666_667)], state)
    play(leaky(2), [(0, 1, False, 0, 250_000, 500_000, 0), (0, 0, True, 0, 0, 500_000, 500_000)], state)
    play(leaky(8), [(100_000, 1, True, 5, 0, 325_000, 200_000)], state)  # 1.6 are still in it


def test_a_meter_and_a_queue_share_their_state() -> None:
    state = play(leaky(4, queue=False), [(0, 1, True, 3, 0, 250_000, 0), (0, 1, True, 2, 0, 500_000, 0)])
    play(leaky(4), [(0, 1, True, 1, 0, 750_000, 500_000)], state)
