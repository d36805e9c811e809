"""Flows: logic written once for blocking and for asynchronous callers.

A *flow* is a generator. It yields the next step, receives its outcome or error, and returns the result. It never waits:
its driver does, in a thread or a task. A flow that is left early, by an error or a cancellation, is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

Step = TypeVar("Step")
Outcome = TypeVar("Outcome")
Result = TypeVar("Result")


def drive(flow: Generator[Step, Outcome, Result], do: Callable[[Step], Outcome]) -> Result:
    """Run a flow; `do` runs each step."""
    try:
        step = next(flow)
        while True:
            try:
                outcome = do(step)
            except BaseException as error:  # noqa: BLE001  the flow raises it again, or handles it
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as end:
        result: Result = end.value
        return result


async def drive_async(flow: Generator[Step, Outcome, Result], do: Callable[[Step], Awaitable[Outcome]]) -> Result:
    """Run a flow; `do` runs each step without blocking the event loop."""
    try:
        step = next(flow)
        while True:
            try:
                outcome = await do(step)
            except BaseException as error:  # noqa: BLE001  the flow raises it again, or handles it
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as end:
        result: Result = end.value
        return result
