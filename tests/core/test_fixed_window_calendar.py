"""Fixed windows by the calendar: tables by hand, and the laws of the core on random traces."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.algorithms import State, void_at
from headgate.core.calendar import DAY_US, Calendar
from headgate.core.decision import Decision
from headgate.core.quota import Quota
from tests.core.test_laws import Int53

HOUR = 3_600_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")
ZONES = ["Europe/Berlin", "UTC", "Australia/Lord_Howe", "Pacific/Apia", "America/Sao_Paulo", "America/St_Johns"]
Row = tuple[tuple[int, ...], int, bool, int, float, float]

quotas = st.builds(
    lambda limit, unit, zone: Quota.per(limit, Calendar(unit, zone)),
    st.integers(1, 9),
    st.sampled_from(["day", "week", "month", "year"]),
    st.sampled_from(ZONES),
)


def berlin(*local: int) -> int:
    return (datetime(*local, tzinfo=BERLIN) - EPOCH) // timedelta(microseconds=1)  # type: ignore[misc,arg-type]


def ask(quota: Quota, state: State, cost: int, now: int) -> Decision:
    return quota.step(state, cost, now)[1]


@st.composite
def traces(draw: st.DrawFn, quota: Quota) -> list[tuple[int, int]]:
    """Requests as (time, cost) between 1995 and 2060, many of them around the boundaries of periods."""
    assert quota.calendar
    now, trace = draw(st.integers(800_000_000, 2_800_000_000)) * 10**6, []
    costs, from_now = st.integers(1, quota.limit), st.integers(0, 2 * HOUR) | st.integers(0, 2 * quota.window_us)
    steps = from_now.map(lambda gap: (False, gap)) | st.sampled_from(
        [(False, 0), (False, 0), (False, 1), (True, -1), (True, 0), (True, 1)]
    )
    for _ in range(draw(st.integers(1, 30))):  # strategies are made before: each takes longer than to draw from it
        at_the_end, gap = draw(steps)
        now = (quota.calendar.bounds(now)[1] if at_the_end else now) + gap
        trace.append((now, draw(costs)))
    return trace


def play(quota: Quota, trace: list[tuple[int, int]]) -> tuple[State, int]:
    """Return the state after the requests of `trace`, and the time then."""
    state: State = None
    for now, cost in trace:
        state, _ = quota.step(state, cost, now)
    return state, now


class TestByHand:
    """Each row is (local time in Berlin, cost, allowed, remaining, retry_after, reset_after), durations in hours."""

    @pytest.mark.parametrize(
        ("unit", "rows"),
        [
            (
                "day",
                [
                    ((2025, 3, 30), 2, True, 1, 0, 23),
                    ((2025, 3, 30, 1), 2, False, 1, 22, 22),
                    ((2025, 3, 30, 3), 1, True, 0, 0, 21),
                    ((2025, 3, 30, 23), 1, False, 0, 1, 1),
                    ((2025, 3, 31), 3, True, 0, 0, 24),
                    ((2025, 10, 26), 3, True, 0, 0, 25),
                    ((2025, 10, 26, 12), 1, False, 0, 12, 12),
                    ((2025, 10, 27), 0, True, 3, 0, 0),
                ],
            ),
            (
                "month",
                [
                    ((2025, 2, 27, 23), 3, True, 0, 0, 25),
                    ((2025, 2, 28, 23), 1, False, 0, 1, 1),
                    ((2025, 3, 1), 3, True, 0, 0, 31 * 24 - 1),
                    ((2025, 3, 1), -1, True, 1, 0, 31 * 24 - 1),
                    ((2025, 3, 31, 23), 2, False, 1, 1, 1),
                    ((2025, 4, 1), 2, True, 1, 0, 30 * 24),
                ],
            ),
            ("week", [((2025, 6, 15, 23), 3, True, 0, 0, 1), ((2025, 6, 16), 1, True, 2, 0, 7 * 24)]),
            ("year", [((2024, 12, 31, 23), 3, True, 0, 0, 1), ((2025, 1, 1), 1, True, 2, 0, 365 * 24)]),
        ],
        ids=["day", "month", "week", "year"],
    )
    def test_table(self, unit: str, rows: list[Row]) -> None:
        quota, state = Quota.per(3, Calendar(unit, "Europe/Berlin")), None
        for local, cost, *expected in rows:
            state, said = quota.step(state, cost, berlin(*local))
            waits = [said.retry_after_us // HOUR, said.reset_after_us // HOUR]
            assert [said.allowed, said.remaining, *waits] == expected, local


class TestClockFallsBack:
    """Up to a window, it takes longer; further, what was used is pulled to the present."""

    quota = Quota.per(3, Calendar("day", "Europe/Berlin"))
    used_2 = quota.step(None, 2, berlin(2025, 10, 26, 12))[0]  # a day of 25 hours

    @pytest.mark.parametrize("local", [(2025, 10, 26), (2025, 10, 25, 23), (2025, 10, 25), (2025, 10, 24, 23)])
    def test_by_up_to_a_window(self, local: tuple[int, ...]) -> None:
        now = berlin(*local)
        wait = berlin(2025, 10, 27) - now
        kept, refusal = self.quota.step(self.used_2, 2, now)
        assert (refusal.allowed, refusal.remaining, refusal.retry_after_us) == (False, 1, wait)
        assert kept is self.used_2
        assert ask(self.quota, kept, 1, now).reset_after_us == wait

    def test_by_more_than_a_window(self) -> None:
        now = berlin(2025, 10, 23, 22)
        mended, refusal = self.quota.step(self.used_2, 2, now)
        assert (refusal.allowed, refusal.remaining, refusal.retry_after_us) == (False, 1, 2 * HOUR)
        assert not ask(self.quota, mended, 2, now + 2 * HOUR - 1)
        assert ask(self.quota, mended, 2, now + 2 * HOUR)

    @given(st.data())
    def test_a_clock_that_falls_back_never_gives_budget(self, data: st.DataObject) -> None:
        quota = data.draw(quotas)
        state, now = play(quota, data.draw(traces(quota)))
        back = data.draw(st.integers(0, quota.window_us) | st.integers(0, 10**15))
        then = now - back
        here, there = ask(quota, state, 0, now), ask(quota, state, 0, then)
        assert there.remaining == here.remaining
        wait = ask(quota, state, quota.limit, then)
        if wait.allowed:
            return
        mended, _ = quota.step(state, quota.limit, then)
        if back <= quota.window_us:
            assert mended is state
        assert not ask(quota, mended, quota.limit, then + wait.retry_after_us - 1).allowed
        assert ask(quota, mended, quota.limit, then + wait.retry_after_us).allowed
        assert wait.retry_after_us <= 2 * quota.window_us + DAY_US


class TestLaws:
    @given(st.data())
    def test_admits_the_limit_in_each_period_and_not_one_more(self, data: st.DataObject) -> None:
        """Against a dictionary of what was admitted in which period."""
        quota = data.draw(quotas)
        assert quota.calendar
        state, used = None, dict[tuple[int, int], int]()
        for now, cost in data.draw(traces(quota)):
            start, end = quota.calendar.bounds(now)
            before = used.get((start, end), 0)
            state, said = quota.step(state, cost, now)
            assert said.allowed == (before + cost <= quota.limit)
            used[start, end] = after = before + cost * said.allowed
            assert said.remaining == quota.limit - after
            assert said.reset_after_us == end - now
            assert said.retry_after_us == (0 if said.allowed else end - now)

    @given(st.data())
    def test_retry_after_is_exact(self, data: st.DataObject) -> None:
        quota = data.draw(quotas)
        state, now = play(quota, data.draw(traces(quota)))
        refusal = ask(quota, state, quota.limit, now)
        assert not refusal
        assert not ask(quota, state, quota.limit, now + refusal.retry_after_us - 1)
        assert ask(quota, state, quota.limit, now + refusal.retry_after_us)

    @given(st.data())
    def test_a_refund_undoes_a_check_and_a_denied_request_changes_nothing(self, data: st.DataObject) -> None:
        quota = data.draw(quotas)
        state, now = play(quota, data.draw(traces(quota)))
        denied, _ = quota.step(state, quota.limit, now)
        assert denied is state
        before = ask(quota, state, 0, now).remaining
        if before:
            taken, _ = quota.step(state, 1, now)
            assert quota.step(taken, -1, now)[1].remaining == before
        assert quota.step(state, -100, now)[1].remaining == quota.limit

    @given(st.data(), st.integers(1, 20))
    def test_what_was_used_stays_used_under_another_limit(self, data: st.DataObject, limit: int) -> None:
        quota = data.draw(quotas)
        state, now = play(quota, data.draw(traces(quota)))
        used = ask(quota, state, 0, now).used
        assert ask(replace(quota, limit=limit), state, 0, now).remaining == max(0, limit - used)

    @given(st.data())
    def test_from_reset_after_on_the_state_is_void(self, data: st.DataObject) -> None:
        quota = data.draw(quotas)
        state, now = play(quota, data.draw(traces(quota)))
        reset = now + ask(quota, state, 0, now).reset_after_us
        assert void_at(state, quota) == reset
        assert ask(quota, state, 0, reset) == ask(quota, None, 0, reset)

    @given(st.data())
    def test_no_number_leaves_53_bits(self, data: st.DataObject) -> None:
        quota = data.draw(quotas)
        state, now = play(quota, data.draw(traces(quota)))
        for then in (now, now + 10**15, now - 10**14, now - quota.window_us):
            for cost in (1, 0, -1):
                quota.step(state, Int53(cost), Int53(then))
