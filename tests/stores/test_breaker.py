"""The circuit breaker: who may ask a store that fails, and when."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate import InvalidStore
from headgate.stores.breaker import Breaker, Circuit

CLOSED, OPEN, HALF_OPEN = Circuit.CLOSED, Circuit.OPEN, Circuit.HALF_OPEN
PAUSE, LONGEST, PROBE = 100, 500, 2000


def longest(_: int, high: int) -> int:
    return high


def shortest(low: int, _: int) -> int:
    return low


def breaker(threshold: int = 3, **options: Any) -> Breaker:
    given = {"pause_us": PAUSE, "longest_pause_us": LONGEST, "probe_us": PROBE, "chance": longest, **options}
    return Breaker(threshold=threshold, **given)


def opened(at: int = 0, **options: Any) -> Breaker:
    """A breaker that opened at the tick `at`."""
    tripped = breaker(1, **options)
    assert tripped.failed(tripped.ask(at), at)
    return tripped


def report(subject: Breaker, ticket: int, event: str, now: int) -> None:
    """Tell the breaker how a call went."""
    if event == "ok":
        subject.succeeded(ticket)
    elif event == "fail":
        subject.failed(ticket, now)
    elif event == "give up":
        subject.abandoned(ticket, now)


@pytest.mark.parametrize(
    "story",
    [
        # (time, event, the state then); "-" is a call that is not let through
        pytest.param([(0, "ok", CLOSED), (1, "fail", CLOSED), (2, "fail", CLOSED), (3, "fail", OPEN)], id="opens"),
        pytest.param(
            [(0, "fail", CLOSED), (1, "fail", CLOSED), (2, "ok", CLOSED), (3, "fail", CLOSED), (4, "fail", CLOSED)],
            id="only failures in a row count",
        ),
        pytest.param(
            [*[(0, "fail", None)] * 3, (0, "-", OPEN), (99, "-", OPEN), (100, "ok", CLOSED), (100, "ok", CLOSED)],
            id="a probe after the pause closes it",
        ),
        pytest.param(
            [
                *[(0, "fail", None)] * 3,
                (100, "fail", OPEN),
                (299, "-", OPEN),
                (300, "fail", OPEN),
                (699, "-", OPEN),
                (700, "fail", OPEN),
                (1199, "-", OPEN),
                (1200, "fail", OPEN),
                (1699, "-", OPEN),
                (1700, "ok", CLOSED),
            ],
            id="pauses double up to the longest",
        ),
        pytest.param(
            [*[(0, "fail", None)] * 3, (100, "fail", OPEN), (300, "ok", CLOSED), (301, "fail", CLOSED)],
            id="after a recovery all failures are needed again",
        ),
        pytest.param(
            [
                *[(0, "fail", None)] * 3,
                (100, "fail", OPEN),
                (300, "ok", CLOSED),
                *[(400, "fail", None)] * 3,
                (499, "-", OPEN),
                (500, "ok", CLOSED),
            ],
            id="after a recovery pauses begin anew",
        ),
        pytest.param(
            [*[(0, "fail", None)] * 3, (100, "give up", OPEN), (199, "-", OPEN), (200, "ok", CLOSED)],
            id="a probe given up is due again, without a longer pause",
        ),
        pytest.param(
            [(0, "fail", None), (0, "fail", None), (1, "give up", CLOSED), (2, "fail", OPEN)],
            id="a call given up is no news",
        ),
    ],
)
def test_story(story: list[tuple[int, str, Circuit | None]]) -> None:
    subject = breaker(3)
    for now, event, state in story:
        ticket = subject.ask(now)
        assert (ticket == 0) == (event == "-"), (now, event)
        report(subject, ticket, event, now)
        assert state in {None, subject.state}, (now, event)


def test_five_failures_open_it_unless_told() -> None:
    subject = Breaker()
    assert [subject.failed(subject.ask(0), 0) for _ in range(5)] == [False] * 4 + [True]


def test_one_probe_at_a_time() -> None:
    subject = opened()
    probe = subject.ask(PAUSE)
    assert probe
    assert subject.state is HALF_OPEN
    assert [subject.ask(PAUSE + later) for later in (0, 1, PROBE - 1)] == [0, 0, 0]
    assert subject.succeeded(probe)
    assert subject.ask(PAUSE)


def test_a_probe_that_never_reports_is_replaced() -> None:
    subject = opened()
    lost = subject.ask(PAUSE)
    other = subject.ask(PAUSE + PROBE)
    assert other not in {0, lost}
    assert not subject.succeeded(lost)
    assert subject.state is HALF_OPEN
    assert subject.succeeded(other)


def test_calls_from_before_it_opened_change_nothing() -> None:
    """Neither do their failures prolong the pause, nor is their success taken for the probe's."""
    subject = breaker(2)
    early = [subject.ask(0) for _ in range(5)]
    assert [subject.failed(ticket, 10) for ticket in early[:2]] == [False, True]
    assert not subject.failed(early[2], 50)
    assert not subject.succeeded(early[3])
    assert subject.state is OPEN
    probe = subject.ask(10 + PAUSE)
    assert not subject.succeeded(early[4])
    assert subject.state is HALF_OPEN
    assert subject.succeeded(probe)


def test_a_late_failure_after_the_recovery_does_not_count() -> None:
    subject = breaker(1)
    early = [subject.ask(0), subject.ask(0)]
    subject.failed(early[0], 0)
    subject.succeeded(subject.ask(PAUSE))
    assert not subject.failed(early[1], PAUSE)
    assert subject.state is CLOSED


def test_many_failures_of_one_cause_are_one_and_a_probe_counts_whatever_its_cause() -> None:
    subject, cause = breaker(), object()
    for _ in range(10):
        subject.failed(subject.ask(0), 0, cause)
    assert (subject.state, subject.statistics().failures) == (Circuit.CLOSED, 1)
    for _ in range(2):
        subject.failed(subject.ask(0), 0, object())
    assert subject.state is Circuit.OPEN
    for now in (10_000_000, 20_000_000):
        assert subject.may_ask(now)
        subject.failed(subject.ask(now), now, cause)
        assert subject.state is Circuit.OPEN
        assert not subject.may_ask(now)


def test_an_answer_that_comes_late_shows_that_the_server_is_not_away() -> None:
    subject = breaker()
    tickets = [subject.ask(0) for _ in range(4)]
    for ticket in tickets[:2]:
        subject.failed(ticket, 0)
    assert not subject.answered_late(tickets[0])
    assert subject.is_healthy
    for ticket in tickets[:3]:
        subject.failed(ticket, 0)
    assert subject.state is Circuit.OPEN
    assert subject.answered_late(tickets[2])
    assert subject.statistics().state is Circuit.CLOSED
    assert not subject.answered_late(tickets[3]), "from before it opened"


def test_an_answer_to_a_probe_that_comes_late_closes_it() -> None:
    subject = opened()
    probe = subject.ask(10_000_000)
    subject.failed(probe, 10_000_000)
    assert subject.state is Circuit.OPEN
    assert subject.answered_late(probe)
    assert subject.statistics().recoveries == 1


def test_chance_shortens_a_pause_to_half_at_most() -> None:
    subject = opened(chance=shortest)
    assert subject.ask(PAUSE // 2 - 1) == 0
    assert subject.ask(PAUSE // 2)


def test_says_how_long_to_wait() -> None:
    subject = breaker(1)
    assert subject.wait_us(0) == PAUSE
    subject.failed(subject.ask(7), 7)
    assert [subject.wait_us(now) for now in (7, 57, 106, 107, 300)] == [100, 50, 1, 1, 1]
    subject.ask(300)
    assert subject.wait_us(300) == PAUSE


def test_counts_outages_not_failed_probes() -> None:
    subject = opened()
    subject.failed(subject.ask(PAUSE), PAUSE)
    subject.succeeded(subject.ask(10 * PAUSE))
    seen = subject.statistics()
    assert (seen.state, seen.openings, seen.recoveries, seen.probes, seen.failures) == (CLOSED, 1, 1, 2, 0)


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0},
        {"threshold": 1.5},
        {"pause_us": 0},
        {"pause_us": 10, "longest_pause_us": 9},
        {"probe_us": 0},
    ],
    ids=str,
)
def test_refuses_numbers_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidStore, match="must be a whole number from"):
        Breaker(**options)


class Laws(RuleBasedStateMachine):
    """Calls begin and end in any order: one probe at a time, none before its pause ends, and no pause too long."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.out: list[int] = []
        self.probe = 0
        self.opened_at = 0

    @initialize(threshold=st.integers(1, 4), seed=st.randoms(use_true_random=False))
    def begin(self, threshold: int, seed: Random) -> None:
        self.threshold = threshold
        self.subject = breaker(threshold, chance=seed.randint, probe_us=10**9)

    @rule(gap=st.one_of(st.integers(0, PAUSE), st.integers(0, 2 * LONGEST)))
    def time_passes(self, gap: int) -> None:
        self.now += gap

    @rule()
    def ask(self) -> None:
        before, ticket = self.subject.state, self.subject.ask(self.now)
        if before is CLOSED:
            assert ticket
        elif before is HALF_OPEN:
            assert not ticket, "a second probe"
        else:
            assert not ticket or self.now >= self.opened_at + PAUSE // 2, "let through before the pause ended"
            assert ticket or self.now < self.opened_at + LONGEST, "shut off after the longest pause"
            self.probe = ticket
        self.out += [ticket] * bool(ticket)

    @precondition(lambda self: self.out)
    @rule(which=st.integers(0, 50), event=st.sampled_from(["ok", "fail", "give up"]))
    def answer(self, which: int, event: str) -> None:
        before, ticket = self.subject.state, self.out.pop(which % len(self.out))
        report(self.subject, ticket, event, self.now)
        if before is HALF_OPEN:
            assert (self.subject.state is not HALF_OPEN) == (ticket == self.probe), "only the probe decides"
        elif before is OPEN:
            assert self.subject.state is OPEN
        if before is not OPEN and self.subject.state is OPEN:
            self.opened_at = self.now

    @invariant()
    def the_numbers_agree(self) -> None:
        seen = self.subject.statistics()
        assert seen.openings - seen.recoveries == (seen.state is not CLOSED)
        assert seen.failures < self.threshold
        assert 1 <= self.subject.wait_us(self.now) <= LONGEST


TestLaws = Laws.TestCase
