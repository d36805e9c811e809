"""Repeated requests with an idempotency key, which belongs to the caller, not to the limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate import Engine, InvalidKey, Request, load_rules
from headgate.testing import ManualClock
from tests.clusters import RedisCluster, redis_cluster

RULES = """
version: 1
rules:
  - {id: user, limit: 10, window: 1h}
  - {id: address, dimension: ip, limit: 2, window: 1h}
  - {id: key, dimension: apikey, limit: 10, window: 1h}
  - {id: all, dimension: global, limit: 100, window: 1h}
  - {id: tried, dimension: ip, limit: 2, window: 1h, shadow: true}
  - {id: tenant, dimension: tenant, limit: 10, window: 1h}
"""


@pytest.fixture(scope="module", params=["memory", "cluster"])
def cluster(request: pytest.FixtureRequest) -> Iterator[RedisCluster | None]:
    if request.param == "memory":
        yield None
        return
    with redis_cluster() as cluster:
        yield cluster


@pytest.fixture
def engine(cluster: RedisCluster | None) -> Iterator[Engine]:
    if cluster is not None:
        cluster.flush()
    store = "memory:" if cluster is None else cluster.address
    with Engine(load_rules(RULES), store=store, clock=ManualClock()) as engine:
        yield engine


def left(engine: Engine, **principal: str) -> dict[str, int]:
    ruling = engine.peek(Request(principal))
    return {limit.rule_id: limit.decision.remaining for limit in ruling.limits}


def once(engine: Engine, principal: dict[str, str], key: str = "k", **more: Any) -> Any:
    return engine.check_once(Request(principal, **more), key)


def test_it_is_counted_once_from_any_address(engine: Engine) -> None:
    first = once(engine, {"user": "ada", "ip": "192.0.2.1"})
    assert once(engine, {"user": "ada", "ip": "192.0.2.1"}) == first
    assert engine.check(Request({"user": "bob", "ip": "192.0.2.2"}, cost=2))
    for other in ({"ip": "192.0.2.2"}, {"ip": "192.0.2.3"}, {"ip": "192.0.2.1", "apikey": "new"}):
        again = once(engine, {"user": "ada", **other})
        assert (again.allowed, again.decision.retry_after, again.decision.taken) == (True, 0, 0)
        engine.refund(again)
    assert left(engine, user="ada", ip="192.0.2.3", apikey="new") == {"user": 9, "address": 2, "key": 10, "all": 97}
    assert left(engine, user="ada", ip="192.0.2.2")["address"] == 0
    tried = engine.peek(Request({"ip": "192.0.2.3"})).shadow
    assert [each.decision.remaining for each in tried] == [2]


def test_the_caller_is_the_user_else_the_api_key_else_the_address(engine: Engine) -> None:
    assert once(engine, {"apikey": "one", "ip": "192.0.2.1"})
    assert once(engine, {"api_key": "one", "ip": "192.0.2.2"}).decision.taken == 0
    assert once(engine, {"user": "ada", "apikey": "one"}).decision.taken == 1
    assert once(engine, {"ip": "192.0.2.9"}).decision.taken == 1
    assert left(engine, apikey="one", ip="192.0.2.2") == {"address": 2, "key": 8, "all": 97}
    for tenant in ("a", "b", "a"):
        once(engine, {}, attributes={"tenant": tenant})
    assert left(engine)["all"] == 95


def test_another_request_with_the_same_key_is_counted(engine: Engine) -> None:
    others: tuple[dict[str, Any], ...] = {"cost": 2}, {"endpoint": "/other"}, {"method": "POST"}, {"key": "l"}
    for user, other in zip(("ada", "eve", "joe", "zoe"), others, strict=True):
        once(engine, {"user": user})
        for _ in range(2):
            once(engine, {"user": user}, **other)
        assert left(engine, user=user)["user"] == 9 - other.get("cost", 1), other
    once(engine, {"user": "bob"})
    assert left(engine, user="bob")["user"] == 9


def test_a_refused_request_may_be_repeated_and_takes_nothing(engine: Engine) -> None:
    assert engine.check(Request({"ip": "192.0.2.1"}, cost=2))
    assert not once(engine, {"user": "ada", "ip": "192.0.2.1"})
    assert left(engine, user="ada")["user"] == 10
    assert once(engine, {"user": "ada", "ip": "192.0.2.2"})
    assert once(engine, {"user": "ada", "ip": "192.0.2.1"})
    assert left(engine, user="ada")["user"] == 9


def test_text_that_is_not_unicode_is_an_error_only_where_it_is_a_key(engine: Engine) -> None:
    for _ in range(2):
        once(engine, {}, attributes={"region": "\ud800"})
    assert left(engine)["all"] == 99
    with pytest.raises(InvalidKey, match="lone surrogate"):
        once(engine, {"user": "\ud800"})
