"""Charges as text: what a ruling took is given back elsewhere, by the request and the text."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import AsyncEngine, Engine, MemoryStore, Request, load_rules
from headgate.engine import charges
from headgate.engine.charges import InvalidCharge, charge_of, parse
from headgate.testing import ManualClock
from tests.servers import free_port

RULES = """
version: 1
rules:
  - {id: users, dimension: user, limit: 10, window: 1m, algorithm: fixed_window}
  - {id: addresses, dimension: ip, limit: 20, window: 1m}
  - {id: tried, dimension: user, limit: 15, window: 1h, shadow: true}
"""
ASKED = Request({"user": "ada", "ip": "203.0.113.9"}, cost=4)


def remaining(engine: Engine, request: Request = ASKED) -> list[int]:
    ruling = engine.peek(request)
    return [each.decision.remaining for each in (*ruling.limits, *ruling.shadow)]


def test_a_charge_is_given_back_elsewhere(manual_clock: ManualClock) -> None:
    store = MemoryStore(clock=manual_clock)
    here, there = Engine(load_rules(RULES), store=store), Engine(load_rules(RULES), store=store)
    charge = charge_of(here.check(ASKED))
    assert len(charge) == 60, "three limits"
    here.check(ASKED)
    assert there.refund(ASKED, charge).allowed
    assert remaining(here) == [6, 16, 11]


def test_only_what_still_counts_is_given_back(manual_clock: ManualClock) -> None:
    engine = Engine(load_rules(RULES), clock=manual_clock)
    charge = charge_of(engine.check(ASKED))
    manual_clock.advance(120)
    engine.check(ASKED)
    engine.refund(ASKED, charge)
    assert remaining(engine) == [6, 16, 11]


def test_a_charge_is_of_no_use_with_another_request(manual_clock: ManualClock) -> None:
    engine = Engine(load_rules(RULES), clock=manual_clock)
    other = Request({"user": "bob", "ip": "203.0.113.9"}, cost=4)
    charge = charge_of(engine.check(ASKED))
    engine.check(other)
    engine.refund(other, charge)
    assert (remaining(engine), remaining(engine, other)) == ([6, 16, 11], [6, 16, 11]), "they share the address"


def test_what_took_nothing_has_no_charge(manual_clock: ManualClock) -> None:
    engine = Engine(load_rules(RULES), clock=manual_clock)
    engine.check(Request({"user": "ada"}, cost=10))
    assert charge_of(engine.peek(ASKED)) == ""
    assert charge_of(engine.check(Request({"country": "de"}))) == ""
    refused = engine.check(Request({"user": "ada"}, cost=5))
    assert not refused
    assert charge_of(refused) == "", "a shadow rule is only asked where the request does not pass"


def test_what_one_process_decided_alone_is_not_given_back_by_another(
    manual_clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        away = f"redis://127.0.0.1:{free_port()}"
        async with AsyncEngine(load_rules(RULES), store=away, clock=manual_clock) as engine:

            async def left() -> list[int]:
                return [each.decision.remaining for each in (await engine.peek(ASKED)).limits]

            ruling = await engine.check(ASKED)
            assert ruling.degraded
            charge = charge_of(ruling)
            with monkeypatch.context() as patch:
                patch.setattr(charges, "_RANDOM", b"else")
                await engine.refund(ASKED, charge)
            assert await left() == [6, 16]
            await engine.refund(ASKED, charge)
            assert await left() == [10, 20]

    asyncio.run(main())


def test_what_is_not_a_charge_is_refused_before_anything_is_done(manual_clock: ManualClock) -> None:
    engine = Engine(load_rules(RULES), clock=manual_clock)
    charge = charge_of(engine.check(ASKED))
    for wrong in ("x", charge[:-1], charge + "AAAA", f"{charge}=", f" {charge}", "ä" * 30, "A" * 10_000, "A" * 28):
        with pytest.raises(InvalidCharge, match="a charge is the text that came with the answer to a check, not"):
            engine.refund(ASKED, wrong)
    assert remaining(engine) == [6, 16, 11]


@given(st.one_of(st.text(max_size=80), st.from_regex(r"AQ[A-Za-z0-9_-]{10,80}", fullmatch=True)))
def test_any_text_is_a_charge_or_refused(text: str) -> None:
    try:
        named = parse(text)
    except InvalidCharge:
        return
    assert 0 < named.cost <= 100_000
    assert named.taken


@given(st.integers(1, 100_000), st.dictionaries(st.integers(0, 2**32 - 1), st.integers(0, 2**53 - 1), min_size=1))
def test_made_up_charges_never_break_an_engine(cost: int, taken: dict[int, int]) -> None:
    engine = Engine(load_rules(RULES), clock=ManualClock())
    ruling = engine.check(ASKED)
    own = parse(charge_of(ruling)).taken
    forged = dict(zip(own, taken.values(), strict=False)) | taken
    text = charges._encoded(
        b"".join([charges._HEAD.pack(1, 0, cost), *[charges._TAKEN.pack(*each) for each in forged.items()]])
    )
    assert engine.refund(ASKED, text).allowed
    assert all(left <= most for left, most in zip(remaining(engine), (10, 20, 15), strict=True))
