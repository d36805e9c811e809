"""Running flows: logic that is written once for callers that block and for callers in an event loop.

A *flow* is a generator. It yields what is to be done next, is sent the outcome, or thrown the error that came instead,
and returns the result. It never waits itself: that is what its driver does, by a function of the right colour. A flow
that is left before its end, since an error or a cancelled caller passed through it, is closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

Step = TypeVar("Step")
Outcome = TypeVar("Outcome")
Result = TypeVar("Result")


def drive(flow: Generator[Step, Outcome, Result], do: Callable[[Step], Outcome]) -> Result:
    """Return what `flow` returns; `do` does each step."""
    try:
        step = next(flow)
        while True:
            try:
                outcome = do(step)
            except BaseException as error:  # noqa: BLE001  the flow raises it again, if it has nothing better
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as end:
        result: Result = end.value
        return result


async def drive_async(flow: Generator[Step, Outcome, Result], do: Callable[[Step], Awaitable[Outcome]]) -> Result:
    """Return what `flow` returns; `do` does each step, without blocking the event loop."""
    try:
        step = next(flow)
        while True:
            try:
                outcome = await do(step)
            except BaseException as error:  # noqa: BLE001  the flow raises it again, if it has nothing better
                step = flow.throw(error)
            else:
                step = flow.send(outcome)
    except StopIteration as end:
        result: Result = end.value
        return result
