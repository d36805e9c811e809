"""The registry of connections: one timer, batches, and isolated failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from headgate.server.wire.limits import DEFAULT, WireLimits
from headgate.server.wire.registry import ConnectionRegistry, Stopwatch


def test_a_stopwatch_measures_how_long_a_state_has_lasted() -> None:
    watch = Stopwatch()
    seen = [watch.seconds_in(*each) for each in (("idle", 10.0), ("idle", 12.5), ("busy", 13.0), ("idle", 14.0))]
    assert seen == [0.0, 2.5, 0.0, 0.0]


class Connected:
    def __init__(self, registry: ConnectionRegistry, error: Exception | None = None, held: int = 0) -> None:
        self._registry, self._error, self.held = registry, error, held
        self.looks, self.is_aborted = 0, False

    def enforce_timeouts(self, now: float) -> None:
        assert now
        self.looks += 1
        if self._error is not None:
            raise self._error

    def drain(self) -> None: ...

    def finish_draining(self) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True
        self._registry.remove(self)


def registry_of(limits: WireLimits = DEFAULT) -> ConnectionRegistry:
    return ConnectionRegistry(limits, None, asyncio.get_running_loop())


async def seen(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not what():  # noqa: ASYNC110  it is looked at now and then
            await asyncio.sleep(0.01)


async def test_a_connection_that_cannot_be_looked_after_is_closed_and_the_others_stay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = registry_of(WireLimits(header_time=0.01))
    bad, good = Connected(registry, LookupError("of all things")), Connected(registry)
    assert registry.add(bad)
    assert registry.add(good)
    with caplog.at_level(logging.ERROR):
        await seen(lambda: good.looks >= 3)
    assert (bad.is_aborted, bad.looks, good.is_aborted) == (True, 1, False)
    registry.close()
    assert good.is_aborted
    assert "a connection failed" in caplog.text


async def test_the_date_is_updated() -> None:
    registry = registry_of(WireLimits(header_time=0.01))
    registry.date.set(0)
    await seen(lambda: b"1970" not in registry.date.line)
    registry.close()


async def test_connections_that_hold_the_most_memory_are_closed_beyond_the_bound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = registry_of(WireLimits(header_time=0.01, held_bytes=1000))
    connections = [Connected(registry, held=held) for held in (10, 500, 20, 400, 300, 0)]
    assert all(map(registry.add, connections))
    with caplog.at_level(logging.WARNING):
        await seen(lambda: connections[0].looks >= 3)
    assert [connection.held for connection in connections if not connection.is_aborted] == [10, 20, 300, 0]
    registry.close()
    assert "closed the 2 connections that used the most memory" in caplog.text


class Batched:
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


@pytest.mark.parametrize(
    ("fails", "noted"),
    [
        ("", "serve a, serve b, flush a, flush b"),
        ("serve", "serve a, abort a, serve b, flush a, flush b"),
        ("flush", "serve a, serve b, flush a, abort a, flush b"),
    ],
)
async def test_all_are_served_before_any_is_flushed_and_one_that_fails_is_closed(
    fails: str, noted: str, caplog: pytest.LogCaptureFixture
) -> None:
    notes: list[str] = []
    registry = registry_of()
    with caplog.at_level(logging.ERROR):
        registry.serve_soon(Batched("a", notes, fails=fails))
        registry.serve_soon(Batched("b", notes))
        assert notes == []
        await asyncio.sleep(0)
        assert notes == noted.split(", ")
        registry.serve_soon(Batched("c", notes))  # another turn
        await asyncio.sleep(0)
    registry.close()
    assert notes[-2:] == ["serve c", "flush c"]
    assert ("a connection failed" in caplog.text, "this one is broken" in caplog.text) == (bool(fails), bool(fails))
