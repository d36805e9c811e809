from __future__ import annotations

import asyncio
import logging

import pytest

from headgate.server.wire.limits import WireLimits
from headgate.server.wire.transports.house import House, Stopwatch


def test_a_stopwatch_tells_how_long_a_state_has_lasted() -> None:
    watch = Stopwatch()
    assert watch.lasted("idle", 10.0) == 0.0
    assert watch.lasted("idle", 12.5) == 2.5
    assert watch.lasted("busy", 13.0) == 0.0
    assert watch.lasted("idle", 14.0) == 0.0


class Guest:
    """Counts looks, and may fail at them."""

    def __init__(self, house: House, error: Exception | None = None, held: int = 0) -> None:
        self._house, self._error = house, error
        self.held = held
        self.looks = 0
        self.is_aborted = False

    def look(self, now: float) -> None:
        assert now
        self.looks += 1
        if self._error is not None:
            raise self._error

    def drain(self) -> None: ...

    def finish_draining(self) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True
        self._house.leave(self)


def test_a_guest_that_cannot_be_looked_after_is_sent_away_and_the_others_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        house = House(WireLimits(header_time=0.01), None, asyncio.get_running_loop())
        bad, good = Guest(house, LookupError("of all things")), Guest(house)
        for guest in (bad, good):
            assert house.enter(guest)
        while good.looks < 3:  # noqa: ASYNC110  it is looked at now and then
            await asyncio.sleep(0.01)
        assert bad.is_aborted
        assert bad.looks == 1
        assert not good.is_aborted
        house.close()
        assert good.is_aborted

    with caplog.at_level(logging.ERROR):
        asyncio.run(asyncio.wait_for(run(), 30))
    assert "could not be looked after" in caplog.text


def test_the_date_goes_on() -> None:
    async def run() -> None:
        house = House(WireLimits(header_time=0.01), None, asyncio.get_running_loop())
        house.date.set(0)
        while b"1970" in house.date.line:  # noqa: ASYNC110  that is what is tested
            await asyncio.sleep(0.01)
        house.close()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_there_is_room_for_so_many() -> None:
    async def run() -> None:
        house = House(WireLimits(connections=1), None, asyncio.get_running_loop())
        first, second = Guest(house), Guest(house)
        assert house.enter(first)
        assert not house.enter(second)
        house.leave(first)
        assert house.enter(second)
        house.close()

    asyncio.run(run())


def test_those_that_hold_the_most_memory_are_closed_when_there_is_too_little_for_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> list[int]:
        house = House(WireLimits(header_time=0.01, held_bytes=1000), None, asyncio.get_running_loop())
        guests = [Guest(house, held=held) for held in (10, 500, 20, 400, 300, 0)]
        for guest in guests:
            assert house.enter(guest)
        while guests[0].looks < 3:  # noqa: ASYNC110  it is looked at now and then
            await asyncio.sleep(0.01)
        stayed = [guest.held for guest in guests if not guest.is_aborted]
        house.close()
        return stayed

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(asyncio.wait_for(run(), 30)) == [10, 20, 300, 0]
    assert "2 connections are closed" in caplog.text
