"""What only a token bucket does, by hand; the rows are those of `test_buckets`."""

from __future__ import annotations

import pytest

from headgate.core.algorithms import void_at
from headgate.core.numbers import EXACT
from headgate.core.quota import Quota
from tests.core.test_buckets import SECOND, START, play

FIVE = Quota(5, SECOND)


class TestChangedLimit:
    def test_a_fraction_of_a_token_less_than_the_new_limit_can_count_is_rounded_up(self) -> None:
        """3.99999 of the 8 are used after 400001 us. With one more that is 4.99999 sevenths of a second."""
        play(Quota(7, SECOND), [(400_001, 1, True, 2, 0, 714_285)], Quota(10, SECOND).step(None, 8, START)[0])

    @pytest.mark.parametrize(("then", "limit"), [(10, 1), (1, 10)])
    def test_the_largest_capacity_stays_exact(self, then: int, limit: int) -> None:
        """1/s is counted in fractions of a microsecond, so it can have a capacity of 2**51 // 1000000."""
        largest = EXACT // SECOND
        state, _ = Quota(then, SECOND, burst=largest - then).step(None, largest, START)
        _, said = Quota(limit, SECOND, burst=largest - limit).step(state, 1, START)
        assert (said.allowed, said.remaining) == (False, 0)


class TestClockFallsBack:
    def test_what_is_left_can_still_be_taken(self) -> None:
        state = play(FIVE, [(0, 3, True, 2, 0, 600_000), (-300_000, 1, True, 1, 0, 1_100_000)])
        play(FIVE, [(0, 0, True, 1, 0, 800_000)], state)


class TestOneOff:
    """An allowance without refill, remembered until it was not drawn from for a whole window."""

    quota = Quota.one_off(3, keep_us=10 * SECOND)

    def test_is_not_refilled(self) -> None:
        play(
            self.quota,
            [
                (0, 0, True, 3, 0, 0),
                (0, 2, True, 1, 0, 10 * SECOND),
                (SECOND, 0, True, 1, 0, 9 * SECOND),
                (SECOND, 2, False, 1, 9 * SECOND, 9 * SECOND),
                (SECOND, 1, True, 0, 0, 10 * SECOND),
                (10_999_999, 1, False, 0, 1, 1),
                (11 * SECOND, 1, True, 2, 0, 10 * SECOND),
            ],
        )

    def test_lowered_below_what_was_used(self) -> None:
        state, _ = Quota.one_off(8, keep_us=10 * SECOND).step(None, 5, START)
        play(self.quota, [(SECOND, 1, False, 0, 9 * SECOND, 9 * SECOND), (SECOND, -1, True, 0, 0, 9 * SECOND)], state)

    def test_after_a_refilled_bucket(self) -> None:
        """At 5 per 10 s, 2.5 of 4 are still used after 3 s. With the next use that counts as 3, and no longer falls."""
        state, _ = Quota(5, 10 * SECOND).step(None, 4, START)
        now = 3 * SECOND
        quota = Quota.one_off(6, keep_us=10 * SECOND)
        play(
            quota,
            [
                (now, 0, True, 3, 0, 5 * SECOND),
                (now, 4, False, 3, SECOND, 5 * SECOND),
                (now, 1, True, 2, 0, 10 * SECOND),
                (now + 9 * SECOND, 0, True, 2, 0, SECOND),
            ],
            state,
        )

    @pytest.mark.parametrize(("behind", "reset"), [(3 * SECOND, 11 * SECOND), (11 * SECOND, 8 * SECOND)])
    def test_after_a_refilled_bucket_whose_clock_was_ahead(self, behind: int, reset: int) -> None:
        state, _ = Quota(5, 10 * SECOND).step(None, 4, START)
        play(Quota.one_off(6, keep_us=10 * SECOND), [(-behind, 0, True, 2, 0, reset)], state)

    def test_before_a_refilled_bucket(self) -> None:
        """What was used is refilled from the next use on."""
        state, _ = Quota.one_off(5, keep_us=10 * SECOND).step(None, 4, START)
        play(
            Quota(5, 10 * SECOND),
            [
                (3 * SECOND, 0, True, 1, 0, 7 * SECOND),
                (3 * SECOND, 2, False, 1, 7 * SECOND, 7 * SECOND),
                (3 * SECOND, 1, True, 0, 0, 10 * SECOND),
                (5 * SECOND, 1, True, 0, 0, 10 * SECOND),
            ],
            state,
        )

    @pytest.mark.parametrize("refill_every_us", [1, SECOND])
    def test_a_refund_under_a_refilled_bucket_does_not_keep_it_longer(self, refill_every_us: int) -> None:
        state, _ = Quota.one_off(5, keep_us=10 * SECOND).step(None, 4, START)
        refilled = Quota(5, 10 * SECOND, refill_every_us=refill_every_us)
        play(refilled, [(3 * SECOND, -1, True, 2, 0, 7 * SECOND)], state)

    @pytest.mark.parametrize("refill_every_us", [1, SECOND])
    def test_once_it_is_void_no_refilled_bucket_counts_it_either(self, refill_every_us: int) -> None:
        """From `void_at` on a store may have forgotten it, and the answer must not depend on that."""
        state, _ = Quota.one_off(5, keep_us=10 * SECOND).step(None, 5, START)
        refilled = Quota(5, 10 * SECOND, refill_every_us=refill_every_us)
        assert void_at(state, refilled) == START + 10 * SECOND
        play(refilled, [(10 * SECOND, 5, True, 0, 0, 10 * SECOND)], state)


class TestRefillInSteps:
    """`refill_every_us`: nothing comes back between two steps, and nothing is lost by that."""

    quota = Quota(10, SECOND, refill_every_us=250_000)  # 2.5 tokens a step

    def test_refills_at_steps_from_the_first_use_on(self) -> None:
        play(
            self.quota,
            [
                (0, 0, True, 10, 0, 0),
                (7, 10, True, 0, 0, 1_000_000),
                (7, 1, False, 0, 250_000, 1_000_000),
                (250_006, 1, False, 0, 1, 750_001),
                (250_007, 1, True, 1, 0, 1_000_000),  # 8.5 are used
                (300_007, 2, False, 1, 200_000, 950_000),
                (500_007, 4, True, 0, 0, 1_000_000),  # 6 were used
                (1_500_006, 0, True, 7, 0, 1),
                (1_500_007, 0, True, 10, 0, 0),
            ],
        )

    def test_steps_begin_anew_once_it_was_full(self) -> None:
        play(
            self.quota,
            [
                (0, 10, True, 0, 0, 1_000_000),
                (1_100_000, 10, True, 0, 0, 1_000_000),
                (1_349_999, 1, False, 0, 1, 750_001),
                (1_350_000, 2, True, 0, 0, 1_000_000),  # 7.5 were used, 9.5 are
            ],
        )

    def test_a_changed_limit_keeps_the_steps(self) -> None:
        """After 300 ms one step at 10/s: 5.5 of the 8 are used. At 22/s, 5.5 come back with each step."""
        state, _ = self.quota.step(None, 8, START)
        play(Quota(20, SECOND, refill_every_us=250_000), [(300_000, 0, True, 14, 0, 700_000)], state)
        play(Quota(22, SECOND, refill_every_us=250_000), [(300_000, 1, True, 15, 0, 450_000)], state)

    def test_a_refusal_under_longer_steps_keeps_the_state_until_then(self) -> None:
        """A store may have noted the shorter steps, and must not forget the key before the wait is over."""
        state, _ = Quota(10, SECOND).step(None, 10, START)
        longer = Quota(10, SECOND, refill_every_us=5 * SECOND)
        state, refusal = longer.step(state, 1, START + 7)
        assert refusal.retry_after_us == 5 * SECOND - 7
        assert void_at(state, Quota(10, SECOND)) == START + 5 * SECOND
        assert longer.step(state, 1, START + 8)[0] is state
        state, _ = Quota(10, SECOND).step(state, 1, START + 200_000)
        assert void_at(state, Quota(10, SECOND)) == START + 200_000 + 900_000

    def test_a_clock_that_falls_back_by_more_than_a_window(self) -> None:
        state, _ = self.quota.step(None, 10, START)
        play(self.quota, [(-1_000_001, 1, False, 0, 250_000, 1_000_000)], state)
