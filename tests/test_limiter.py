"""Limiter and AsyncLimiter: the same behaviour, for threads and for event loops, also while their store is down."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Callable
from typing import Any

import pytest

from headgate import (
    Algorithm,
    AsyncLimiter,
    CostTooLarge,
    Decision,
    InvalidCost,
    InvalidKey,
    InvalidQuota,
    InvalidStore,
    Limiter,
    LimitExceeded,
    MemoryStore,
    Quota,
    StoreError,
    StoreUnavailable,
    UsageError,
)
from headgate.core.plan import Call
from headgate.stores import open_store
from headgate.stores.memory import AsyncMemoryStore
from headgate.testing import ManualClock
from headgate.testing.reference import ReferenceStore
from tests.servers import RedisServer, free_port

EVERY_ALGORITHM = [*(f"100/minute {algorithm}" for algorithm in Algorithm), "100/minute leaky_bucket queue", "100 once"]


class Both:
    """Drives either limiter with the same calls; an awaitable answer is awaited."""

    def __init__(self, kind: type[Limiter | AsyncLimiter]) -> None:
        self.kind = kind

    def make(self, *args: Any, **kwargs: Any) -> Any:
        limiter = self.kind(*args, **kwargs)
        return _Sync(limiter) if isinstance(limiter, AsyncLimiter) else limiter


class _Sync:
    def __init__(self, limiter: AsyncLimiter) -> None:
        self.limiter = limiter

    def __getattr__(self, name: str) -> Any:
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await getattr(self.limiter, name)(*args, **kwargs)

        return lambda *args, **kwargs: asyncio.run(awaited(*args, **kwargs))


@pytest.fixture(params=[Limiter, AsyncLimiter])
def both(request: pytest.FixtureRequest) -> Both:
    return Both(request.param)


def test_the_two_limiters_have_the_same_verbs_and_arguments() -> None:
    def surface(kind: type) -> dict[str, list[str]]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {name: list(inspect.signature(method).parameters) for name, method in methods if name[0] != "_"}

    assert surface(Limiter) == surface(AsyncLimiter)
    verbs = {"acquire", "check", "check_once", "close", "guard", "peek", "ready", "refund", "reset"}
    assert set(surface(Limiter)) == verbs


def test_check_peek_refund_reset(both: Both, manual_clock: ManualClock) -> None:
    limiter = both.make("3/minute", clock=manual_clock)
    assert [limiter.check("user:42").remaining for _ in range(3)] == [2, 1, 0]
    refusal = limiter.check("user:42")
    assert (refusal.allowed, refusal.retry_after, refusal.reset_after) == (False, 20.0, 60.0)
    assert limiter.refund("user:42").remaining == 1
    assert limiter.peek("user:42").allowed
    assert not limiter.peek("user:42", 2)
    assert limiter.check("user:42", 0).remaining == 1
    limiter.reset("user:42")
    assert limiter.check("user:42", cost=3)
    assert limiter.check("user:43", cost=3)


def test_a_subclass_may_do_more_in_its_check(manual_clock: ManualClock) -> None:
    class Doubled(Limiter):
        def check(self, key: str, cost: int = 1) -> Decision:
            return super().check(key, 2 * cost)

    assert Doubled("10/minute", clock=manual_clock).check("ada").remaining == 8


def test_several_quotas_are_one_decision(both: Both, manual_clock: ManualClock) -> None:
    limiter = both.make("2/s; 3/day fixed_window", clock=manual_clock)
    assert limiter.check("a", 2)
    manual_clock.advance(1)
    refusal = limiter.check("a", 2)
    assert not refusal
    assert str(refusal.quota) == "3/day fixed_window"
    assert [part.remaining for part in refusal.limits] == [2, 1]
    assert limiter.check("a")


def test_check_once_counts_a_retried_request_once(both: Both, manual_clock: ManualClock) -> None:
    limiter = both.make("3/hour; 5/day", clock=manual_clock)
    first = limiter.check_once("user:42", "order-1042", 2)
    assert (first.allowed, first.remaining) == (True, 1)
    manual_clock.advance(299)
    assert limiter.check_once("user:42", "order-1042", cost=2) == first
    assert not limiter.check_once("user:42", "order-1043", 2)
    assert limiter.check_once("user:42", "order-1043").remaining == 0
    manual_clock.advance(1)
    assert not limiter.check_once("user:42", "order-1042", 2)
    with pytest.raises(InvalidKey, match="an idempotency key"):
        limiter.check_once("user:42", "")


def test_a_limiter_is_ready_when_its_store_is(both: Both) -> None:
    limiter = both.make("5/s")
    assert limiter.ready() is None

    async def away() -> None:
        raise StoreUnavailable("away")

    def gone() -> None:
        raise StoreUnavailable("away")

    store: Any = AsyncMemoryStore(MemoryStore()) if both.kind is AsyncLimiter else MemoryStore()
    store.ready = away if both.kind is AsyncLimiter else gone
    with pytest.raises(StoreUnavailable, match="away"):
        both.make("5/s", store=store).ready()


@pytest.mark.parametrize("quotas", EVERY_ALGORITHM)
async def test_1000_tasks_in_one_gather_admit_exactly_the_limit(quotas: str, manual_clock: ManualClock) -> None:
    limiter = AsyncLimiter(quotas, clock=manual_clock)
    assert sum(map(bool, await asyncio.gather(*(limiter.check("one") for _ in range(1000))))) == 100


async def test_threads_and_tasks_share_a_store() -> None:
    store = MemoryStore()
    sync = Limiter("5/hour", store=store)
    assert (await AsyncLimiter("5/hour", store=store).check("one", 3)).remaining == 2
    assert sync.check("one", 2)
    assert not sync.check("one")
    assert Limiter("5/hour", store=store, name="other").check("one", 5)


def test_bad_quotas_stores_and_names_are_refused_when_the_limiter_is_made(
    both: Both, manual_clock: ManualClock
) -> None:
    example = '"100/minute"'
    for quotas, shown in (
        *(("", example), (b"5/s", example), (None, example), (5, example), ([5], example), ("many/s", "a count")),
        *(([], "at least one quota"), ("0/s", "a whole number from 1"), ("5/s; 6/s", "same algorithm and window")),
    ):
        with pytest.raises(InvalidQuota, match=shown):
            both.make(quotas)
    for store, shown in (
        *(("postgres://somewhere", '"memory"'), ("memory://host", '"memory"'), ("memory:?max_key=5", "'max_key'")),
        *(("memory:?max_keys=many", "whole number"), ("memory:?max_keys=0", "from 1")),
        (42, "a store must be an address"),
    ):
        with pytest.raises(InvalidStore, match=shown):
            both.make("5/s", store=store)
    with pytest.raises(InvalidStore, match="pass the clock to the store"):
        both.make("5/s", store=MemoryStore(), clock=manual_clock)
    for name in ("", "a|b", "x" * 65, "name with space", None, "ü"):
        with pytest.raises(InvalidKey, match="1 to 64"):
            both.make("5/s", name=name)


def test_a_store_of_the_other_colour_is_refused(manual_clock: ManualClock) -> None:
    """Or the answer would be a coroutine, which is always true."""
    store: Any = AsyncMemoryStore(MemoryStore(clock=manual_clock))
    with pytest.raises(InvalidStore, match="only with the other of Limiter and AsyncLimiter"):
        Limiter("5/s", store=store)
    assert AsyncLimiter("5/s", store=store)
    reference: Any = ReferenceStore(manual_clock)
    assert Limiter("5/s", store=reference).check("user", 0)
    with pytest.raises(InvalidStore, match="with the other"):
        AsyncLimiter("5/s", store=reference)


@pytest.mark.parametrize("verb", ["check", "check_once", "peek", "acquire", "refund"])
def test_every_verb_refuses_bad_costs_and_keys(both: Both, verb: str) -> None:
    limiter = both.make("5/s; 10/minute")
    ask: Callable[..., Any] = getattr(limiter, verb)
    if verb == "check_once":
        check_once = ask

        def ask(key: Any, cost: Any = 1) -> Any:
            return check_once(key, "retry", cost)

    for cost in (-1, 1.0, True, None, "1", math.nan, 100_001):
        with pytest.raises(InvalidCost):
            ask("user", cost)
    if verb == "refund":
        assert ask("user", 6).remaining == 5, "never more than was used, and never an error"
    else:
        with pytest.raises(CostTooLarge, match="capacity of 5/second, 5"):
            ask("user", 6)
    for key in ("", None, 5, b"user", ["user"], "\udcff", "x" * 65_537):
        with pytest.raises(InvalidKey):
            ask(key)
    if verb != "check":
        with pytest.raises(InvalidCost):
            ask("user", 0)


async def test_the_context_manager_closes_the_store() -> None:
    store = MemoryStore()
    with Limiter("5/hour", store=store) as limiter:
        limiter.check("user")
        assert len(store) == 1
    assert len(store) == 0
    async with AsyncLimiter("5/hour", store=store) as limiter:
        await limiter.check("user")
        assert len(store) == 1
    assert len(store) == 0


def test_repr_shows_the_quotas() -> None:
    assert repr(Limiter("10/s burst 20; 5000/day")) == "Limiter('10/second burst 20; 5000/day')"
    assert repr(AsyncLimiter([Quota.one_off(3), "5/15m gcra"])) == "AsyncLimiter('3 once; 5/15m gcra')"


def test_guard_lets_a_block_run_only_when_admitted(manual_clock: ManualClock) -> None:
    limiter = Limiter("1/minute", clock=manual_clock)
    with limiter.guard("reports") as decision:
        assert decision.remaining == 0
    with pytest.raises(LimitExceeded, match=r"limit 1/minute exceeded for 'reports': retry in 60 s") as caught:
        limiter.guard("reports").__enter__()
    assert caught.value.decision.retry_after == 60.0
    assert caught.value.key == "reports"


def test_guard_does_not_swallow_the_exceptions_of_its_block() -> None:
    with pytest.raises(KeyError), Limiter("1/minute").guard("reports"):
        raise KeyError("mine")


def test_guard_decorates_functions(manual_clock: ManualClock) -> None:
    limiter = Limiter("1/minute", clock=manual_clock)

    @limiter.guard(lambda user, **_: f"user:{user}")
    def handle(user: str, *, shout: bool = False) -> str:
        """Say hello."""
        return f"hello {user}".upper() if shout else f"hello {user}"

    assert handle("ann", shout=True) == "HELLO ANN"
    assert handle("bob") == "hello bob"
    with pytest.raises(LimitExceeded):
        handle("ann")
    assert (handle.__name__, handle.__doc__) == ("handle", "Say hello.")


async def test_guard_as_an_async_block_and_decorator(manual_clock: ManualClock) -> None:
    limiter = AsyncLimiter("1/minute", clock=manual_clock)
    async with limiter.guard("reports") as decision:
        assert decision.allowed
    with pytest.raises(LimitExceeded):
        await limiter.guard("reports").__aenter__()

    @limiter.guard("job")
    async def job() -> int:
        return 7

    assert await job() == 7
    with pytest.raises(LimitExceeded):
        await job()


def test_guard_refuses_the_wrong_colour_and_keys_without_arguments() -> None:
    async def coroutine() -> None: ...

    with pytest.raises(UsageError, match="AsyncLimiter"):
        Limiter("1/s").guard("a")(coroutine)
    with pytest.raises(UsageError, match="not a coroutine function"):
        AsyncLimiter("1/s").guard("a")(lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError, match="only for decorated functions"):
        Limiter("1/s").guard(lambda: "a").__enter__()


@pytest.fixture
def nowhere() -> str:
    return f"redis://127.0.0.1:{free_port()}/0?timeout=20"


def asked(limiter: Any, times: int) -> list[tuple[bool, str]]:
    async def results() -> list[Decision]:
        async with limiter:
            return [await limiter.check("ada") for _ in range(times)]

    if isinstance(limiter, AsyncLimiter):
        decisions = asyncio.run(results())
    else:
        with limiter:
            decisions = [limiter.check("ada") for _ in range(times)]
    return [(decision.allowed, decision.degraded) for decision in decisions]


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
class TestALimiterWhoseStoreIsAway:
    def test_decides_locally_by_default(self, kind: Any, nowhere: str, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING, "headgate.stores"):
            answers = asked(
                kind("6/hour", store=nowhere, nodes=1, clock=ManualClock()), 8
            )  # it is not time for a probe
        assert [allowed for allowed, _ in answers] == [True] * 6 + [False] * 2
        assert [reason for _, reason in answers] == ["storage_unavailable"] * 5 + ["circuit_open"] * 3
        assert "is unavailable" in caplog.text

    def test_decides_by_its_mode_and_its_share(self, kind: Any, nowhere: str) -> None:
        shares: list[tuple[dict[str, Any], int]]
        shares = [({"nodes": 3}, 2), ({"on_store_failure": "allow"}, 4), ({"on_store_failure": "deny"}, 0)]
        for options, admitted in shares:
            answers = asked(kind("6/hour", store=nowhere, **options), 4)
            assert [allowed for allowed, _ in answers] == [True] * admitted + [False] * (4 - admitted), options
            assert all(reason for _, reason in answers)

    def test_raises(self, kind: Any, nowhere: str) -> None:
        with pytest.raises(StoreError):
            asked(kind("2/hour", store=nowhere, on_store_failure="raise"), 1)

    def test_is_not_ready(self, kind: Any, nowhere: str) -> None:
        limiter = kind("2/hour", store=nowhere)
        with pytest.raises(StoreError, match="cannot connect"):
            asyncio.run(limiter.ready()) if kind is AsyncLimiter else limiter.ready()

    def test_bad_words_are_refused(self, kind: Any, nowhere: str) -> None:
        with pytest.raises(InvalidStore, match="local, allow, deny, raise"):
            kind("1/s", store=nowhere, on_store_failure="panic")
        with pytest.raises(InvalidStore, match="nodes"):
            kind("1/s", nodes=2)
        with pytest.raises(InvalidStore, match="nodes"):
            kind("1/s", store=nowhere, nodes=0)


def test_a_store_object_is_used_as_it_is_unless_a_mode_is_given() -> None:
    class Away(MemoryStore):
        def run(self, call: Call) -> Decision:
            raise StoreUnavailable(f"down for {call}")

    with pytest.raises(StoreUnavailable, match="down"):
        Limiter("2/s", store=Away()).peek("ada", 2)
    assert not Limiter("2/s", store=Away(), on_store_failure="deny").peek("ada", 2)


def test_a_limiter_on_a_server_is_strict(redis: RedisServer) -> None:
    limiter = Limiter("2/hour", store=redis.address)
    limiter.ready()
    assert asked(limiter, 3) == [(True, ""), (True, ""), (False, "")]
    assert asked(Limiter("2/hour", store=open_store(redis.address)), 1) == [(False, "")]
