"""The circuit breaker: which calls it permits, and when."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate import OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable
from headgate.stores.breaker import Breaker, Circuit
from headgate.stores.circuits import Circuits
from headgate.testing import ManualClock

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
    tripped = breaker(1, **options)
    assert tripped.failed(tripped.permit(at), at)
    return tripped


def report(subject: Breaker, ticket: int, event: str, now: int) -> None:
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
        ticket = subject.permit(now)
        assert (ticket == 0) == (event == "-"), (now, event)
        report(subject, ticket, event, now)
        assert state in {None, subject.state}, (now, event)


def test_a_probe_that_never_reports_is_replaced() -> None:
    subject = opened()
    lost = subject.permit(PAUSE)
    other = subject.permit(PAUSE + PROBE)
    assert other not in {0, lost}
    assert not subject.succeeded(lost)
    assert subject.state is HALF_OPEN
    assert subject.succeeded(other)


def test_calls_from_before_it_opened_change_nothing() -> None:
    """Neither do their failures prolong the pause, nor is their success taken for the probe's."""
    subject = breaker(2)
    early = [subject.permit(0) for _ in range(5)]
    assert [subject.failed(ticket, 10) for ticket in early[:2]] == [False, True]
    assert not subject.failed(early[2], 50)
    assert not subject.succeeded(early[3])
    assert subject.state is OPEN
    probe = subject.permit(10 + PAUSE)
    assert not subject.succeeded(early[4])
    assert subject.state is HALF_OPEN
    assert subject.succeeded(probe)


def test_a_late_failure_after_the_recovery_does_not_count() -> None:
    subject = breaker(1)
    early = [subject.permit(0), subject.permit(0)]
    subject.failed(early[0], 0)
    subject.succeeded(subject.permit(PAUSE))
    assert not subject.failed(early[1], PAUSE)
    assert subject.state is CLOSED


def test_many_failures_of_one_cause_are_one_and_a_probe_counts_whatever_its_cause() -> None:
    subject, cause = breaker(), object()
    for _ in range(10):
        subject.failed(subject.permit(0), 0, cause)
    assert (subject.state, subject.statistics().failures) == (Circuit.CLOSED, 1)
    for _ in range(2):
        subject.failed(subject.permit(0), 0, object())
    assert subject.state is Circuit.OPEN
    for now in (10_000_000, 20_000_000):
        assert subject.permits(now)
        subject.failed(subject.permit(now), now, cause)
        assert subject.state is Circuit.OPEN
        assert not subject.permits(now)


def test_a_late_answer_shows_that_the_server_is_up() -> None:
    subject = breaker()
    tickets = [subject.permit(0) for _ in range(4)]
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
    probe = subject.permit(10_000_000)
    subject.failed(probe, 10_000_000)
    assert subject.state is Circuit.OPEN
    assert subject.answered_late(probe)
    assert subject.statistics().recoveries == 1


def test_chance_shortens_a_pause_to_half_at_most() -> None:
    subject = opened(chance=shortest)
    assert subject.permit(PAUSE // 2 - 1) == 0
    assert subject.permit(PAUSE // 2)


def test_returns_the_time_until_the_next_probe() -> None:
    subject = breaker(1)
    assert subject.wait_us(0) == PAUSE
    subject.failed(subject.permit(7), 7)
    assert [subject.wait_us(now) for now in (7, 57, 106, 107, 300)] == [100, 50, 1, 1, 1]
    subject.permit(300)
    assert subject.wait_us(300) == PAUSE


def test_counts_outages_not_failed_probes() -> None:
    subject = opened()
    subject.failed(subject.permit(PAUSE), PAUSE)
    subject.succeeded(subject.permit(10 * PAUSE))
    seen = subject.statistics()
    assert (seen.state, seen.openings, seen.recoveries, seen.probes, seen.failures) == (CLOSED, 1, 1, 2, 0)


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
        before, ticket = self.subject.state, self.subject.permit(self.now)
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


def openings_after(*errors: StoreError) -> int:
    circuits = Circuits(None, Breaker, ManualClock().ticks)
    for error in errors:
        attempt = circuits.begin(())
        assert attempt.tickets or circuits.statistics()[1]
        if attempt.tickets:
            attempt.failed(error)
    assert sum(circuits.failures.values()) >= min(len(errors), 5)
    return circuits.statistics()[1]


def test_five_failures_in_a_row_open_the_circuit_unless_they_have_one_cause() -> None:
    """A lost connection is one failure for all its calls; a store that is busy is not broken."""
    assert openings_after(*[StoreUnavailable("away") for _ in range(5)]) == 1
    assert openings_after(*[StoreUnavailable("away") for _ in range(4)]) == 0
    assert openings_after(*[StoreBusy("full") for _ in range(20)]) == 0
    lost = [OutcomeUnknown("connection lost") for _ in range(64)]
    assert openings_after(*lost) == 1
    for error in lost:
        error.incident = lost
    assert openings_after(*lost) == 0


def test_a_tripped_store_is_not_called_before_a_probe_is_due() -> None:
    clock = ManualClock()
    circuits = Circuits(None, Breaker, clock.ticks)
    before = circuits.begin(())
    for _ in range(2):
        circuits.trip(StoreUnavailable("no answer"))
        assert (circuits.begin(()).tickets, circuits.statistics()[1]) == ({}, 1)
    before.failed(StoreUnavailable("what was sent before says nothing about now"))
    clock.advance(0.25)
    assert circuits.begin(()).tickets, "the probe"
    assert not circuits.begin(()).tickets
