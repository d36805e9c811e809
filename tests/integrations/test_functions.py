"""Any function: calls above a limit raise, wait, or call another function."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headgate import InvalidQuota, LimitExceeded, load_rules
from headgate.core.errors import InvalidCost
from headgate.integrations.functions import CallRefused, limited
from headgate.testing import ManualClock
from headgate.web.errors import InvalidSettings
from tests.servers import START_SECONDS, until


def test_too_many_calls_raise_and_each_key_has_its_own() -> None:
    @limited("2/minute", key=lambda user, **_: user, clock=ManualClock())
    def send(user: str, text: str = "") -> str:
        return f"{user} {text}"

    assert send("ada", text="hi") == "ada hi"
    send("ada")
    with pytest.raises(LimitExceeded, match=r"exceeded for 'ada': retry in 30 s") as caught:
        send("ada")
    assert caught.value.key == "ada"
    assert "send" in caught.value.__notes__[0]
    assert send("bob") == "bob "
    assert send.__name__ == "send"


def test_too_many_calls_get_another_answer() -> None:
    @limited("1/minute", otherwise=lambda number: -number)
    def fetch(number: int) -> int:
        return number

    assert [fetch(1), fetch(2)] == [1, -2]


def a_minute_later(clock: ManualClock, function: Callable[[], int]) -> int:
    """Return the result of a call that waits, in a thread, while a minute passes."""
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(function)
        until(lambda: clock.sleepers, "it waits")
        clock.advance(60)
        return pending.result(START_SECONDS)


def test_calls_wait_for_their_turn_or_say_at_once_that_it_would_be_in_vain() -> None:
    clock = ManualClock()

    @limited("1/minute", otherwise="wait", timeout=90, clock=clock)
    def fetch() -> int:
        return clock.now()

    began = fetch()
    assert a_minute_later(clock, fetch) == began + 60_000_000

    @limited("1/hour", otherwise="wait", timeout=90, clock=clock)
    def export() -> None: ...

    export()
    with pytest.raises(LimitExceeded):
        export()


async def test_coroutines_wait_without_blocking_and_exactly_as_many_pass() -> None:
    @limited("10/hour", cost=lambda weight: weight, otherwise=lambda weight: 0)
    async def fetch(weight: int) -> int:
        await asyncio.sleep(0)
        return weight

    assert sum(await asyncio.gather(*[fetch(2) for _ in range(50)])) == 10

    @limited("1/s", otherwise="wait", clock=(clock := ManualClock()))
    async def slow() -> int:
        return clock.now()

    began = await slow()
    task = asyncio.create_task(slow())
    while not task.done():
        await asyncio.sleep(0)
        clock.advance(0.1)
    assert await task - began >= 1_000_000

    async def other() -> str:
        return "other"

    @limited("1/hour", otherwise=other)
    async def first() -> str:
        return "first"

    assert [await first(), await first()] == ["first", "other"]


def test_a_queue_spaces_calls() -> None:
    clock = ManualClock()

    @limited("1/minute burst 3 leaky_bucket queue", clock=clock)
    def fetch() -> int:
        return clock.now()

    began = fetch()
    assert a_minute_later(clock, fetch) == began + 60_000_000


def test_errors_may_cost_nothing_and_some_are_exempt() -> None:
    @limited("1/minute", refund_on_error=True, exempt=lambda fails: fails == "exempt")
    def send(fails: str) -> str:
        if fails == "yes":
            raise LookupError
        return fails

    for _ in range(2):
        with pytest.raises(LookupError):
            send("yes")
    assert [send("no"), send("exempt"), send("exempt")] == ["no", "exempt", "exempt"]
    with pytest.raises(LimitExceeded):
        send("no")

    @limited("1/minute", refund_on_error=True)
    async def send_async() -> None:
        raise LookupError

    for _ in range(2):
        with pytest.raises(LookupError):
            asyncio.run(send_async())


async def test_an_asynchronous_generator_counts_once_and_never_blocks_the_loop() -> None:
    closed: list[str] = []

    @limited("1/minute", otherwise="wait", refund_on_error=True)
    async def items(name: str) -> AsyncIterator[str]:
        try:
            for number in range(2):
                yield f"{name}{number}"
                if name == "broken":
                    raise LookupError
        finally:
            closed.append(name)

    assert closed == []
    with pytest.raises(LookupError):  # which costs nothing
        _ = [each async for each in items("broken")]
    found = [each async for each in items("a")]
    waiting = asyncio.ensure_future(anext(aiter(items("b"))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done(), "it waits for its turn, and we do not wait for it"
    waiting.cancel()
    assert found == ["a0", "a1"]
    assert closed == ["broken", "a"]


async def test_an_unfinished_asynchronous_generator_is_closed() -> None:
    closed: list[int] = []

    async def fallback() -> AsyncIterator[str]:
        yield "instead"

    @limited("1/minute", otherwise=fallback)
    async def items() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(1)

    found = items()
    assert await anext(aiter(found)) == 1
    await found.aclose()  # type: ignore[attr-defined]
    assert closed == [1]
    instead: list[Any] = [each async for each in items()]
    assert instead == ["instead"]


def test_functions_share_the_limit_of_a_rule() -> None:
    rules = load_rules("{version: 1, rules: [{id: mails, limit: 1, window: 1m, dimension: user}]}")

    @limited(rule="mails", key=lambda user: user, rules=rules)
    def send(user: str) -> str:
        return user

    send("ada")
    with pytest.raises(LimitExceeded):
        send("ada")


def price(*_: Any) -> int:
    return -1


def no_key(*_: Any) -> str:
    return ""


async def price_later(*_: Any) -> int:
    return -1


class Half:
    def __call__(self, *_: Any) -> float:
        return 0.5


@pytest.mark.parametrize("function", [price, price_later, Half()])
async def test_a_wrong_cost_names_the_function_that_returned_it(function: Any) -> None:
    @limited("5/minute", cost=function)
    async def fetch() -> None: ...

    name = getattr(function, "__name__", "Half")
    with pytest.raises(InvalidCost, match=rf"got (-1|0\.5) from {__name__}\.{name}$"):
        await fetch()


def test_a_key_function_that_finds_nothing_is_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CallRefused, match="does not identify its caller"):
        limited("5/minute", key=no_key)(price)()
    assert f"the key function {__name__}.no_key returned no key" in caplog.text


@pytest.mark.parametrize(
    ("terms", "error"),
    [
        ({"limits": "5/minuet"}, InvalidQuota),
        ({"limits": "5/minute", "otherwise": "drop"}, InvalidSettings),
        ({"limits": "5/minute", "otherwise": "wait", "timeout": -1}, ValueError),
        ({"rule": "mails"}, InvalidSettings),
    ],
)
def test_mistakes_are_errors_where_they_are_written(terms: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        limited(**terms)(len)
