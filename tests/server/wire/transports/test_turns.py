"""Connections take turns: first all are served, then all are flushed, and none suffers from another's failure."""

from __future__ import annotations

import asyncio
import logging

import pytest

from headgate.server.wire.limits import DEFAULT
from headgate.server.wire.transports.house import House


class Guest:
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


async def turns(notes: list[str], *guests: Guest) -> None:
    house = House(DEFAULT, None, asyncio.get_running_loop())
    try:
        for guest in guests:
            house.await_turn(guest)
        assert notes == []
        await asyncio.sleep(0)
    finally:
        house.close()


def test_all_are_served_before_any_is_flushed() -> None:
    notes: list[str] = []
    asyncio.run(turns(notes, Guest("a", notes), Guest("b", notes)))
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
        asyncio.run(turns(notes, Guest("a", notes, fails=fails), Guest("b", notes)))
    assert notes == seen
    assert "A connection failed" in caplog.text
    assert "this one is broken" in caplog.text


def test_a_turn_is_followed_by_another() -> None:
    async def twice() -> list[str]:
        notes: list[str] = []
        house = House(DEFAULT, None, asyncio.get_running_loop())
        try:
            for name in ("a", "b"):
                house.await_turn(Guest(name, notes))
                await asyncio.sleep(0)
        finally:
            house.close()
        return notes

    assert asyncio.run(twice()) == ["serve a", "flush a", "serve b", "flush b"]
