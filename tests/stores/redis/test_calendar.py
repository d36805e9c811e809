"""Calendars on Redis: the server is told the periods, keeps its own time, and takes back what it charged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate.core.calendar import DAY_US, Calendar
from headgate.core.decision import Decision
from headgate.core.plan import Call, Plan, Verb
from headgate.core.quota import Quota
from headgate.stores.redis import script as scripts
from headgate.testing import ManualClock
from headgate.testing.conformance import CALENDARS, QUOTAS, family
from tests.servers import RedisServer
from tests.stores.redis.script import ADDRESS, Script

HOUR = 3_600_000_000
DAYS = Calendar("day", "Europe/Berlin")
NOW = ManualClock.START


@pytest.fixture(scope="module")
def script(server: RedisServer) -> Iterator[Script]:
    with Script(server) as script:
        yield script


def told(script: Script, now: int, thought: int, plan: Plan) -> Decision:
    """Return the answer to a check of a server whose time is `now` by a process that thinks it is `thought`."""
    asked = scripts.query(Call(Verb.CHECK, plan))
    assert not asked.arguments
    dated = replace(asked, arguments=scripts.arguments_at(asked.call, asked.letter, thought))
    (answer,) = scripts.decisions(script.converse(scripts.evaluation([dated], now)), [dated], ADDRESS)
    assert isinstance(answer, Decision)
    return answer


class TestClocksThatDiffer:
    """The server's time counts. By less than a period, the process's clock may be wrong."""

    @given(
        st.sampled_from(["day", "week", "month", "year"]),
        st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "UTC"]),
        st.integers(1_000_000_000, 2_500_000_000),
        st.integers(-20 * HOUR, 20 * HOUR),
    )
    def test_the_end_is_that_of_the_period_at_the_servers_time(
        self, server: RedisServer, unit: str, zone: str, seconds: int, wrong: int
    ) -> None:
        calendar, now = Calendar(unit, zone), seconds * 1_000_000
        plan = family(Quota.per(5, calendar)).plan("user")
        with Script(server) as script:
            answer = told(script, now, now + wrong, plan)
        assert (answer.allowed, answer.remaining, now + answer.reset_after_us) == (True, 4, calendar.bounds(now)[1])

    @pytest.mark.parametrize("wrong", [-1000 * DAY_US, -3 * DAY_US, 3 * DAY_US, 1000 * DAY_US])
    def test_further_apart_no_window_is_longer_than_a_window(self, script: Script, wrong: int) -> None:
        plan = family(Quota.per(2, DAYS)).plan("user")
        found = [told(script, NOW, NOW + wrong, plan) for _ in range(3)]
        assert [answer.allowed for answer in found] == [True, True, False]
        assert 0 < found[2].retry_after_us <= DAY_US


class TestTheArgument:
    def test_is_the_same_within_a_period_and_another_in_the_next(self) -> None:
        call = Call(Verb.CHECK, family(QUOTAS[0], *CALENDARS).plan("user"))
        start, end = DAYS.bounds(NOW)
        arguments = [scripts.arguments_at(call, b"c", now) for now in (start - 1, start, NOW, end - 1, end)]
        assert arguments[1] == arguments[2] == arguments[3]
        assert len(set(arguments)) == 3

    def test_follows_this_process_where_the_time_is_the_servers(self, script: Script) -> None:
        plan = family(Quota.per(5, DAYS)).plan("user")
        answer = script.run(Call(Verb.CHECK, plan), None)
        at = answer.taken_at_us
        assert (answer.allowed, answer.remaining, at + answer.reset_after_us) == (True, 4, DAYS.bounds(at)[1])


class TestUndo:
    """What was charged is taken back while its period lasts, and never from another period."""

    @pytest.mark.parametrize("quota", CALENDARS, ids=str)
    @pytest.mark.parametrize("later", [0, 1, 1000])
    def test_within_the_period(self, script: Script, quota: Quota, later: int) -> None:
        assert quota.calendar
        start, end = quota.calendar.bounds(NOW)
        for since in (start, NOW, end - 1001):
            plan = family(quota).plan("user")
            script.check(plan, 3, since)
            assert script.refund(plan, 2, since, since + later).remaining == 4
            assert script.peek(plan, since + later).remaining == 4

    @pytest.mark.parametrize("quota", CALENDARS, ids=str)
    @pytest.mark.parametrize(("before", "later"), [(1, 0), (HOUR, 1), (1, HOUR)])
    def test_not_from_the_next_period(self, script: Script, quota: Quota, before: int, later: int) -> None:
        assert quota.calendar
        _, end = quota.calendar.bounds(NOW)
        plan = family(quota).plan("user")
        script.check(plan, 3, end - before)
        script.check(plan, 2, end + later)
        script.refund(plan, 3, end - before, end + later)
        assert script.peek(plan, end + later).remaining == 3
