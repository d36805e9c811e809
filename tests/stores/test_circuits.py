"""What counts as a failure of a server, and what does not."""

from __future__ import annotations

from headgate.core.errors import OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable
from headgate.stores.breaker import Breaker
from headgate.stores.circuits import Circuits
from headgate.testing import ManualClock


def openings_after(*errors: StoreError) -> int:
    circuits = Circuits(None, Breaker, ManualClock().ticks)
    for error in errors:
        attempt = circuits.begin(())
        assert attempt.tickets or circuits.statistics()[1]
        if attempt.tickets:
            attempt.failed(error)
    assert sum(circuits.failures.values()) >= min(len(errors), 5)
    return circuits.statistics()[1]


def test_five_failures_in_a_row_open_the_circuit() -> None:
    assert openings_after(*[StoreUnavailable("away") for _ in range(5)]) == 1
    assert openings_after(*[StoreUnavailable("away") for _ in range(4)]) == 0


def test_a_store_that_is_busy_is_not_broken() -> None:
    assert openings_after(*[StoreBusy("full") for _ in range(20)]) == 0


def test_one_connection_that_is_lost_is_one_failure_for_all_who_used_it() -> None:
    lost = object()

    def told() -> StoreError:
        error = OutcomeUnknown("connection lost")
        error.incident = lost
        return error

    assert openings_after(*[told() for _ in range(64)]) == 0
    assert openings_after(*[OutcomeUnknown("connection lost") for _ in range(5)]) == 1


def test_a_store_that_is_known_to_be_away_is_not_asked_before_a_probe_is_due() -> None:
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
