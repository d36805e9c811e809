"""The script and its encoding: keys, many plans in one call, the server's time, times to live, tokens, calendars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from headgate import Calendar, Decision, OutcomeUnknown, Quota, open_store
from headgate.core.calendar import DAY_US
from headgate.core.key import Principal, bounded, once_token
from headgate.core.plan import Call, Charge, Family, Plan, Verb
from headgate.stores.base import Store
from headgate.stores.redis import script as scripts
from headgate.stores.redis.script import key_of, record_key
from headgate.testing import ManualClock
from headgate.testing.conformance import CALENDARS, QUOTAS, family
from tests.servers import RedisServer
from tests.stores.redis.script import ADDRESS, Script

START, SECOND, HOUR = ManualClock.START, 1_000_000, 3_600_000_000
DAYS = Calendar("day", "Europe/Berlin")
MARGIN_MS = 1001
"""A second, and the rounding of the server."""
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


_KINDS = st.sampled_from(["check", "check", "peek", "refund", "reset", "check_once", "charge"])
_ASKED = st.tuples(_KINDS, st.sampled_from("abc"), st.integers(1, 5), st.sampled_from([0, 1, 2]))


@given(picks=st.lists(st.sampled_from(QUOTAS), min_size=3, max_size=3), asked=st.lists(_ASKED, min_size=1, max_size=40))
def test_one_call_for_many_plans_answers_as_one_call_each(
    server: RedisServer, picks: list[Quota], asked: list[tuple[str, str, int, int]]
) -> None:
    now = START

    def calls() -> list[Call]:
        families, made = [family(pick) for pick in picks], []
        for kind, key, cost, which in asked:
            plan = families[which].plan(key)
            if kind == "check_once":
                made.append(Call(Verb.CHECK_ONCE, plan, cost, once_token(plan, cost, key)))
            elif kind == "charge":
                made.append(Call(Verb.REFUND, plan, cost, charge=Charge((now,))))
            else:
                made.append(Call(Verb(kind), plan, cost))
        return made

    with Script(server) as script:
        answers = script.run_all(calls(), now)
        assert answers == [script.run(call, now) for call in calls()]
    assert len(answers) == len(asked)


def test_an_answer_begins_with_the_time_of_the_decision(server: RedisServer) -> None:
    asked = Call(Verb.CHECK, family(*QUOTAS[:2]).plan("user"))
    with Script(server) as script:
        assert script.run(asked, START).taken_at_us == START
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


def test_equal_calls_are_encoded_equally() -> None:
    for cost in range(1, 6):  # quotas come and go, and their addresses are used again
        for quota in QUOTAS:
            made = [scripts.query(Call(Verb.CHECK, Family("name", [replace(quota)]).plan("user"), cost)) for _ in "ab"]
            assert made[0].arguments == made[1].arguments
    arguments = {scripts.query(Call(Verb.CHECK, Family("name", [quota]).plan("user"))).arguments for quota in QUOTAS}
    assert len(arguments) == len(QUOTAS)


@pytest.fixture
def store(server: RedisServer) -> Iterator[Store]:
    store = open_store(server.address)
    yield store
    store.close()


def key(plan: Plan) -> bytes:
    (limit,) = plan
    return key_of(limit.space, limit.principal)


@pytest.mark.parametrize("quota", LONG, ids=str)
def test_time_is_the_servers_by_default(server: RedisServer, store: Store, quota: Quota) -> None:
    """An answer at the server's time equals that at the same given time, up to the time that passed."""
    before = server_time(server)
    real = store.run(Call(Verb.CHECK, family(quota).plan("user"), 3))
    after = server_time(server)
    clock = ManualClock(before)
    manual = open_store(server.address, clock=clock)
    early = manual.run(Call(Verb.CHECK, family(quota).plan("user"), 3))
    clock.set(after)
    late = manual.run(Call(Verb.CHECK, family(quota).plan("user"), 3))
    manual.close()
    assert real.remaining == early.remaining == late.remaining == 2
    passed = after - before
    assert min(early.reset_after_us, late.reset_after_us) - passed <= real.reset_after_us
    assert real.reset_after_us <= max(early.reset_after_us, late.reset_after_us) + passed


@pytest.mark.parametrize("quota", LONG, ids=str)
def test_a_key_lives_as_long_as_its_state_means_something(server: RedisServer, store: Store, quota: Quota) -> None:
    plan = family(quota).plan("user")
    for cost in (1, 3, 1, 1):
        decision = store.run(Call(Verb.CHECK, plan, cost))
        ttl = server.ask("PTTL", key(plan))
        assert 0 < ttl <= -(-decision.reset_after_us // 1000) + MARGIN_MS
    assert not decision
    store.run(Call(Verb.REFUND, plan, 2))
    assert 0 < server.ask("PTTL", key(plan)) <= ttl + 1, "which was rounded"
    store.run(Call(Verb.REFUND, plan, 5))
    assert server.ask("PTTL", key(plan)) <= MARGIN_MS, "nothing is used any more"


@pytest.mark.parametrize("verb", [Verb.CHECK, Verb.PEEK])
def test_a_key_lives_until_the_retry_of_a_refusal_under_longer_refill_steps(
    server: RedisServer, store: Store, verb: Verb
) -> None:
    quota = Quota(1, 60_000_000)
    plan = Family(verb.value, [quota]).plan("user")
    assert store.run(Call(Verb.CHECK, plan))
    longer = Family(verb.value, [replace(quota, refill_every_us=3_600_000_000)])
    refusal = store.run(Call(verb, longer.plan("user")))
    assert refusal.retry_after_us > 3_500_000_000
    assert server.ask("PTTL", key(plan)) > 3_500_000


@pytest.mark.parametrize("verb", ["check", "denied check", "peek"])
@pytest.mark.parametrize("quota", LONG, ids=str)
def test_a_key_found_without_time_to_live_gets_one(server: RedisServer, store: Store, quota: Quota, verb: str) -> None:
    plan = family(quota).plan("user")
    store.run(Call(Verb.CHECK, plan, 4))
    assert server.ask("PERSIST", key(plan)) == 1
    decision = (
        store.run(Call(Verb.PEEK, plan))
        if verb == "peek"
        else store.run(Call(Verb.CHECK, plan, 1 if verb == "check" else 3))
    )
    assert decision.allowed == (verb != "denied check")
    assert 0 < server.ask("PTTL", key(plan)) <= -(-decision.reset_after_us // 1000) + MARGIN_MS


@pytest.mark.parametrize("quota", LONG, ids=str)
def test_a_refused_check_and_a_peek_of_the_unknown_store_nothing(
    server: RedisServer, store: Store, quota: Quota
) -> None:
    strict, wide = Family("none", [quota]), Quota(1, quota.window_us * 7)
    plan = Family(f"fresh-{quota.shape}", [wide, quota]).plan("user")
    store.run(Call(Verb.PEEK, plan))
    store.run(Call(Verb.REFUND, strict.plan("nobody")))
    keys = [key_of(limit.space, limit.principal) for limit in plan]
    assert server.ask("EXISTS", *keys, key(strict.plan("nobody"))) == 0
    assert not store.run(Call(Verb.CHECK, plan, 2)), "above what the wide limit has"
    assert server.ask("EXISTS", *keys) == 0


def server_time(server: RedisServer) -> int:
    seconds, us = server.ask("TIME")
    return int(seconds) * 1_000_000 + int(us)


class TestShadowPlans:
    def test_go_with_their_call_in_one_call_of_the_script(self, server: RedisServer) -> None:
        """And what one call tries out does not depend on how another in the same batch went."""
        small, wide, tried = (family(Quota(limit, 3_600_000_000)).plan("user") for limit in (1, 9, 9))
        calls = [Call(Verb.CHECK, plan, shadow=(tried, wide)) for plan in (small, small, wide)]
        with Script(server) as script:
            answers = script.run_all(calls, START)
        assert all(isinstance(answer, Decision) for answer in answers)
        found = [(answer.allowed, *[each.taken for each in answer.shadow]) for answer in answers]  # type: ignore[union-attr]
        assert found == [(True, 1, 1), (False, 0, 0), (True, 1, 1)]

    def test_one_with_something_else_under_its_key_does_not_lose_the_decision(self, server: RedisServer) -> None:
        plan, tried = family(QUOTAS[0]).plan("user"), family(QUOTAS[0]).plan("user")
        server.ask("LPUSH", key_of(tried[0].space, tried[0].principal), "alien")
        with Script(server) as script:
            answer = script.run(Call(Verb.CHECK, plan, shadow=(tried,)), START)
        server.ask("DEL", key_of(tried[0].space, tried[0].principal))
        assert (answer.allowed, answer.taken, answer.degraded) == (True, 1, "")
        assert [each.degraded for each in answer.shadow] == [scripts.UNANSWERED]


def token_of(plan: Plan, text: str) -> bytes:
    name, _, _ = plan[0].space.partition("|")
    return blake2b(f"{name}|{text}".encode(), digest_size=16).digest()


def test_a_record_lives_for_five_minutes(script: Script, server: RedisServer) -> None:
    plan = family(*QUOTAS[:3]).plan("user")
    script.once(plan, 1, START, token_of(plan, "a"))
    record = record_key(Call(Verb.CHECK_ONCE, plan, token=token_of(plan, "a")))
    assert 290_000 < server.ask("PTTL", record) <= 300_000
    assert not script.once(plan, 5, START, token_of(plan, "b"))
    refused = record_key(Call(Verb.CHECK_ONCE, plan, token=token_of(plan, "b")))
    assert server.ask("EXISTS", refused) == 0


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=140), st.binary(min_size=16, max_size=16))
def test_a_record_is_in_the_slot_of_its_plan_and_nowhere_else(principal: str, digest: bytes) -> None:
    plan = Family("name", [Quota(5, SECOND)]).plan(principal)
    call = Call(Verb.CHECK_ONCE, plan, token=digest)
    limit, record = key_of(plan[0].space, bounded(principal)), record_key(call)
    tag, _, _ = limit.partition(b"}")
    assert record == tag + b"}!" + digest.hex().encode()


@pytest.mark.parametrize("quota", QUOTAS, ids=str)
def test_an_attempt_that_two_requests_go_by_is_undone_with_the_last(script: Script, quota: Quota) -> None:
    """Otherwise each copy of a request that another shard refuses would undo it once more, or a copy that passes."""
    plan = family(quota).plan("user")
    digest = token_of(plan, "a")
    first = script.attempt(plan, 2, START, digest)
    assert script.attempt(plan, 2, START, digest) == first, "a copy"
    assert script.undo(plan, 2, START, START, digest).remaining == 3
    assert script.attempt(plan, 2, START, digest) == first, "and a third one goes by it still"
    assert [script.undo(plan, 2, START, START, digest).remaining for _ in range(3)] == [3, 5, 5]


def test_above_the_most_requests_counted_the_cost_stays_taken(script: Script) -> None:
    plan = family(Quota(5, 60 * SECOND)).plan("user")
    for _ in range(300):
        script.attempt(plan, 2, START, token_of(plan, "a"))
    for _ in range(300):
        assert script.undo(plan, 2, START, START, token_of(plan, "a")).remaining == 3


def test_an_attempt_is_undone_by_the_request_that_made_it(script: Script) -> None:
    plan = family(Quota(5, 60 * SECOND)).plan("user")
    script.attempt(plan, 1, START, token_of(plan, "a"))
    assert script.undo(plan, 1, START - 1, START, token_of(plan, "a")).remaining == 4, "another charge"


def checked_at(script: Script, now: int, thought: int, plan: Plan) -> Decision:
    """Return the answer to a check of a server whose time is `now` by a process that thinks it is `thought`."""
    asked = scripts.query(Call(Verb.CHECK, plan))
    assert not asked.arguments
    dated = structs.replace(asked, arguments=scripts.arguments_at(asked.call, asked.letter, thought))
    (answer,) = scripts.decisions(script.converse(scripts.evaluation([dated], now)), [dated], ADDRESS)
    assert isinstance(answer, Decision)
    return answer


class TestClocksThatDiffer:
    """The server's time counts. By less than a period, the process's clock may be wrong."""

    @given(
        st.sampled_from(["day", "week", "month", "year"]),
        st.sampled_from(["Europe/Berlin", "Australia/Lord_Howe", "America/Sao_Paulo", "UTC"]),
        st.integers(1_000_000_000, 2_500_000_000),
        st.integers(-20 * HOUR, 20 * HOUR),
    )
    def test_the_end_is_that_of_the_period_at_the_servers_time(
        self, server: RedisServer, unit: str, zone: str, seconds: int, wrong: int
    ) -> None:
        calendar, now = Calendar(unit, zone), seconds * 1_000_000
        plan = family(Quota.per(5, calendar)).plan("user")
        with Script(server) as script:
            answer = checked_at(script, now, now + wrong, plan)
        assert (answer.allowed, answer.remaining, now + answer.reset_after_us) == (True, 4, calendar.bounds(now)[1])

    @pytest.mark.parametrize("wrong", [-1000 * DAY_US, -3 * DAY_US, 3 * DAY_US, 1000 * DAY_US])
    def test_further_apart_no_window_is_longer_than_a_window(self, script: Script, wrong: int) -> None:
        plan = family(Quota.per(2, DAYS)).plan("user")
        found = [checked_at(script, START, START + wrong, plan) for _ in range(3)]
        assert [answer.allowed for answer in found] == [True, True, False]
        assert 0 < found[2].retry_after_us <= DAY_US


class TestTheArgument:
    def test_is_the_same_within_a_period_and_another_in_the_next(self) -> None:
        call = Call(Verb.CHECK, family(QUOTAS[0], *CALENDARS).plan("user"))
        start, end = DAYS.bounds(START)
        arguments = [scripts.arguments_at(call, b"c", now) for now in (start - 1, start, START, end - 1, end)]
        assert arguments[1] == arguments[2] == arguments[3]
        assert len(set(arguments)) == 3

    def test_follows_this_process_where_the_time_is_the_servers(self, script: Script) -> None:
        plan = family(Quota.per(5, DAYS)).plan("user")
        answer = script.run(Call(Verb.CHECK, plan), None)
        at = answer.taken_at_us
        assert (answer.allowed, answer.remaining, at + answer.reset_after_us) == (True, 4, DAYS.bounds(at)[1])
