"""Charges as text, with which another process refunds what a ruling took."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import AsyncEngine, Engine, MemoryStore, Request, load_rules
from headgate.engine import charges
from headgate.engine.charges import InvalidCharge, parse
from headgate.testing import ManualClock
from tests.servers import RedisServer, free_port

RULES = """
version: 1
rules:
  - {id: users, dimension: user, limit: 10, window: 1m, algorithm: fixed_window}
  - {id: addresses, dimension: ip, limit: 20, window: 1m}
  - {id: tried, dimension: user, limit: 15, window: 1h, shadow: true}
"""
REQUEST = Request({"user": "ada", "ip": "203.0.113.9"}, cost=4)


def remaining(engine: Engine, request: Request = REQUEST) -> list[int]:
    ruling = engine.peek(request)
    return [each.decision.remaining for each in (*ruling.limits, *ruling.shadow)]


def test_another_engine_refunds_a_charge(manual_clock: ManualClock) -> None:
    store = MemoryStore(clock=manual_clock)
    here, there = Engine(load_rules(RULES), store=store), Engine(load_rules(RULES), store=store)
    charge = here.charge_of(here.check(REQUEST))
    assert len(charge) == 140, "three limits"
    here.check(REQUEST)
    for _ in range(3):
        assert there.refund(REQUEST, charge).allowed
        assert remaining(here) == [6, 16, 11]


def test_only_what_still_counts_is_refunded(manual_clock: ManualClock) -> None:
    engine = Engine(load_rules(RULES), clock=manual_clock)
    charge = engine.charge_of(engine.check(REQUEST))
    manual_clock.advance(120)
    engine.check(REQUEST)
    engine.refund(REQUEST, charge)
    assert remaining(engine) == [6, 16, 11]


def test_a_charge_is_useless_with_another_request(manual_clock: ManualClock) -> None:
    engine = Engine(load_rules(RULES), clock=manual_clock)
    other = Request({"user": "bob", "ip": "203.0.113.9"}, cost=4)
    charge = engine.charge_of(engine.check(REQUEST))
    engine.check(other)
    engine.refund(other, charge)
    assert (remaining(engine), remaining(engine, other)) == ([6, 16, 11], [6, 16, 11]), "they share the address"


def test_rulings_that_took_nothing_have_no_charge(manual_clock: ManualClock) -> None:
    engine = Engine(load_rules(RULES), clock=manual_clock)
    engine.check(Request({"user": "ada"}, cost=10))
    assert engine.charge_of(engine.peek(REQUEST)) == ""
    assert engine.charge_of(engine.check(Request({"country": "de"}))) == ""
    refused = engine.check(Request({"user": "ada"}, cost=5))
    assert not refused
    assert engine.charge_of(refused) == "", "shadow rules of a refused request take nothing"


async def test_local_decisions_are_refunded_only_by_their_process(
    manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = f"redis://127.0.0.1:{free_port()}"
    async with AsyncEngine(load_rules(RULES), store=away, clock=manual_clock, nodes=1) as engine:

        async def left() -> list[int]:
            return [each.decision.remaining for each in (await engine.peek(REQUEST)).limits]

        ruling = await engine.check(REQUEST)
        assert ruling.degraded
        charge = await engine.charge_of(ruling)
        with monkeypatch.context() as patch:
            patch.setattr(charges, "_RANDOM", b"else")
            with pytest.raises(InvalidCharge):
                await engine.refund(REQUEST, charge)
        assert await left() == [6, 16]
        await engine.refund(REQUEST, charge)
        assert await left() == [10, 20]


def test_other_text_is_refused(manual_clock: ManualClock) -> None:
    engine = Engine(load_rules(RULES), clock=manual_clock)
    charge = engine.charge_of(engine.check(REQUEST))
    for wrong in ("x", charge[:-1], charge + "AAAA", f"{charge}=", f" {charge}", "ä" * 30, "A" * 10_000, "A" * 28):
        with pytest.raises(InvalidCharge, match="a charge must be the text from the response to a check, not"):
            engine.refund(REQUEST, wrong)
    assert remaining(engine) == [6, 16, 11]


@given(st.one_of(st.text(max_size=80), st.from_regex(r"AQ[A-Za-z0-9_-]{10,80}", fullmatch=True)))
def test_any_text_is_a_charge_or_refused(text: str) -> None:
    try:
        named = parse(text)
    except InvalidCharge:
        return
    assert 0 < named.cost <= 100_000
    assert named.taken


def test_a_charge_cannot_be_forged(manual_clock: ManualClock) -> None:
    """Not by changing a letter, nor by a service with another store."""
    engine, stranger = (Engine(load_rules(RULES), clock=manual_clock) for _ in range(2))
    ruling = engine.check(REQUEST)
    charge = engine.charge_of(ruling)
    forged = [
        charge[:place] + ("A" if letter != "A" else "B") + charge[place + 1 :] for place, letter in enumerate(charge)
    ]
    for wrong in (*forged, stranger.charge_of(stranger.check(REQUEST))):
        with pytest.raises(InvalidCharge):
            engine.refund(REQUEST, wrong)
    assert remaining(engine) == [6, 16, 11]
    engine.refund(ruling)
    engine.check(REQUEST)
    engine.refund(REQUEST, charge)
    assert remaining(engine) == [6, 16, 11], "refunded already"


def test_all_nodes_accept_each_others_charges(own_redis: RedisServer) -> None:
    with ExitStack() as stack:
        first, second, third = (
            stack.enter_context(Engine(load_rules(RULES), store=own_redis.address)) for _ in range(3)
        )
        ruling = first.check(REQUEST)
        assert second.charge_of(second.check(REQUEST))
        charge = first.charge_of(ruling)
        third.refund(REQUEST, charge)
        second.refund(REQUEST, charge)
        assert remaining(first) == [6, 16, 11]
        own_redis.ask("FLUSHALL")
        with Engine(load_rules(RULES), store=own_redis.address) as late:
            charge = late.charge_of(late.check(REQUEST))
            late.check(REQUEST)
            first.refund(REQUEST, charge)
        assert remaining(first) == [6, 16, 11], "by the new secret"


def test_a_new_node_accepts_many_charges_at_once(own_redis: RedisServer) -> None:
    async def refunded() -> list[bool]:
        here, there = [AsyncEngine(load_rules(RULES), store=own_redis.address) for _ in range(2)]
        try:
            requests = [Request({"user": f"user-{number}"}) for number in range(5)]
            rulings = [await here.check(request) for request in requests]
            charges = [await here.charge_of(ruling) for ruling in rulings]
            return list(map(bool, await asyncio.gather(*map(there.refund, requests, charges))))
        finally:
            await here.close()
            await there.close()

    assert all(asyncio.run(refunded()))
