"""The connections of a process: watched by one timer, served in batches, none harmed by another's failure."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headgate.server.wire.limits import DEFAULT, WireLimits
from headgate.server.wire.registry import ConnectionRegistry, Stopwatch


def test_a_stopwatch_tells_how_long_a_state_has_lasted() -> None:
    watch = Stopwatch()
    assert watch.lasted("idle", 10.0) == 0.0
    assert watch.lasted("idle", 12.5) == 2.5
    assert watch.lasted("busy", 13.0) == 0.0
    assert watch.lasted("idle", 14.0) == 0.0


class Connected:
    """Counts looks, and may fail at them."""

    def __init__(self, registry: ConnectionRegistry, error: Exception | None = None, held: int = 0) -> None:
        self._registry, self._error = registry, error
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
        self._registry.remove(self)


def test_a_guest_that_cannot_be_looked_after_is_sent_away_and_the_others_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> None:
        registry = ConnectionRegistry(WireLimits(header_time=0.01), None, asyncio.get_running_loop())
        bad, good = Connected(registry, LookupError("of all things")), Connected(registry)
        for connection in (bad, good):
            assert registry.add(connection)
        while good.looks < 3:  # noqa: ASYNC110  it is looked at now and then
            await asyncio.sleep(0.01)
        assert bad.is_aborted
        assert bad.looks == 1
        assert not good.is_aborted
        registry.close()
        assert good.is_aborted

    with caplog.at_level(logging.ERROR):
        asyncio.run(asyncio.wait_for(run(), 30))
    assert "A connection failed" in caplog.text


def test_the_date_goes_on() -> None:
    async def run() -> None:
        registry = ConnectionRegistry(WireLimits(header_time=0.01), None, asyncio.get_running_loop())
        registry.date.set(0)
        while b"1970" in registry.date.line:  # noqa: ASYNC110  that is what is tested
            await asyncio.sleep(0.01)
        registry.close()

    asyncio.run(asyncio.wait_for(run(), 30))


async def test_there_is_room_for_so_many() -> None:
    registry = ConnectionRegistry(WireLimits(connections=1), None, asyncio.get_running_loop())
    first, second = Connected(registry), Connected(registry)
    assert registry.add(first)
    assert not registry.add(second)
    registry.remove(first)
    assert registry.add(second)
    registry.close()


def test_those_that_hold_the_most_memory_are_closed_when_there_is_too_little_for_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run() -> list[int]:
        registry = ConnectionRegistry(WireLimits(header_time=0.01, held_bytes=1000), None, asyncio.get_running_loop())
        connections = [Connected(registry, held=held) for held in (10, 500, 20, 400, 300, 0)]
        for connection in connections:
            assert registry.add(connection)
        while connections[0].looks < 3:  # noqa: ASYNC110  it is looked at now and then
            await asyncio.sleep(0.01)
        stayed = [connection.held for connection in connections if not connection.is_aborted]
        registry.close()
        return stayed

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(asyncio.wait_for(run(), 30)) == [10, 20, 300, 0]
    assert "closed the 2 connections that held the most memory" in caplog.text


class Batched:
    """A connection that notes what it is told."""

    def __init__(self, name: str, notes: list[str], *, fails: str = "") -> None:
        self._name, self._notes, self._fails = name, notes, fails

    def serve(self) -> None:
        self._note("serve")

    def flush(self) -> None:
        self._note("flush")

    def _note(self, what: str) -> None:
        self._notes.append(f"{what} {self._name}")
        if what == self._fails:
            raise RuntimeError("this one is broken")

    def abort(self) -> None:
        self._notes.append(f"abort {self._name}")


async def turns(notes: list[str], *connections: Batched) -> None:
    registry = ConnectionRegistry(DEFAULT, None, asyncio.get_running_loop())
    try:
        for connection in connections:
            registry.serve_soon(connection)
        assert notes == []
        await asyncio.sleep(0)
    finally:
        registry.close()


def test_all_are_served_before_any_is_flushed() -> None:
    notes: list[str] = []
    asyncio.run(turns(notes, Batched("a", notes), Batched("b", notes)))
    assert notes == ["serve a", "serve b", "flush a", "flush b"]


@pytest.mark.parametrize(
    ("fails", "seen"),
    [
        ("serve", ["serve a", "abort a", "serve b", "flush a", "flush b"]),
        ("flush", ["serve a", "serve b", "flush a", "abort a", "flush b"]),
    ],
)
def test_one_that_fails_is_closed_and_the_others_are_served(
    fails: str, seen: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    notes: list[str] = []
    with caplog.at_level(logging.ERROR):
        asyncio.run(turns(notes, Batched("a", notes, fails=fails), Batched("b", notes)))
    assert notes == seen
    assert "A connection failed" in caplog.text
    assert "this one is broken" in caplog.text


async def test_a_turn_is_followed_by_another() -> None:
    notes: list[str] = []
    registry = ConnectionRegistry(DEFAULT, None, asyncio.get_running_loop())
    try:
        for name in ("a", "b"):
            registry.serve_soon(Batched(name, notes))
            await asyncio.sleep(0)
    finally:
        registry.close()
    assert notes == ["serve a", "flush a", "serve b", "flush b"]
