"""A check that is made once for a token, however often it is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.algorithms import Algorithm
from headgate.core.key import bounded
from headgate.core.plan import Call, Charge, Family, Plan, Verb
from headgate.core.quota import Quota
from headgate.stores.redis.script import key_of, record_key
from headgate.testing import ManualClock
from headgate.testing.conformance import QUOTAS, family
from tests.servers import RedisServer
from tests.stores.redis.script import Script

START = ManualClock.START
SECOND = 1_000_000
RECORD = 300 * SECOND


def token(plan: Plan, text: str) -> bytes:
    """Return a token for one request to one set of limits."""
    name, _, _ = plan[0].space.partition("|")
    return blake2b(f"{name}|{text}".encode(), digest_size=16).digest()


@pytest.fixture(scope="module")
def script(server: RedisServer) -> Iterator[Script]:
    with Script(server) as script:
        yield script


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_asked_again_the_answer_is_the_same_and_nothing_is_taken(script: Script, quota: Quota) -> None:
    plan = family(quota).plan("user")
    asked = Call(Verb.CHECK_ONCE, plan, 2, token(plan, "a"))
    first = script.run(asked, START)
    script.check(plan, 1, START + 5)
    for later in (START + 5, START + SECOND, START + RECORD - 1):
        assert script.run(asked, later) == first
    assert first.taken_at_us == START
    assert script.peek(plan, START + 5).remaining == 2


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_decides_as_a_check_does(script: Script, quota: Quota) -> None:
    checked, once = family(quota).plan("user"), family(quota).plan("user")
    for turn, cost in enumerate((1, 3, 2, 1, 1)):
        now = START + turn * 90_001
        assert script.once(once, cost, now, token(once, f"{turn}")) == script.check(checked, cost, now)


def test_tokens_and_principals_are_apart(script: Script) -> None:
    limits = family(Quota(5, 60 * SECOND))
    user, other = limits.plan("user"), limits.plan("other")
    assert script.once(user, 2, START, token(user, "a")).remaining == 3
    assert script.once(user, 2, START, token(user, "b")).remaining == 1
    assert script.once(other, 2, START, token(user, "a")).remaining == 3


def test_after_five_minutes_it_is_asked_anew(script: Script) -> None:
    plan = family(Quota(5, 3600 * SECOND, algorithm=Algorithm.FIXED_WINDOW)).plan("user")
    assert script.once(plan, 2, START, token(plan, "a")).remaining == 3
    assert script.once(plan, 2, START + RECORD - 1, token(plan, "a")).remaining == 3
    assert script.once(plan, 2, START + RECORD, token(plan, "a")).remaining == 1
    assert script.once(plan, 2, START + 2 * RECORD - 1, token(plan, "a")).remaining == 1


def test_a_clock_that_falls_back_repeats_the_answer(script: Script) -> None:
    plan = family(Quota(5, 60 * SECOND)).plan("user")
    assert script.once(plan, 2, START, token(plan, "a")).remaining == 3
    assert script.once(plan, 2, START - 10 * SECOND, token(plan, "a")).remaining == 3


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_a_refusal_is_not_repeated_once_its_time_is_over(script: Script, quota: Quota) -> None:
    plan = family(quota).plan("user")
    script.check(plan, 5, START)
    refusal = script.once(plan, 2, START, token(plan, "a"))
    assert not refusal
    assert not script.once(plan, 2, START + refusal.retry_after_us - 1, token(plan, "a"))
    assert script.once(plan, 2, START + refusal.retry_after_us, token(plan, "a"))


def test_a_record_lives_for_five_minutes(script: Script, server: RedisServer) -> None:
    plan = family(*QUOTAS[:3]).plan("user")
    script.once(plan, 1, START, token(plan, "a"))
    record = record_key(Call(Verb.CHECK_ONCE, plan, token=token(plan, "a"))).decode()
    assert 290_000 < int(server.command("PTTL", record)) <= 300_000
    assert not script.once(plan, 5, START, token(plan, "b"))
    refused = record_key(Call(Verb.CHECK_ONCE, plan, token=token(plan, "b"))).decode()
    assert server.command("EXISTS", refused) == "0"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=140), st.binary(min_size=16, max_size=16))
def test_a_record_is_in_the_slot_of_its_plan_and_nowhere_else(principal: str, digest: bytes) -> None:
    plan = Family("name", [Quota(5, SECOND)]).plan(principal)
    call = Call(Verb.CHECK_ONCE, plan, token=digest)
    limit, record = key_of(plan[0].space, bounded(principal)), record_key(call)
    tag, _, _ = limit.partition(b"}")
    assert record == tag + b"}!" + digest.hex().encode()


@given(st.lists(st.tuples(st.sampled_from([Verb.CHECK_ONCE, Verb.CHECK, Verb.REFUND]), st.sampled_from("abc"))))
def test_many_in_one_call_are_answered_as_one_call_each(script: Script, asked: list[tuple[Verb, str]]) -> None:
    def calls() -> list[Call]:
        plan = family(Quota(5, SECOND), Quota(7, 60 * SECOND, algorithm=Algorithm.GCRA)).plan("user")
        return [
            Call(
                verb,
                plan,
                token=token(plan, text) if verb is Verb.CHECK_ONCE else b"",
                charge=Charge((START, START)) if verb is Verb.REFUND else None,
            )
            for verb, text in asked
        ]

    answers = script.run_all(calls(), START) if asked else []
    assert answers == [script.run(call, START) for call in calls()]


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_an_attempt_that_two_requests_go_by_is_undone_with_the_last(script: Script, quota: Quota) -> None:
    """Otherwise each copy of a request that another shard refuses would undo it once more, or a copy that passes."""
    plan = family(quota).plan("user")
    digest = token(plan, "a")
    first = script.attempt(plan, 2, START, digest)
    assert script.attempt(plan, 2, START, digest) == first, "a copy"
    assert script.undo(plan, 2, START, START, digest).remaining == 3
    assert script.attempt(plan, 2, START, digest) == first, "and a third one goes by it still"
    assert [script.undo(plan, 2, START, START, digest).remaining for _ in range(3)] == [3, 5, 5]


def test_so_many_requests_that_they_are_not_counted_keep_what_was_taken(script: Script) -> None:
    plan = family(Quota(5, 60 * SECOND)).plan("user")
    for _ in range(300):
        script.attempt(plan, 2, START, token(plan, "a"))
    for _ in range(300):
        assert script.undo(plan, 2, START, START, token(plan, "a")).remaining == 3


def test_an_attempt_is_undone_by_the_request_that_made_it(script: Script) -> None:
    plan = family(Quota(5, 60 * SECOND)).plan("user")
    script.attempt(plan, 1, START, token(plan, "a"))
    assert script.undo(plan, 1, START - 1, START, token(plan, "a")).remaining == 4, "another charge"
