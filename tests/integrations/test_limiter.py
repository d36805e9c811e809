"""What all integrations have in common: how a request is checked, and which mistakes raise errors."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from headgate import (
    AddressReader,
    AsyncEngine,
    CostTooLarge,
    Decision,
    Engine,
    InvalidKey,
    InvalidQuota,
    MemoryStore,
    Quota,
    Request,
    ResponseHeaders,
    UnknownRule,
    UsageError,
    load_rules,
)
from headgate.core.errors import InvalidCost
from headgate.core.plan import Family
from headgate.integrations import Budget, Refusal
from headgate.integrations.exchange import Exchange, ResponseStart
from headgate.integrations.limiter import AsyncRequestLimiter, LimiterBase, LimiterSettings, RequestLimiter
from headgate.integrations.routes import budget_name
from headgate.stores.base import Check
from headgate.testing import ManualClock
from headgate.web import ApiKeys, Holder, Identifier, digest
from headgate.web.errors import InvalidSettings

RULES = """
version: 1
rules:
  - {id: per-user, limit: 2, window: 1m, dimension: user}
  - {id: logins, limit: 1, window: 1m, dimension: ip, endpoint: /login}
deny: [{ip: 198.51.100.0/24}]
"""


def limiter(**settings: Any) -> RequestLimiter:
    settings.setdefault("clock", ManualClock())
    as_given: Any = settings
    return RequestLimiter(as_given)


def exchange(found: LimiterBase, peer: str = "203.0.113.9", path: str = "/", **headers: str) -> Exchange:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Exchange(found, {"peer": peer, **headers}, peer, lines, path, "GET")


def entered(found: RequestLimiter, *budgets: Budget, route: str = "route", **request: Any) -> Refusal | None:
    return found.check(exchange(found, **request), budgets or found.budgets, route)


def passed(found: RequestLimiter, times: int, *budgets: Budget, **request: Any) -> int:
    return sum(entered(found, *budgets, **request) is None for _ in range(times))


def remaining(seen: Exchange) -> list[str]:
    return [item.partition(";r=")[2].partition(";")[0] for item in dict(seen.fields())["RateLimit"].split(", ")]


def test_each_client_has_the_limits_of_all_routes() -> None:
    found = limiter(limits="3/minute; 100/day")
    assert passed(found, 5) == 3
    assert passed(found, 5, peer="203.0.113.10") == 3


def test_a_refusal_says_what_and_until_when() -> None:
    found = limiter(limits="1/minute")
    entered(found)
    refusal = entered(found)
    assert refusal is not None
    assert (refusal.status, refusal.retry_after) == (429, 60)
    assert refusal.detail == "default allows 1/minute. Retry in 60 s."
    assert dict(refusal.fields)["Retry-After"] == "60"


def test_whoever_is_refused_was_asked_once() -> None:
    asked: list[str] = []

    class Watched(MemoryStore):
        def bind(self, family: Family) -> Check:
            check = super().bind(family)

            def watched(key: str, cost: int = 1) -> Decision:
                asked.append(key)
                return check(key, cost)

            return watched

    found = RequestLimiter({"limits": "1/hour", "store": Watched()})
    in_loop = AsyncRequestLimiter({"limits": "1/hour", "store": Watched()})
    assert passed(found, 3) == 1
    assert len(asked) == 3

    async def entered_in_loop() -> list[Refusal | None]:
        return [await in_loop.check(exchange(in_loop), in_loop.budgets) for _ in range(3)]

    assert [refusal is None for refusal in asyncio.run(entered_in_loop())] == [True, False, False]
    assert len(asked) == 6


def test_one_refusal_is_not_that_of_other_limits_which_a_request_meets_afterwards() -> None:
    few, many = Budget(limits="1/minute", name="few"), Budget(limits="5/minute", name="many")

    def refused(refusals: Sequence[Refusal | None]) -> list[bool]:
        return [refusal is not None for refusal in refusals]

    found = limiter(limits=few)
    found.validate_once(many)
    seen, other = exchange(found), exchange(found)
    assert refused([found.check(seen, found.budgets), found.check(other, found.budgets)]) == [False, True]
    assert refused([found.check(other, (many,)), found.check(other, found.budgets)]) == [False, True]

    async def entered_in_loop(in_loop: AsyncRequestLimiter) -> list[Refusal | None]:
        in_loop.validate_once(many)
        await in_loop.check(exchange(in_loop), in_loop.budgets)
        again = exchange(in_loop)
        return [await in_loop.check(again, in_loop.budgets), await in_loop.check(again, (many,))]

    in_loop = AsyncRequestLimiter({"limits": few, "clock": ManualClock()})
    assert refused(asyncio.run(entered_in_loop(in_loop))) == [True, False]


def test_several_limits_are_decided_together_and_a_refusal_takes_from_none() -> None:
    found = limiter(limits=[Budget(limits="5/minute", name="all"), Budget(limits="2/hour", name="few")])
    assert passed(found, 4) == 2
    seen = exchange(found)
    found.check(seen, [found.budgets[0]])
    assert remaining(seen) == ["2"]  # the two that were refused took nothing of the five


def test_what_earlier_budgets_took_is_given_back_when_the_route_refuses() -> None:
    found = limiter(limits="5/minute")
    route = Budget(limits="1/hour")
    for _ in range(3):
        seen = exchange(found)
        assert found.check(seen, found.budgets) is None
        found.check(seen, [route], "exports")
    seen = exchange(found)
    found.check(seen, found.budgets)
    assert remaining(seen) == ["3"]  # one export, and this


def test_routes_have_budgets_of_their_own_unless_they_share_a_name() -> None:
    found = limiter()
    own, shared = Budget(limits="1/minute"), Budget(limits="1/minute", name="exports")
    assert [entered(found, own, route=route) is None for route in ("a", "b", "a")] == [True, True, False]
    assert [entered(found, shared, route=route) is None for route in ("a", "b")] == [True, False]


def test_a_budget_that_a_router_and_a_route_share_counts_once() -> None:
    found = limiter()
    shared = Budget(limits="2/minute", name="exports")
    assert passed(found, 3, shared, shared) == 2


def test_what_shares_a_budget_on_other_terms_counts_by_itself() -> None:
    plain = Budget(limits="4/minute", name="exports")
    for others, expected in (
        ({"cost": 3}, 1),
        ({"count_when": lambda _: False}, 2),
        ({"shadow": True}, 2),  # tried out, it still takes what it would
        ({"refund_on_error": True}, 2),
    ):
        budgets = Budget(limits="4/minute", name="exports", **others), plain
        assert passed(limiter(), 5, *budgets) == expected, others


async def test_nobody_is_exempt_by_an_answer_that_nobody_waits_for() -> None:
    class Exempt:
        async def __call__(self, request: Any) -> bool:
            return False

    exempt = Exempt()
    for found in (limiter(limits="1/minute", exempt=exempt), limiter(limits=Budget(limits="1/minute", exempt=exempt))):
        with pytest.raises(UsageError, match="synchronous"):
            entered(found)
    waiting = AsyncRequestLimiter({"limits": "1/minute", "exempt": exempt})
    assert [await waiting.check(exchange(waiting), waiting.budgets) is None for _ in range(2)] == [True, False]


def test_two_budgets_of_a_route_do_not_count_in_one_place() -> None:
    found = limiter()
    budgets = Budget(limits="2/minute", key=lambda _: "x"), Budget(limits="2/minute", key=lambda _: "x")
    seen = exchange(found)
    found.check(seen, budgets, "route")
    assert remaining(seen) == ["1", "1"]


def test_keys_costs_and_exemptions_are_functions_of_the_request() -> None:
    found = limiter(
        limits="10/minute",
        key=lambda request: f"user:{request['user']}",
        cost=lambda request: int(request.get("cost", 1)),
        exempt=lambda request: request.get("user") == "monitor",
    )
    assert entered(found, user="ada", cost="9") is None
    assert entered(found, user="ada", cost="2") is not None
    assert entered(found, user="bob", cost="2") is None
    assert passed(found, 20, user="monitor") == 20


def test_who_is_exempt_is_not_limited_by_routes_either() -> None:
    found = limiter(limits="1/minute", exempt=lambda request: request.get("user") == "monitor")
    assert passed(found, 3, Budget(limits="1/minute"), user="monitor") == 3


def test_limits_may_depend_on_the_key() -> None:
    found = limiter(limits=lambda key: "5/minute" if key == "paid" else "1/minute", key=lambda request: request["user"])
    assert (passed(found, 7, user="paid"), passed(found, 7, user="free")) == (5, 1)


def test_a_limit_of_a_key_that_is_not_one_is_loud_and_lets_nobody_pass() -> None:
    found = limiter(limits=lambda _: "often")
    with pytest.raises(InvalidQuota, match="often"):
        entered(found)


def test_failed_log_ins_count_and_others_do_not() -> None:
    found = limiter(limits="2/minute", count_when=lambda response: response.status_code == 401)

    def log_in(status: int) -> bool:
        seen = exchange(found)
        if found.check(seen, found.budgets) is not None:
            return False
        found.run(seen.respond(ResponseStart(status), status))
        return True

    assert all(log_in(200) for _ in range(10))
    assert [log_in(401), log_in(200), log_in(401), log_in(200), log_in(401)] == [True, True, True, False, False]


def test_never_more_fail_at_once_than_the_condition_allows() -> None:
    """All take before anybody has a response: nothing is let through on the hope that it will not count."""
    found = limiter(limits="3/minute", count_when=lambda response: response.status_code == 401)
    under_way = [exchange(found) for _ in range(20)]
    inside = [seen for seen in under_way if found.check(seen, found.budgets) is None]
    assert len(inside) == 3
    for seen in inside:
        found.run(seen.respond(ResponseStart(401), 401))
    assert entered(found) is not None


def test_errors_cost_nothing_where_that_is_asked_for() -> None:
    found = limiter(limits="1/minute", refund_on_error=True)
    for _ in range(3):
        seen = exchange(found)
        assert found.check(seen, found.budgets) is None
        found.run(seen.respond(ResponseStart(503), 503))
        found.run(seen.fail())  # and only once
    seen = exchange(found)
    assert found.check(seen, found.budgets) is None
    found.run(seen.fail())
    assert passed(found, 3) == 1


def test_a_shadow_refuses_nothing_and_is_told() -> None:
    told: list[Refusal] = []
    found = limiter(limits="1/minute", shadow=True, on_refused=lambda _, refusal: told.append(refusal))
    assert passed(found, 3) == 3
    assert [(refusal.is_shadow, refusal.detail[:24]) for refusal in told] == [(True, "default allows 1/minute.")] * 2
    seen = exchange(found)
    found.check(seen, found.budgets)
    assert seen.fields() == []


def test_the_hook_may_answer_itself() -> None:
    found = limiter(limits="1/minute", on_refused=lambda request, refusal: (request["peer"], refusal.status))
    entered(found)
    refusal = entered(found)
    assert refusal is not None
    assert refusal.answer == ("203.0.113.9", 429)


def test_a_disabled_limiter_limits_nothing() -> None:
    found = limiter(limits="1/minute", enabled=False)
    assert passed(found, 3) == 3
    found.enabled = True
    assert passed(found, 3) == 1


def test_a_reset_forgets_what_a_key_used() -> None:
    found = limiter(limits="1/minute")
    assert passed(found, 2) == 1
    found.reset("ip:203.0.113.9")
    assert passed(found, 2) == 1
    route = Budget(limits="1/minute", name="exports")
    assert passed(found, 2, route) == 1
    found.reset("ip:203.0.113.9", "exports", limits="1/minute")
    assert passed(found, 2, route) == 1
    with pytest.raises(UsageError, match="no budget 'imports'"):
        found.reset("ada", "imports")


def test_a_store_that_was_given_stays_open() -> None:
    store = MemoryStore()
    first, second = (RequestLimiter(LimiterSettings(limits="1/minute", store=store)) for _ in range(2))
    assert passed(first, 1) == 1
    first.close()
    assert passed(second, 1) == 0


@pytest.mark.parametrize("key", ["", None])
def test_nobody_without_a_key_is_unlimited(key: str | None, caplog: pytest.LogCaptureFixture) -> None:
    found = limiter(limits="100/minute", key=lambda _: key)
    refusal = entered(found)
    assert refusal is not None
    assert (refusal.status, refusal.detail) == (
        400,
        "This request does not identify its caller, so it cannot be counted.",
    )
    assert "returned nothing" in caplog.text
    by_address = limiter(limits="1/minute", key=lambda _: key, on_empty_key="address")
    assert (passed(by_address, 2), passed(by_address, 2, peer="203.0.113.10")) == (1, 1)


def test_a_key_that_is_not_text_is_loud() -> None:
    with pytest.raises(InvalidKey, match="got 42"):
        entered(limiter(limits="1/minute", key=lambda _: 42))


def test_a_cost_that_could_never_pass_is_the_clients_fault() -> None:
    refusal = entered(limiter(limits="1/minute", cost=lambda _: 5))
    assert refusal is not None
    assert refusal.status == 400
    assert "above the capacity" in refusal.detail


def test_the_address_is_that_of_the_peer_unless_a_trusted_proxy_says_otherwise() -> None:
    forged = {"x_forwarded_for": "192.0.2.1"}
    plain = limiter(limits="1/minute")
    assert passed(plain, 2, **forged) + passed(plain, 2, x_forwarded_for="192.0.2.2") == 1
    proxied = limiter(limits="1/minute", identity=AddressReader("x-forwarded-for", trusted=["203.0.113.0/24"]))
    assert passed(proxied, 2, **forged) + passed(proxied, 2, x_forwarded_for="192.0.2.2") == 2
    assert passed(proxied, 2, peer="198.51.100.1", **forged) == 1


def test_a_verified_key_counts_by_its_holder_and_a_guessed_one_by_address() -> None:
    keys = ApiKeys({digest("secret"): Holder("reporting")})
    found = limiter(limits="1/minute", identity=Identifier(AddressReader(), keys))
    assert passed(found, 2, x_api_key="secret") + passed(found, 2, peer="203.0.113.10", x_api_key="secret") == 1
    assert passed(found, 2, x_api_key="guess1") + passed(found, 2, x_api_key="guess2") == 1


def test_who_says_twice_who_asks_is_not_served() -> None:
    found = limiter(limits="1/minute", identity=Identifier(AddressReader(), ApiKeys(verified_upstream=True)))
    seen = Exchange(found, None, "203.0.113.9", [(b"x-api-key", b"a"), (b"x-api-key", b"b")])
    refusal = found.check(seen, found.budgets)
    assert refusal is not None
    assert refusal.status == 400


def test_clients_without_an_address_share_a_budget_and_somebody_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    found = limiter(limits="1/minute")
    with caplog.at_level(logging.WARNING):
        assert passed(found, 2, peer="testclient") == 1
        assert not caplog.records, "test clients have no address, and nobody has to be warned of that"
        assert passed(found, 2, peer="") == 0
    assert caplog.text.count("is not known") == 1


def rules_file(folder: Path) -> Path:
    path = folder / "rules.yaml"
    path.write_text(RULES)
    return path


def test_rules_decide_by_path_and_principal(tmp_path: Path) -> None:
    found = limiter(rules=rules_file(tmp_path), key=lambda request: request.get("user"), on_empty_key="address")
    assert (passed(found, 5, user="ada"), passed(found, 5, user="bob")) == (2, 2)
    assert passed(found, 3, path="/login") == 1
    refusal = entered(found, peer="198.51.100.7")
    assert refusal is not None
    assert (refusal.status, refusal.retry_after) == (403, None)
    found.close()


def test_a_route_may_name_a_rule(tmp_path: Path) -> None:
    found = limiter(rules=rules_file(tmp_path))
    budget = Budget(rule="logins")
    found.validate_once(budget)
    assert passed(found, 3, budget) == 1
    found.close()


@pytest.mark.parametrize("store", ["memory"])
def test_an_engine_that_is_given_is_used_and_stays_open(store: str) -> None:
    with Engine(load_rules(RULES), store=store) as engine:
        found = RequestLimiter(LimiterSettings(engine=engine, key=lambda request: {"user": request["user"]}))
        assert passed(found, 5, user="ada") == 2
        found.close()
        assert engine.check(Request({"user": "bob"})).allowed
        found.reset("ada")
        assert passed(found, 5, user="ada") == 2


def test_a_rule_that_does_not_exist_is_loud_when_the_application_starts() -> None:
    found = limiter(rules=load_rules(RULES))
    with pytest.raises(UnknownRule, match="log-ins"):
        found.validate_once(Budget(rule="log-ins"))


def test_a_rule_that_a_service_does_not_know_is_loud_rather_than_unlimited() -> None:
    """A service lets a request pass that names an unknown rule, unless its rules say otherwise."""
    engine = Engine(load_rules(RULES + "unknown_rule: allow\n"))
    with pytest.raises(UsageError, match="log-ins"):
        entered(RequestLimiter(LimiterSettings(engine=engine)), Budget(rule="log-ins"))


WRONG: Sequence[tuple[dict[str, Any], type[Exception], str]] = [
    ({"limits": "100/minuet"}, InvalidQuota, "minuet"),
    ({"limits": ""}, InvalidQuota, "quota"),
    ({"limits": 100}, InvalidQuota, "quota"),
    ({"limits": []}, InvalidQuota, "at least one"),
    ({"limits": None}, InvalidSettings, "nothing would be limited"),
    ({"limits": "1/minute", "enabled": ""}, InvalidSettings, "enabled must be True or False"),
    ({"limits": "1/minute", "shadow": "false"}, UsageError, "shadow must be True or False"),
    ({"limits": "1/minute", "refund_on_error": 1}, UsageError, "refund_on_error must be True or False"),
    ({"limits": "1/minute", "cost": 2}, CostTooLarge, "could never pass"),
    ({"limits": "1/minute", "cost": -1}, InvalidCost, "cost"),
    ({"limits": "1/minute", "key": "user"}, InvalidSettings, "function"),
    ({"limits": "1/minute", "exempt": True}, InvalidSettings, "function"),
    ({"limits": "1/minute", "count_when": 401}, UsageError, "function"),
    ({"limits": "1/minute", "on_empty_key": "allow"}, InvalidSettings, "refuse"),
    ({"limits": "1/minute", "identity": "x-forwarded-for"}, InvalidSettings, "AddressReader"),
    ({"limits": "1/minute", "headers": True}, InvalidSettings, "ResponseHeaders"),
    ({"limits": "1/minute", "rules": "rules.yaml"}, InvalidSettings, "one of"),
    (
        {"limits": "1/minute", "limit": "2/minute"},
        InvalidSettings,
        "unknown setting limit; the settings are: clock, cost",
    ),
    ({"limits": [Budget(limits="1/minute"), "2/minute"]}, InvalidSettings, "do not mix budgets"),
    ({"limits": "1/minute", "store": "rediss"}, UsageError, "redi"),
    ({"limits": Budget(rule="logins")}, InvalidSettings, "needs the setting rules or engine"),
    ({"engine": "http://localhost"}, InvalidSettings, "engine"),
    ({"engine": Engine(load_rules(RULES)), "clock": ManualClock()}, InvalidSettings, "own clock"),
]


@pytest.mark.parametrize(("settings", "error", "told"), WRONG, ids=[told for _, _, told in WRONG])
@pytest.mark.parametrize("kind", [RequestLimiter, AsyncRequestLimiter])
def test_what_cannot_work_is_loud_at_once(kind: Any, settings: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        kind(settings)


def test_a_budget_is_of_quotas_or_of_a_rule() -> None:
    for terms in ({}, {"limits": "1/minute", "rule": "logins"}):
        with pytest.raises(UsageError, match="either limits"):
            Budget(**terms)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettings, match="need a store of their own"):
        RequestLimiter({"engine": Engine(load_rules(RULES))}).validate_once(Budget(limits="1/minute"))
    assert Budget(limits=[Quota(5, 60_000_000), "10/hour"]).functions == ()


def test_rules_for_all_routes_and_quotas_for_one_are_taken_together_or_not_at_all() -> None:
    own = Budget(limits="3/minute", name="own")
    engine = Engine(load_rules(RULES), clock=ManualClock())
    key = {"key": lambda request: request["user"]}
    by_engine = RequestLimiter({"engine": engine, "store": "memory", **key})  # type: ignore[typeddict-item]
    for found in (limiter(rules=load_rules(RULES), **key), by_engine):
        found.validate_once(own)
        both = (*found.budgets, own)
        assert passed(found, 5, *both, user="ada") == 2
        assert passed(found, 5, own, user="ada") == 1  # what the rule refused took nothing
        assert entered(found, *both, user="bob") is None
        assert entered(found, *both, user="ada").ruling.rule_id == "per-user"  # type: ignore[union-attr]
        assert passed(found, 5, own, user="bob") == 2
        assert entered(found, *both, user="bob").ruling.rule_id == "own"  # type: ignore[union-attr]
        assert passed(found, 5, *found.budgets, user="bob") == 1  # the refused one was given back
        found.reset("ada", "own", limits="3/minute")
        assert passed(found, 5, own, user="ada") == 3
        found.close()


def test_a_budget_that_is_left_out_of_a_route_does_not_leave_its_name_to_another() -> None:
    found = limiter()
    budgets = Budget(limits="1/minute", exempt=lambda request: "free" in request), Budget(limits="5/minute")
    assert passed(found, 3, *budgets, free="yes") == 3
    assert passed(found, 3, *budgets) == 1


def test_a_cost_that_is_none_is_an_error_that_names_its_function() -> None:
    def weight(request: Any) -> Any:
        return {"less": -1, "half": 0.5}[request["user"]]

    for user in ("less", "half"):
        with pytest.raises(InvalidCost, match=r"got (-1|0\.5) from .*weight"):
            entered(limiter(), Budget(limits="5/minute", cost=weight), user=user)


async def a_key(request: Any) -> str:
    await asyncio.sleep(0)
    return str(request["user"])


def test_functions_of_an_event_loop_are_not_for_an_application_without_one() -> None:
    with pytest.raises(InvalidSettings, match="synchronous"):
        limiter(limits="1/minute", key=a_key)
    with pytest.raises(InvalidSettings, match="event loops"):
        RequestLimiter(LimiterSettings(engine=AsyncEngine(load_rules(RULES))))


def test_an_engine_that_would_block_the_loop_is_refused_and_one_in_memory_is_not() -> None:
    with (
        Engine(load_rules(RULES), store="redis://127.0.0.1:1") as far,
        pytest.raises(InvalidSettings, match="block the event loop"),
    ):
        AsyncRequestLimiter(LimiterSettings(engine=far))
    AsyncRequestLimiter(LimiterSettings(engine=Engine(load_rules(RULES))))


async def entered_async(found: AsyncRequestLimiter, **request: Any) -> bool:
    return await found.check(exchange(found, **request), found.budgets) is None


@pytest.mark.parametrize("store", ["memory", MemoryStore()], ids=["address", "store"])
async def test_in_an_event_loop_exactly_as_many_pass_as_the_limit_says(store: Any) -> None:
    found = AsyncRequestLimiter(LimiterSettings(limits="25/hour", store=store, key=a_key))
    assert sum(await asyncio.gather(*[entered_async(found, user="ada") for _ in range(200)])) == 25
    await found.reset("ada")
    assert await entered_async(found, user="ada")
    await found.close()


def test_threads_let_exactly_as_many_pass_as_the_limit_says() -> None:
    found = limiter(limits="25/hour")
    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(lambda _: passed(found, 1), range(200))) == 25


def test_names_of_routes_become_names_of_budgets_and_stay_apart() -> None:
    routes = ["app.main.read", "app.main.read:2", "a" * 100, "b" + "a" * 99, "app.<locals>.f", "app._locals_.f", "/ä"]
    names = [budget_name(route) for route in routes] + [budget_name("app.main.read", nth) for nth in (2, 3)]
    assert len(set(names)) == len(names)
    for name in names:
        Budget(limits="1/minute", name=name)


def test_without_header_fields_a_refusal_still_is_not_to_be_stored() -> None:
    found = limiter(limits="1/minute", headers=None)
    seen = exchange(found)
    found.check(seen, found.budgets)
    assert seen.fields() == []
    refusal = entered(found)
    assert refusal is not None
    assert refusal.fields == [("Cache-Control", "no-store")]


def test_fields_describe_the_most_restrictive_limit_of_all_that_were_asked() -> None:
    found = limiter(limits="100/minute", headers=ResponseHeaders(reset_format="seconds"))
    seen = exchange(found)
    found.check(seen, found.budgets)
    found.check(seen, [Budget(limits="2/minute")], "exports")
    fields = dict(seen.fields())
    assert (fields["X-RateLimit-Limit"], fields["X-RateLimit-Remaining"]) == ("2", "1")
    assert fields["RateLimit-Policy"] == '"default";q=100;w=60, "exports";q=2;w=60'


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("10/minute", "10/minute"),
        ("10 per minute", "10/minute"),
        ("10/m", "10/minute"),
        ("5/30s", "5/30s"),
        ("100 per day;10/minute", "100/day; 10/minute"),
        ("1/30 days", "1/30d"),
        ("1/month in Europe/Berlin", "1/month in Europe/Berlin"),
    ],
)
def test_the_strings_of_other_limiters_are_read_as_the_page_says(theirs: str, ours: str) -> None:
    assert "; ".join(map(str, Quota.parse(theirs))) == ours
    (budget,) = RequestLimiter(LimiterSettings(limits=theirs)).budgets
    assert budget.families("default")[1].quotas == tuple(Quota.parse(ours))


def test_each_route_may_have_the_limit_of_all_for_itself() -> None:
    found = limiter(limits=Budget(limits="1/minute"))
    assert [entered(found, route=route) is None for route in ("a", "b", "a")] == [True, True, False]


def test_nothing_that_a_request_holds_outlives_it() -> None:
    """Also where it refers to its exchange, and the exchange to it: the garbage collector sees both."""

    class Held:
        """What an application puts into a request."""

        exchange: Exchange

    found = limiter(limits="1/minute", on_refused=lambda request, refusal: request)
    for _ in range(2):
        held = Held()
        held.exchange = Exchange(found, held, "203.0.113.9")
        found.check(held.exchange, found.budgets)
    alive = weakref.ref(held)
    del held
    gc.collect()
    assert alive() is None
