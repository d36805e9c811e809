"""The script and its encoding: keys, many plans in one call, the server's time and the time to live of keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.decision import Decision
from headgate.core.errors import OutcomeUnknown
from headgate.core.key import Principal, bounded
from headgate.core.plan import Call, Family, Plan, Verb
from headgate.core.quota import Quota
from headgate.stores import open_store
from headgate.stores.base import Store
from headgate.stores.redis import script as scripts
from headgate.stores.redis.script import key_of
from headgate.testing import ManualClock
from headgate.testing.conformance import QUOTAS, family
from tests.servers import RedisServer
from tests.stores.redis.script import ADDRESS, Script

MARGIN_MS = 1000
LONG = [replace(quota, window_us=quota.window_us * 30 * 86_400) for quota in QUOTAS]
"""One of each kind, whose window does not end during a test."""

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=140)
_PRINCIPALS = _TEXT | st.text("{}%=#7BD", min_size=1)
_SPACES = st.sampled_from(["a|tb:1", "a|tb:11", "b|tb:1", "a|gcra:1", "a:b|fw:1"])


def hash_tag(key: bytes) -> bytes:
    """Return what a cluster hashes: what is between the first { and the next }, if that is something."""
    _, opened, rest = key.partition(b"{")
    tag, closed, _ = rest.partition(b"}")
    return tag if opened and closed and tag else key


@given(_PRINCIPALS, _PRINCIPALS, _SPACES, _SPACES)
def test_keys_are_equal_only_where_limit_and_principal_are(one: str, other: str, here: str, there: str) -> None:
    first: tuple[str, Principal] = (here, bounded(one))
    second: tuple[str, Principal] = (there, bounded(other))
    assert (key_of(*first) == key_of(*second)) == (first == second)


@given(_PRINCIPALS, _PRINCIPALS, _SPACES, _SPACES)
def test_the_hash_tag_is_the_principal_whatever_it_is(one: str, other: str, here: str, there: str) -> None:
    tags = {hash_tag(key_of(space, bounded(one))) for space in (here, there)}
    assert len(tags) == 1
    assert (hash_tag(key_of(here, bounded(other))) in tags) == (bounded(one) == bounded(other))
    assert key_of(here, bounded(one)).startswith(b"hg1:{" + tags.pop() + b"}")


def test_a_principal_cannot_imitate_a_digest() -> None:
    digest = bounded("x" * 200)
    assert isinstance(digest, bytes)
    principals: list[Principal] = [digest, digest.hex(), f"#{digest.hex()}", f"={digest.hex()}"]
    assert len({key_of("a|tb:1", each) for each in principals}) == 4


_VERBS = st.sampled_from([Verb.CHECK, Verb.CHECK, Verb.PEEK, Verb.REFUND, Verb.RESET])
_ASKED = st.tuples(_VERBS, st.sampled_from("abc"), st.integers(1, 5), st.sampled_from([0, 1, 2]))


@given(picks=st.lists(st.sampled_from(QUOTAS), min_size=3, max_size=3), asked=st.lists(_ASKED, min_size=1, max_size=40))
def test_one_call_for_many_plans_answers_as_one_call_each(
    server: RedisServer, picks: list[Quota], asked: list[tuple[Verb, str, int, int]]
) -> None:
    def calls() -> list[Call]:
        families = [family(pick) for pick in picks]
        return [Call(verb, families[which].plan(key), cost) for verb, key, cost, which in asked]

    now = ManualClock.START
    with Script(server) as script:
        answers = script.run_all(calls(), now)
        assert answers == [script.run(call, now) for call in calls()]
    assert len(answers) == len(asked)


def test_an_answer_begins_with_the_time_of_the_decision(server: RedisServer) -> None:
    asked = Call(Verb.CHECK, family(*QUOTAS[:2]).plan("user"))
    with Script(server) as script:
        assert script.run(asked, ManualClock.START).taken_at_us == ManualClock.START
        before = server_time(server)
        assert before <= script.run(asked, None).taken_at_us <= server_time(server)


@pytest.mark.parametrize("reply", [None, 7, [], "text", b"", b"7 bytes", bytes(55), bytes(57), bytes(112), [bytes(56)]])
def test_a_reply_of_another_shape_is_not_an_answer(reply: object) -> None:
    asked = [scripts.query(Call(Verb.CHECK, family(QUOTAS[0]).plan("user")))]
    with pytest.raises(OutcomeUnknown):
        scripts.decisions(reply, asked, ADDRESS)
    with pytest.raises(OutcomeUnknown):
        scripts.decisions(reply, [*asked, *asked, *asked], ADDRESS)
    assert len(scripts.decisions(bytes(56), asked, ADDRESS)) == 1


def test_equal_questions_are_encoded_equally_whoever_made_the_quota() -> None:
    for cost in range(1, 6):  # quotas come and go, and their addresses are used again
        for quota in QUOTAS:
            made = [scripts.query(Call(Verb.CHECK, Family("name", [replace(quota)]).plan("user"), cost)) for _ in "ab"]
            assert made[0].arguments == made[1].arguments
    arguments = {scripts.query(Call(Verb.CHECK, Family("name", [quota]).plan("user"))).arguments for quota in QUOTAS}
    assert len(arguments) == len(QUOTAS)


def test_what_is_remembered_of_questions_is_bounded() -> None:
    plan = Family("name", QUOTAS[:1]).plan("user")
    for cost in range(1, 10_000):
        scripts.query(Call(Verb.CHECK, plan, cost))
    assert len(scripts._prepared) <= scripts._MOST_PREPARED


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    store = open_store(server.address)
    yield store
    store.close()


def key(plan: Plan) -> str:
    (limit,) = plan
    return key_of(limit.space, limit.principal).decode()


@pytest.mark.parametrize("quota", LONG, ids=str)
def test_time_is_the_servers_unless_told(server: RedisServer, store: Store, quota: Quota) -> None:
    """An answer at the server's time is, up to the time that passed, that of a call told the server's time."""
    before = server_time(server)
    real = store.run(Call(Verb.CHECK, family(quota).plan("user"), 3))
    after = server_time(server)
    clock = ManualClock(before)
    told = open_store(server.address, clock=clock)
    early = told.run(Call(Verb.CHECK, family(quota).plan("user"), 3))
    clock.set(after)
    late = told.run(Call(Verb.CHECK, family(quota).plan("user"), 3))
    told.close()
    assert real.remaining == early.remaining == late.remaining == 2
    passed = after - before
    assert min(early.reset_after_us, late.reset_after_us) - passed <= real.reset_after_us
    assert real.reset_after_us <= max(early.reset_after_us, late.reset_after_us) + passed


@pytest.mark.parametrize("quota", LONG, ids=str)
def test_a_key_lives_as_long_as_its_state_means_something(server: RedisServer, store: Store, quota: Quota) -> None:
    plan = family(quota).plan("user")
    for cost in (1, 3, 1, 1):
        decision = store.run(Call(Verb.CHECK, plan, cost))
        ttl = int(server.command("PTTL", key(plan)))
        assert 0 < ttl <= -(-decision.reset_after_us // 1000) + MARGIN_MS
    assert not decision
    store.run(Call(Verb.REFUND, plan, 2))
    assert 0 < int(server.command("PTTL", key(plan))) <= ttl
    store.run(Call(Verb.REFUND, plan, 5))
    assert int(server.command("PTTL", key(plan))) <= MARGIN_MS, "nothing is used any more"


@pytest.mark.parametrize("verb", [Verb.CHECK, Verb.PEEK])
def test_a_key_lives_as_long_as_a_refusal_under_longer_refill_steps_says(
    server: RedisServer, store: Store, verb: Verb
) -> None:
    quota = Quota(1, 60_000_000)
    plan = Family(verb.value, [quota]).plan("user")
    assert store.run(Call(Verb.CHECK, plan))
    longer = Family(verb.value, [replace(quota, refill_every_us=3_600_000_000)])
    refusal = store.run(Call(verb, longer.plan("user")))
    assert refusal.retry_after_us > 3_500_000_000
    assert int(server.command("PTTL", key(plan))) > 3_500_000


@pytest.mark.parametrize("verb", ["check", "denied check", "peek"])
@pytest.mark.parametrize("quota", LONG, ids=str)
def test_a_key_found_without_time_to_live_gets_one(server: RedisServer, store: Store, quota: Quota, verb: str) -> None:
    plan = family(quota).plan("user")
    store.run(Call(Verb.CHECK, plan, 4))
    assert server.command("PERSIST", key(plan)) == "1"
    decision = (
        store.run(Call(Verb.PEEK, plan))
        if verb == "peek"
        else store.run(Call(Verb.CHECK, plan, 1 if verb == "check" else 3))
    )
    assert decision.allowed == (verb != "denied check")
    assert 0 < int(server.command("PTTL", key(plan))) <= -(-decision.reset_after_us // 1000) + MARGIN_MS


@pytest.mark.parametrize("quota", LONG, ids=str)
def test_a_refused_check_and_a_peek_of_the_unknown_store_nothing(
    server: RedisServer, store: Store, quota: Quota
) -> None:
    strict, wide = Family("none", [quota]), Quota(1, quota.window_us * 7)
    plan = Family(f"fresh-{quota.shape}", [wide, quota]).plan("user")
    store.run(Call(Verb.PEEK, plan))
    store.run(Call(Verb.REFUND, strict.plan("nobody")))
    keys = [key_of(limit.space, limit.principal).decode() for limit in plan]
    assert server.command("EXISTS", *keys, key(strict.plan("nobody"))) == "0"
    assert not store.run(Call(Verb.CHECK, plan, 2)), "above what the wide limit has"
    assert server.command("EXISTS", *keys) == "0"


def server_time(server: RedisServer) -> int:
    seconds, us = server.command("TIME").split()
    return int(seconds) * 1_000_000 + int(us)


class TestShadowPlans:
    def test_go_with_their_call_in_one_call_of_the_script(self, server: RedisServer) -> None:
        """And what one call tries out does not depend on how another in the same batch went."""
        small, wide, tried = (family(Quota(limit, 3_600_000_000)).plan("user") for limit in (1, 9, 9))
        calls = [Call(Verb.CHECK, plan, shadow=(tried, wide)) for plan in (small, small, wide)]
        with Script(server) as script:
            answers = script.run_all(calls, ManualClock.START)
        assert all(isinstance(answer, Decision) for answer in answers)
        found = [(answer.allowed, *[each.taken for each in answer.shadow]) for answer in answers]  # type: ignore[union-attr]
        assert found == [(True, 1, 1), (False, 0, 0), (True, 1, 1)]

    def test_one_with_something_else_under_its_key_does_not_lose_the_decision(self, server: RedisServer) -> None:
        plan, tried = family(QUOTAS[0]).plan("user"), family(QUOTAS[0]).plan("user")
        server.command("LPUSH", key_of(tried[0].space, tried[0].principal).decode(), "alien")
        with Script(server) as script:
            answer = script.run(Call(Verb.CHECK, plan, shadow=(tried,)), ManualClock.START)
        server.command("DEL", key_of(tried[0].space, tried[0].principal).decode())
        assert (answer.allowed, answer.taken, answer.degraded) == (True, 1, "")
        assert [each.degraded for each in answer.shadow] == [scripts.UNANSWERED]
