"""What is remembered for `check_once`: for 5 minutes, within bounds."""

from __future__ import annotations

from collections.abc import Callable

from headgate import Limiter, MemoryStore
from headgate.core.decision import Decision
from headgate.core.key import ONCE_US
from headgate.core.quota import Quota
from headgate.stores.memory import Admissions
from headgate.testing import ManualClock

NOW = ManualClock.START


def decision(remaining: int) -> Decision:
    return Quota(10, 1_000_000).step(None, 10 - remaining, NOW)[1]


def test_an_answer_is_found_for_5_minutes() -> None:
    answers = Admissions(10)
    answers.keep(b"one", decision(1), NOW)
    assert answers.find(b"one", NOW + ONCE_US - 1) == decision(1)
    assert answers.find(b"one", NOW + ONCE_US) is None
    assert answers.find(b"other", NOW) is None


def test_the_oldest_answer_is_forgotten_first() -> None:
    answers = Admissions(3)
    for number in range(5):
        answers.keep(b"%d" % number, decision(number), NOW + number)
    assert len(answers) == 3
    assert [bool(answers.find(b"%d" % number, NOW)) for number in range(5)] == [False, False, True, True, True]


def test_an_answer_that_is_given_anew_is_young_again() -> None:
    answers = Admissions(3)
    for token, now in [
        (b"a", NOW),
        (b"b", NOW + 1),
        (b"a", NOW + ONCE_US),
        (b"c", NOW + ONCE_US),
        (b"d", NOW + ONCE_US),
    ]:
        answers.keep(token, decision(3), now)
    assert [bool(answers.find(token, NOW + ONCE_US)) for token in (b"a", b"b", b"c", b"d")] == [True, False, True, True]
    assert len(answers) == 3


def test_a_clock_that_is_set_back_loses_nothing_and_clears_it_all_later() -> None:
    answers = Admissions(10)
    answers.keep(b"late", decision(1), NOW)
    answers.keep(b"early", decision(2), NOW - ONCE_US)
    assert answers.find(b"late", NOW - ONCE_US) == decision(1)
    assert not answers.drop_ended(NOW)
    assert answers.find(b"early", NOW) is None
    assert [answers.drop_ended(NOW + ONCE_US) for _ in range(3)] == [True, True, False]
    assert len(answers) == 0


def test_ended_answers_disappear_by_themselves(manual_clock: ManualClock) -> None:
    """Nobody asks about them again; other traffic clears them, a few per call."""
    store = MemoryStore(clock=manual_clock)
    once, other = Limiter("1000/s", store=store), Limiter("1000/s", store=store, name="other")
    for number in range(500):
        assert once.check_once("user", f"request {number}")
        manual_clock.advance(us=2000)
    assert len(store._once) == 500
    manual_clock.advance(us=ONCE_US)
    other.check("somebody")
    assert 480 < len(store._once) < 500
    for _ in range(100):
        other.check("somebody")
    assert len(store._once) == 0
    assert len(store) == 1


def test_a_full_store_still_remembers_the_latest(manual_clock: ManualClock) -> None:
    limiter = Limiter("1000/hour", store=MemoryStore(max_keys=10, clock=manual_clock))
    first = [limiter.check_once("user", f"request {number}") for number in range(30)]
    assert [limiter.check_once("user", f"request {number}") for number in range(20, 30)] == first[20:]
    assert limiter.check_once("user", "request 0").remaining == 969


def test_close_forgets_answers(manual_clock: ManualClock) -> None:
    store = MemoryStore(clock=manual_clock)
    limiter = Limiter("5/hour", store=store)
    checks: list[Callable[[], Decision]] = [lambda: limiter.check_once("user", "once"), lambda: limiter.check("user")]
    assert [check().remaining for check in checks] == [4, 3]
    limiter.close()
    assert [check().remaining for check in checks] == [4, 3]
