"""Sliding window log, by hand: each row is (time, cost, allowed, remaining, retry_after, reset_after), in us."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.algorithms import Algorithm, State
from headgate.core.quota import Quota
from tests.core.test_buckets import SECOND, START, Row, play

WINDOW = 10 * SECOND
Past = tuple[tuple[int, int], ...]


def log(limit: int, window_us: int = WINDOW) -> Quota:
    return Quota(limit, window_us, algorithm=Algorithm.SLIDING_WINDOW_LOG)


def filled(quota: Quota, *times: int) -> State:
    state: State = None
    for time in times:
        state, _ = quota.step(state, 1, START + time)
    return state


def test_remembers_each_admission_until_it_is_a_window_old() -> None:
    play(
        log(3),
        [
            (0, 0, True, 3, 0, 0),
            (0, 1, True, 2, 0, 10 * SECOND),
            (2 * SECOND, 1, True, 1, 0, 10 * SECOND),
            (4 * SECOND, 1, True, 0, 0, 10 * SECOND),
            (5 * SECOND, 1, False, 0, 5 * SECOND, 9 * SECOND),
            (5 * SECOND, 2, False, 0, 7 * SECOND, 9 * SECOND),
            (5 * SECOND, 3, False, 0, 9 * SECOND, 9 * SECOND),
            (9_999_999, 1, False, 0, 1, 4_000_001),
            (10 * SECOND, 1, True, 0, 0, 10 * SECOND),
            (11 * SECOND, 1, False, 0, SECOND, 9 * SECOND),
            (12 * SECOND, 0, True, 1, 0, 8 * SECOND),
            (19_999_999, 0, True, 2, 0, 1),
            (20 * SECOND, 0, True, 3, 0, 0),
        ],
    )


def test_admissions_of_one_moment_are_one_entry() -> None:
    state = filled(log(1000), *[0] * 500, *[1] * 500)
    assert state is not None
    assert state[0] == [START, 500]


class TestChangedLimit:
    used_3 = filled(log(5), 0, SECOND, 2 * SECOND)

    @pytest.mark.parametrize(
        ("limit", "row"),
        [
            (9, (3 * SECOND, 1, True, 5, 0, 10 * SECOND)),
            (4, (3 * SECOND, 1, True, 0, 0, 10 * SECOND)),
            (3, (3 * SECOND, 1, False, 0, 7 * SECOND, 9 * SECOND)),
            (2, (3 * SECOND, 1, False, 0, 8 * SECOND, 9 * SECOND)),
            (2, (3 * SECOND, 2, False, 0, 9 * SECOND, 9 * SECOND)),
            (1, (3 * SECOND, 1, False, 0, 9 * SECOND, 9 * SECOND)),
            (1, (3 * SECOND, -1, True, 0, 0, 8 * SECOND)),
        ],
    )
    def test_raised_or_lowered(self, limit: int, row: Row) -> None:
        play(log(limit), [row], self.used_3)


class TestClockFallsBack:
    """Up to a window behind the newest admission, the clock waits for it; further, the log is pulled to the present."""

    used_3 = play(log(3), [(0, 2, True, 1, 0, WINDOW), (4 * SECOND, 1, True, 0, 0, WINDOW)])

    @pytest.mark.parametrize("now", [-6 * SECOND, 0, SECOND, 3_999_999])
    def test_by_up_to_a_window(self, now: int) -> None:
        kept = play(log(3), [(now, 1, False, 0, 10 * SECOND - now, 14 * SECOND - now)], self.used_3)
        assert kept is self.used_3

    def test_by_more_than_a_window(self) -> None:
        """The denial mends the state: all 3 count from now on for a window."""
        now = -6 * SECOND - 1
        mended = play(log(3), [(now, 1, False, 0, 10 * SECOND, 10 * SECOND)], self.used_3)
        play(log(3), [(now + WINDOW - 1, 1, False, 0, 1, 1), (now + WINDOW, 3, True, 0, 0, WINDOW)], mended)


class TestPurity:
    """States share their list, and yet no step disturbs another state."""

    def test_a_discarded_successor_leaves_no_trace_and_no_copy(self) -> None:
        """As in a plan that another limit refused: the step is made again, on the same list."""
        quota = log(5)
        root = filled(quota, 0, SECOND)
        discarded, _ = quota.step(root, 1, START + 2 * SECOND)
        kept, decision = quota.step(root, 2, START + 3 * SECOND)
        assert root is not None
        assert discarded is not None
        assert kept is not None
        assert kept[0] is root[0] is discarded[0]
        assert decision.remaining == 1
        play(quota, [(4 * SECOND, 3, False, 1, 7 * SECOND, 9 * SECOND)], kept)

    @given(st.data())
    def test_any_tree_of_steps(self, data: st.DataObject) -> None:
        """Every state ever made answers as a list of its own admissions does."""
        limit = data.draw(st.integers(1, 6))
        quota = log(limit, 10)
        made: list[tuple[State, Past, int]] = [(None, (), 1000)]
        for _ in range(data.draw(st.integers(1, 40))):
            state, past, now = data.draw(st.sampled_from(made[-4:])) if len(made) > 1 else made[0]
            now += data.draw(st.integers(0, 6))
            cost = data.draw(st.integers(-3, limit))
            live = tuple((at, units) for at, units in past if at > now - 10)
            free = limit - sum(units for _, units in live)
            after, decision = quota.step(state, cost, now)
            assert decision.allowed == (cost <= free)
            if decision.allowed:
                live = _without(live, -cost) if cost < 0 else (*live, (now, cost)) if cost else live
                made.append((after, live, now))
        for state, past, now in made:
            used = sum(units for _, units in past)
            newest = max((at for at, _ in past), default=now - 10)
            look = quota.step(state, 0, now)[1]
            assert (look.remaining, look.reset_after_us) == (limit - used, newest + 10 - now)


def _without(past: Past, units: int) -> Past:
    kept = list(past)
    while kept and units:
        at, there = kept.pop()
        if there > units:
            kept.append((at, there - units))
        units -= min(units, there)
    return tuple(kept)


class TestMemory:
    """Bounded by the limit: stale entries are dropped before they are more than the live ones."""

    @pytest.mark.parametrize("gap", [1, SECOND, 2 * SECOND, 3_333_333, WINDOW, 3 * WINDOW])
    def test_a_long_run_keeps_a_short_list(self, gap: int) -> None:
        limit = 5
        quota = log(limit)
        state: State = None
        longest = 0
        for number in range(3000):
            state, _ = quota.step(state, 1, START + number * gap)
            assert state is not None
            longest = max(longest, len(state[0]))
        assert longest <= 4 * limit  # two numbers per entry, and as many stale ones

    def test_a_long_run_of_steps_that_are_each_discarded_once(self) -> None:
        quota = log(5)
        state: State = None
        longest = 0
        for number in range(3000):
            now = START + number * SECOND
            discarded, _ = quota.step(state, 2, now)
            state, _ = quota.step(state, 1, now)
            assert discarded is not None
            assert state is not None
            longest = max(longest, len(state[0]), len(discarded[0]))
        assert longest <= 20

    def test_a_key_that_rests_drops_its_list(self) -> None:
        quota = log(100)
        state = filled(quota, *range(100), 100 * WINDOW, 100 * WINDOW + 1)
        assert state is not None
        assert len(state[0]) == 2
