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
from headgate.core.plan import Call, Verb
from headgate.integrations import Budget, Refusal
from headgate.integrations.budget import family_of
from headgate.integrations.exchange import Exchange, ResponseStart
from headgate.integrations.limiter import AsyncRequestLimiter, LimiterBase, LimiterSettings, RequestLimiter
from headgate.integrations.routes import budget_name
from headgate.sdk import Client
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
    refusal: Refusal | None = found.check(exchange(found, **request), budgets or found.budgets, route)
    return refusal


def passed(found: RequestLimiter, times: int, *budgets: Budget, **request: Any) -> int:
    return sum(entered(found, *budgets, **request) is None for _ in range(times))


def remaining(seen: Exchange) -> list[str]:
    return [item.partition(";r=")[2].partition(";")[0] for item in dict(seen.fields())["RateLimit"].split(", ")]


def test_a_refusal_takes_one_call_of_the_store() -> None:
    calls: list[Verb] = []

    class Watched(MemoryStore):
        def run(self, call: Call) -> Decision:
            calls.append(call.verb)
            return super().run(call)

    found = RequestLimiter({"limits": "1/hour", "store": Watched()})
    in_loop = AsyncRequestLimiter({"limits": "1/hour", "store": Watched()})
    assert passed(found, 3) == 1
    assert len(calls) == 3

    async def entered_in_loop() -> list[Refusal | None]:
        return [await in_loop.check(exchange(in_loop), in_loop.budgets) for _ in range(3)]

    assert [refusal is None for refusal in asyncio.run(entered_in_loop())] == [True, False, False]
    assert len(calls) == 6


def test_several_limits_are_decided_together_and_a_refusal_takes_from_none() -> None:
    found = limiter(limits=[Budget(limits="5/minute", name="all"), Budget(limits="2/hour", name="few")])
    assert passed(found, 4) == 2
    seen = exchange(found)
    found.check(seen, [found.budgets[0]])
    assert remaining(seen) == ["2"]  # the two that were refused took nothing of the five


def test_a_refusal_by_the_route_refunds_earlier_budgets() -> None:
    found = limiter(limits="5/minute")
    route = Budget(limits="1/hour")
    for _ in range(3):
        seen = exchange(found)
        assert found.check(seen, found.budgets) is None
        found.check(seen, [route], "exports")
    seen = exchange(found)
    found.check(seen, found.budgets)
    assert remaining(seen) == ["3"]  # one export, and this


def test_a_shared_budget_counts_once_and_separately_on_other_terms() -> None:
    plain = Budget(limits="4/minute", name="exports")
    assert passed(limiter(), 5, plain, plain) == 4
    for others, expected in (
        ({"cost": 3}, 1),
        ({"count_when": lambda _: False}, 2),
        ({"shadow": True}, 2),  # tried out, it still takes what it would
        ({"refund_on_error": True}, 2),
    ):
        budgets = Budget(limits="4/minute", name="exports", **others), plain
        assert passed(limiter(), 5, *budgets) == expected, others


async def test_a_result_that_is_not_awaited_exempts_nobody() -> None:
    class Exempt:
        async def __call__(self, request: Any) -> bool:
            return False

    exempt = Exempt()
    for found in (limiter(limits="1/minute", exempt=exempt), limiter(limits=Budget(limits="1/minute", exempt=exempt))):
        with pytest.raises(UsageError, match="synchronous"):
            entered(found)
    waiting = AsyncRequestLimiter({"limits": "1/minute", "exempt": exempt})
    assert [await waiting.check(exchange(waiting), waiting.budgets) is None for _ in range(2)] == [True, False]


def test_each_budget_of_a_route_has_a_name_and_so_has_the_limit_for_each_route() -> None:
    found = limiter()
    budgets = Budget(limits="2/minute", key=lambda _: "x"), Budget(limits="2/minute", key=lambda _: "x")
    seen = exchange(found)
    found.check(seen, budgets, "route")
    assert remaining(seen) == ["1", "1"]
    budgets = Budget(limits="1/minute", exempt=lambda request: "free" in request), Budget(limits="5/minute")
    assert (passed(limiter(), 3, *budgets, free="yes"), passed(limiter(), 3, *budgets)) == (3, 1)
    found = limiter(limits=Budget(limits="1/minute"))
    assert [entered(found, route=route) is None for route in ("a", "b", "a")] == [True, True, False]


def test_keys_costs_exemptions_and_limits_are_functions() -> None:
    found = limiter(
        limits="10/minute",
        key=lambda request: f"user:{request['user']}",
        cost=lambda request: int(request.get("cost", 1)),
        exempt=lambda request: request.get("user") == "monitor",
    )
    assert entered(found, user="ada", cost="9") is None
    assert entered(found, user="ada", cost="2") is not None
    assert entered(found, user="bob", cost="2") is None
    assert passed(found, 20, user="monitor") == passed(found, 20, Budget(limits="1/minute"), user="monitor") == 20
    found = limiter(limits=lambda key: "5/minute" if key == "paid" else "1/minute", key=lambda request: request["user"])
    assert (passed(found, 7, user="paid"), passed(found, 7, user="free")) == (5, 1)
    with pytest.raises(InvalidQuota, match="often"):
        entered(limiter(limits=lambda _: "often"))


def test_never_more_fail_at_once_than_the_condition_allows() -> None:
    """All requests take their cost before any has a response."""
    found = limiter(limits="3/minute", count_when=lambda response: response.status_code == 401)
    under_way = [exchange(found) for _ in range(20)]
    inside = [seen for seen in under_way if found.check(seen, found.budgets) is None]
    assert len(inside) == 3
    for seen in inside:
        found.run(seen.respond(ResponseStart(401), 401))
    assert entered(found) is not None


def test_errors_are_refunded_once_by_refund_on_error() -> None:
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


def test_a_shadow_refuses_nothing_and_is_reported() -> None:
    refusals: list[Refusal] = []
    found = limiter(limits="1/minute", shadow=True, on_refused=lambda _, refusal: refusals.append(refusal))
    assert passed(found, 3) == 3
    assert [(each.is_shadow, each.detail[:24]) for each in refusals] == [(True, "default allows 1/minute.")] * 2
    seen = exchange(found)
    found.check(seen, found.budgets)
    assert seen.fields() == []


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


def test_a_request_without_a_key_is_not_unlimited(caplog: pytest.LogCaptureFixture) -> None:
    for key in ("", None):
        refusal = entered(limiter(limits="100/minute", key=lambda _, key=key: key))
        assert refusal is not None
        assert (refusal.status, refusal.detail[:43]) == (400, "This request does not identify its caller, ")
        by_address = limiter(limits="1/minute", key=lambda _, key=key: key, on_empty_key="address")
        assert (passed(by_address, 2), passed(by_address, 2, peer="203.0.113.10")) == (1, 1)
    assert caplog.text.count("returned no key") == 2
    for settings in ({"limits": "1/minute"}, {"rules": load_rules(RULES)}):
        for number in (42, 0):
            with pytest.raises(InvalidKey, match=f"got {number}"):
                entered(limiter(key=lambda _, number=number: number, **settings))


def test_requests_that_could_never_pass_are_refused_as_invalid() -> None:
    refusal = entered(limiter(limits="1/minute", cost=lambda _: 5))
    assert refusal is not None
    assert (refusal.status, "above the capacity" in refusal.detail) == (400, True)
    found = limiter(limits="1/minute", identity=Identifier(AddressReader(), ApiKeys(verified_upstream=True)))
    seen = Exchange(found, None, "203.0.113.9", [(b"x-api-key", b"a"), (b"x-api-key", b"b")])
    refusal = found.check(seen, found.budgets)
    assert refusal is not None
    assert refusal.status == 400


def test_the_address_is_that_of_the_peer_or_from_a_trusted_proxy() -> None:
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


def test_clients_without_an_address_share_a_budget_which_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    found = limiter(limits="1/minute")
    with caplog.at_level(logging.WARNING):
        assert passed(found, 2, peer="testclient") == 1
        assert not caplog.records, "test clients have no address, which needs no warning"
        assert passed(found, 2, peer="") == 0
    assert caplog.text.count("is not known") == 1


def test_rules_decide_by_path_and_principal(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    found = limiter(rules=path, key=lambda request: request.get("user"), on_empty_key="address")
    assert (passed(found, 5, user="ada"), passed(found, 5, user="bob")) == (2, 2)
    assert passed(found, 3, path="/login") == 1
    refusal = entered(found, peer="198.51.100.7")
    assert refusal is not None
    assert (refusal.status, refusal.retry_after) == (403, None)
    budget = Budget(rule="logins")
    found.validate_once(budget)
    assert passed(found, 3, budget, peer="203.0.113.11") == 1
    found.close()


def test_a_store_or_an_engine_that_is_given_is_used_and_stays_open() -> None:
    store = MemoryStore()
    first, second = (RequestLimiter(LimiterSettings(limits="1/minute", store=store)) for _ in range(2))
    assert passed(first, 1) == 1
    first.close()
    assert passed(second, 1) == 0
    with Engine(load_rules(RULES)) as engine:
        found = RequestLimiter(LimiterSettings(engine=engine, key=lambda request: {"user": request["user"]}))
        assert passed(found, 5, user="ada") == 2
        found.close()
        assert engine.check(Request({"user": "bob"})).allowed
        found.reset("ada")
        assert passed(found, 5, user="ada") == 2


def test_a_rule_that_does_not_exist_is_an_error_when_the_application_starts_or_at_the_first_request() -> None:
    """A service lets a request pass that names an unknown rule, unless its rules forbid that."""
    with pytest.raises(UnknownRule, match="log-ins"):
        limiter(rules=load_rules(RULES)).validate_once(Budget(rule="log-ins"))
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


def test_settings_that_cannot_work_are_errors_at_once() -> None:
    kinds: Any = RequestLimiter, AsyncRequestLimiter
    for kind in kinds:
        for settings, error, message in WRONG:
            with pytest.raises(error, match=message):
                kind(settings)
    for terms in ({}, {"limits": "1/minute", "rule": "logins"}):
        with pytest.raises(UsageError, match="either limits"):
            Budget(**terms)  # type: ignore[arg-type]
    with pytest.raises(InvalidSettings, match="need a separate store"):
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
        assert passed(found, 5, *found.budgets, user="bob") == 1  # the refused one was refunded
        found.reset("ada", "own", limits="3/minute")
        assert passed(found, 5, own, user="ada") == 3
        found.close()


async def a_key(request: Any) -> str:
    await asyncio.sleep(0)
    return str(request["user"])


def test_functions_and_engines_are_of_the_kind_of_the_application() -> None:
    with pytest.raises(InvalidSettings, match="synchronous"):
        limiter(limits="1/minute", key=a_key)
    with pytest.raises(InvalidSettings, match="event loops"):
        RequestLimiter(LimiterSettings(engine=AsyncEngine(load_rules(RULES))))
    with Engine(load_rules(RULES), store="redis://127.0.0.1:1") as far, Client("http://127.0.0.1:1") as client:
        for engine in (far, client):
            with pytest.raises(InvalidSettings, match="block the event loop"):
                AsyncRequestLimiter({"engine": engine})
    AsyncRequestLimiter(LimiterSettings(engine=Engine(load_rules(RULES))))


async def entered_async(found: AsyncRequestLimiter, **request: Any) -> bool:
    return await found.check(exchange(found, **request), found.budgets) is None


async def test_tasks_pass_exactly_up_to_the_limit() -> None:
    stores: list[Any] = ["memory", MemoryStore()]
    for store in stores:
        found = AsyncRequestLimiter(LimiterSettings(limits="25/hour", store=store, key=a_key))
        assert sum(await asyncio.gather(*[entered_async(found, user="ada") for _ in range(200)])) == 25
        await found.reset("ada")
        assert await entered_async(found, user="ada")
        await found.close()


def test_threads_pass_exactly_up_to_the_limit() -> None:
    found = limiter(limits="25/hour")
    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(lambda _: passed(found, 1), range(200))) == 25


def test_names_of_routes_become_distinct_names_of_budgets() -> None:
    routes = ["app.main.read", "app.main.read:2", "a" * 100, "b" + "a" * 99, "app.<locals>.f", "app._locals_.f", "/ä"]
    names = [budget_name(route) for route in routes] + [budget_name("app.main.read", nth) for nth in (2, 3)]
    assert len(set(names)) == len(names)
    for name in names:
        Budget(limits="1/minute", name=name)


def test_fields_describe_the_most_restrictive_limit_of_a_request_and_can_be_switched_off() -> None:
    found = limiter(limits="100/minute", headers=ResponseHeaders(reset_format="seconds"))
    seen = exchange(found)
    found.check(seen, found.budgets)
    found.check(seen, [Budget(limits="2/minute")], "exports")
    fields = dict(seen.fields())
    assert (fields["X-RateLimit-Limit"], fields["X-RateLimit-Remaining"]) == ("2", "1")
    assert fields["RateLimit-Policy"] == '"default";q=100;w=60, "exports";q=2;w=60'
    found = limiter(limits="1/minute", headers=None)
    seen = exchange(found)
    assert (found.check(seen, found.budgets), seen.fields()) == (None, [])
    assert entered(found).fields == [("Cache-Control", "no-store")]  # type: ignore[union-attr]


def test_the_quotas_of_other_limiters_are_read_as_documented() -> None:
    read = {
        "10/minute": "10/minute",
        "10 per minute": "10/minute",
        "10/m": "10/minute",
        "5/30s": "5/30s",
        "100 per day;10/minute": "100/day; 10/minute",
        "1/30 days": "1/30d",
        "1/month in Europe/Berlin": "1/month in Europe/Berlin",
    }
    for theirs, ours in read.items():
        assert "; ".join(map(str, Quota.parse(theirs))) == ours
        (budget,) = RequestLimiter(LimiterSettings(limits=theirs)).budgets
        assert family_of("default", budget.limits).quotas == tuple(Quota.parse(ours))  # type: ignore[arg-type]


def test_requests_are_garbage_collected() -> None:
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
