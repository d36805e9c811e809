"""Flows, driven by callers that block and by callers in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

import pytest

from headgate.flows import drive, drive_async

Flow = Generator[int, str, list[str]]


def _drive_async(flow: Flow, do: Callable[[int], str]) -> list[str]:
    async def later(step: int) -> str:
        await asyncio.sleep(0)
        return do(step)

    return asyncio.run(drive_async(flow, later))


@pytest.fixture(params=[drive, _drive_async], ids=["sync", "async"])
def driven(request: pytest.FixtureRequest) -> Any:
    return request.param


class Counted:
    """A flow that gets the names of numbers, and notes how it ended."""

    end = ""

    def flow(self, *numbers: int) -> Flow:
        names = []
        try:
            for number in numbers:
                try:
                    names.append((yield number))
                except KeyError as error:
                    names.append(f"no {error}")
        except BaseException as error:
            self.end = type(error).__name__
            raise
        self.end = "done"
        return names


def test_each_step_is_done_and_its_outcome_sent(driven: Any) -> None:
    counted = Counted()
    assert driven(counted.flow(1, 2), str) == ["1", "2"]
    assert counted.end == "done"


def test_a_flow_without_steps(driven: Any) -> None:
    assert driven(Counted().flow(), str) == []


def test_a_flow_may_go_on_after_an_error(driven: Any) -> None:
    assert driven(Counted().flow(1, 3, 2), {1: "one", 2: "two"}.__getitem__) == ["one", "no 3", "two"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_any_other_error_passes_through_the_flow(driven: Any, error: type[BaseException]) -> None:
    def fail(_: int) -> str:
        raise error("no")

    counted = Counted()
    with pytest.raises(error, match="no"):
        driven(counted.flow(1), fail)
    assert counted.end == error.__name__


async def test_a_cancelled_flow_gets_the_error() -> None:
    counted = Counted()

    async def wait(_: int) -> str:
        await asyncio.Event().wait()
        raise AssertionError

    task = asyncio.create_task(drive_async(counted.flow(1), wait))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert counted.end == "CancelledError"
