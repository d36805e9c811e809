"""Somebody else's key where ours should be: only who asks about it is told, and nobody else is charged in vain."""

from __future__ import annotations

import asyncio

import pytest

from headgate import OutcomeUnknown
from headgate.core.plan import Call, Verb
from headgate.core.quota import Quota
from headgate.stores import open_async_store
from headgate.stores.redis.script import key_of
from headgate.testing.conformance import family
from tests.servers import RedisServer

QUOTA = Quota(10, 3600 * 1_000_000)


@pytest.mark.parametrize("alien", [("LPUSH", "x"), ("SET", "short")], ids=["type", "content"])
def test_a_key_with_something_else_in_it_fails_alone(server: RedisServer, alien: tuple[str, str]) -> None:
    limits = family(QUOTA)
    bad = limits.plan("bad")
    server.ask(alien[0], key_of(bad[0].space, bad[0].principal), alien[1])
    server.ask("PEXPIRE", key_of(bad[0].space, bad[0].principal), 3_600_000)

    async def run() -> list[object]:
        store = open_async_store(server.address)
        try:
            await store.ready()
            plans = [bad, *(limits.plan(f"good-{number}") for number in range(63))]
            return list(
                await asyncio.gather(*[store.run(Call(Verb.CHECK, plan)) for plan in plans], return_exceptions=True)
            )
        finally:
            await store.close()

    told, *others = asyncio.run(run())
    assert isinstance(told, OutcomeUnknown)
    assert [getattr(other, "remaining", other) for other in others] == [9] * 63
