"""A client returns what an engine returns, for the same requests at the same times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from headgate import Engine, Request, UsageError, load_rules
from headgate.engine import Explained, Ruling
from headgate.engine.charges import charge_of
from headgate.sdk import AsyncClient, Client
from headgate.testing import ManualClock
from tests.server.listening import listening

RULES = """
version: 1
default_tier: free
rules:
  - {id: orders, dimension: user, endpoint: /orders/**, methods: [POST], limit: 3, window: 1m, algorithm: fixed_window}
  - {id: burst, dimension: user, endpoint: /orders/**, limit: 10, window: 1h, burst: 5, warn_percent: 50,
     calm_percent: 20}
  - id: several
    dimension: ip
    endpoint: /several
    limits: [{limit: 2, window: 1s, algorithm: gcra}, {limit: 5, window: 1m, algorithm: sliding_window_counter}]
  - {id: log, dimension: apikey, endpoint: /log, limit: 4, window: 1m, algorithm: sliding_window_log}
  - {id: queue, dimension: user, endpoint: /queue, limit: 60, window: 1m, algorithm: leaky_bucket, queue: true}
  - {id: month, dimension: user, endpoint: /month, limit: 4, window: month, calendar: Europe/Berlin}
  - {id: steps, dimension: user, endpoint: /steps, limit: 7, window: 1m, refill_every: 10s}
  - {id: trial, dimension: user, endpoint: /orders/**, limit: 1, window: 1m, shadow: true}
  - {id: small-trial, dimension: user, endpoint: /several, limit: 1, window: 1m, shadow: true}
  - {id: everybody, dimension: global, endpoint: /global, limit: 20, window: 1m}
  - {id: tenant, dimension: tenant, endpoint: /tenant, limit: 3, window: 1m, when: {region: eu}}
  - {id: both, dimension: [user, ip], endpoint: /both, limit: 2, window: 1m}
tiers:
  free: {burst: {limit: 5}}
  gold: {orders: {limit: 30}}
users:
  vip: {tier: gold, overrides: {queue: {limit: 120}}}
deny: [{ip: 192.0.2.0/24}]
allow: [{user: root}]
"""
ENDPOINTS = ["/orders/7", "/several", "/log", "/queue", "/month", "/steps", "/global", "/tenant", "/both", "/none"]


@dataclass(frozen=True, slots=True)
class Pair:
    """The same rules, in this process and behind a service."""

    engine: Engine
    client: Client
    address: str
    clock: ManualClock

    def both(self, verb: str, *args: Any) -> Any:
        """Call both, and return their result, which is equal."""
        mine, theirs = (_result(each, verb, *args) for each in (self.engine, self.client))
        assert theirs == mine, (verb, args)
        return mine


def _result(decider: Engine | Client, verb: str, *args: Any) -> Any:
    try:
        return comparable(getattr(decider, verb)(*args))
    except UsageError as error:
        return comparable(error)


def comparable(answer: Any) -> Any:
    """A result without the parts that differ: the reference of a charge, and shadows that are not public."""
    match answer:
        case Ruling():
            decision = answer.decision
            if decision is not None:  # a refusal is false
                decision = msgspec.structs.replace(decision, shadow=())
            return msgspec.structs.replace(answer, selection=None, decision=decision)
        case Explained():
            states = {rule: tuple(map(comparable, each)) for rule, each in answer.states.items()}
            return answer.explanation, comparable(answer.ruling), states
        case UsageError():
            return type(answer)
        case tuple() if answer and isinstance(answer[0], Ruling | UsageError):
            return tuple(map(comparable, answer))
    return msgspec.structs.replace(answer, shadow=()) if hasattr(answer, "retry_after_us") else answer


@pytest.fixture(scope="module", params=["http", "grpc"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    clock = ManualClock()
    with listening(RULES, clock=clock) as service:
        address = f"{request.param}://127.0.0.1:{getattr(service, request.param)}"
        with Engine(load_rules(RULES), clock=clock) as engine, Client(address, clock=clock, timeout=600) as client:
            yield Pair(engine, client, address, clock)


def principals() -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "user": st.sampled_from(["ada", "vip", "root", "eve"]),
            "ip": st.sampled_from(["203.0.113.9", "192.0.2.7", "2001:db8::1"]),
            "api_key": st.sampled_from(["k1"]),
            "colour": st.sampled_from(["red"]),
        },
    )


def requests() -> st.SearchStrategy[Request]:
    return st.builds(
        Request,
        principals(),
        st.sampled_from(ENDPOINTS),
        st.sampled_from(["", "GET", "post"]),
        st.sampled_from([{}, {"region": "eu", "tenant": "acme"}]),
        st.sampled_from([0, 1, 1, 1, 2, 3, 50]),
        st.sampled_from(["", "", "gold"]),
        st.sampled_from(["", "", "192.0.2.1"]),
        st.sampled_from(["", "", "", "orders", "several", "nowhere"]),
    )


settings.register_profile(
    "onwards",
    deadline=None,
    phases=[Phase.generate],  # both go on from where they are: what was found is not found again from the start
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
ONWARDS = settings.get_profile("onwards")
VERBS = st.sampled_from(["check", "check", "check", "peek", "reset", "reset_all", "explain"])


@settings(ONWARDS, max_examples=60)
@given(calls=st.lists(st.tuples(VERBS, requests(), st.integers(0, 20_000_000)), min_size=1, max_size=12))
def test_an_engine_and_a_client_give_equal_results(pair: Pair, calls: list[tuple[str, Request, int]]) -> None:
    for verb, request, later in calls:
        whole = Request(request.principal, tier=request.tier)
        pair.both(verb, whole if verb == "reset_all" else request)
        pair.clock.advance(later)


@settings(ONWARDS, max_examples=20)
@given(batch=st.lists(requests(), max_size=20))
def test_a_batch_has_a_ruling_or_an_error_for_each_request(pair: Pair, batch: list[Request]) -> None:
    assert len(pair.both("check_batch", batch)) == len(batch)


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("endpoint", ["/orders/9", "/several", "/log", "/none"])
def test_a_ruling_is_refunded_once(pair: Pair, endpoint: str, by_name: bool) -> None:  # noqa: FBT001
    request = Request({"user": "grace", "ip": "198.51.100.1", "apikey": "k2"}, endpoint, "POST", cost=2)
    before = pair.both("peek", request)
    results: list[Any] = []
    for each in (pair.engine, pair.client):
        ruling = each.check(request)
        if by_name and charge_of(ruling):
            results.append(comparable(each.refund(request, charge_of(ruling))))
        else:
            answers = [comparable(each.refund(ruling)) for _ in range(2)]
            unseen = {"shadow_rules": (), "shadow_decisions": ()}
            results.append([comparable(ruling), *[msgspec.structs.replace(each, **unseen) for each in answers]])
    assert results[0] == results[1]
    assert pair.both("peek", request) == before


def test_a_refund_returns_the_state_of_the_limits(pair: Pair) -> None:
    request = Request({"apikey": "refunded"}, "/log")
    rulings = pair.engine.check(request), pair.client.check(request)
    pair.engine.refund(rulings[0])
    pair.client.refund(rulings[1])
    assert [pair.both("check", request).allowed for _ in range(5)] == [True, True, True, True, False]
    assert not pair.engine.refund(rulings[0])
    answer = pair.client.refund(rulings[1])
    assert (answer.allowed, answer.decision) == (False, pair.client.peek(request).decision)


def test_a_request_that_is_sent_again_is_counted_once(pair: Pair) -> None:
    request = Request({"user": "once"}, "/orders/1", "POST")
    first = pair.both("check_once", request, "order-1")
    assert pair.both("check_once", request, "order-1").decision.remaining == first.decision.remaining


def test_one_rule_is_checked_by_its_id(pair: Pair) -> None:
    checked = [("ada", "orders"), ("203.0.113.5", "several"), ("x", "everybody"), ("ada", "nowhere"), ("ada", "both")]
    for client_id, rule_id in (*checked, ("", "log")):
        for _ in range(2):
            pair.both("is_passed", client_id, rule_id)


UNDECIDABLE: list[Any] = [
    Request({"user": ""}),
    Request({"user": 42}),  # type: ignore[dict-item]
    Request({"user": b"42"}),  # type: ignore[dict-item]
    Request({"user": "u"}, endpoint=None),  # type: ignore[arg-type]
    Request({"user": "u"}, cost=-1),
    Request({"user": "u"}, cost=1.5),  # type: ignore[arg-type]
    Request({"user": "u"}, cost=100_001),
    Request({"user": "u"}, "/orders/1", "NOT A METHOD"),
    Request({"ip": "not an address"}, "/several"),
    Request({"user": "u" * 70_000}, "/orders/1"),
    Request({"user": "\ud800"}, "/orders/1"),
    Request({"user": "u"}, "/orders/1", cost=2**70),
    "not a request",
]


def test_requests_that_cannot_be_decided_are_the_same_errors(pair: Pair) -> None:
    good = Request({"user": "beside"}, "/steps", cost=0)
    for request in UNDECIDABLE:
        assert issubclass(pair.both("check", request), UsageError)
        first, error, last = pair.both("check_batch", [good, request, good])
        assert (first.allowed, issubclass(error, UsageError), last.allowed) == (True, True, True)


MISUSE: list[tuple[str, tuple[Any, ...]]] = [
    ("check_once", (Request({"user": "u"}, "/orders/1"), "")),
    ("check_once", (Request({"user": "u"}, "/none"), None)),
    ("check_once", (Request({"user": "u"}, "/orders/1"), "k" * 513)),
    ("refund", (Request({"user": "u"}, "/orders/1"), 5)),
    ("refund", (Request({"user": "\ud800"}, "/orders/1"), "AQAAAAAAAAAB9Dp4bQAGN52gW2AA")),
    ("reset", (Request({"user": "\ud800"}, "/orders/1"),)),
    ("reset_all", (Request({"user": "\ud800"}),)),
    ("reset_all", (Request({7: "u"}),)),  # type: ignore[dict-item]
    ("reset_all", ("not a request",)),
    ("is_passed", ("ada", "")),
]


def test_misuse_of_the_other_verbs_is_an_error_too(pair: Pair) -> None:
    for verb, args in MISUSE:
        for each in (pair.engine, pair.client):
            with pytest.raises(UsageError):
                getattr(each, verb)(*args)


def test_a_reset_of_the_root_leaves_other_paths_alone_and_one_of_all_does_not(pair: Pair) -> None:
    steps = Request({"user": "rooted"}, "/steps")
    pair.both("check", steps)
    assert not pair.both("reset", Request({"user": "rooted"}, ""))
    assert pair.both("peek", steps).decision.remaining == 6
    assert "steps" in pair.both("reset_all", Request({"user": "rooted"}, "/log", rule_id="several")).rules


def test_a_limit_that_has_changed_since_is_decided_by_the_service(pair: Pair) -> None:
    """The tier brings another quota for the same key: its state is carried over."""
    for tier in ("free", "gold", "free"):
        ruling = pair.both("check", Request({"user": "moved"}, "/orders/1", tier=tier))
        assert (ruling.degraded, type(ruling.decision.delay_us)) == ("", int)


def test_errors_and_reasons_have_the_text_of_the_service(pair: Pair) -> None:
    with pytest.raises(UsageError, match="cost 50 is above the capacity of 3/minute fixed_window"):
        pair.client.check(Request({"user": "u"}, "/orders/1", "POST", cost=50))
    with pytest.raises(UsageError, match=r"charge_of\(ruling\)"):
        pair.client.refund(Request({"user": "u"}))
    ruling = pair.client.check(Request({"ip": "192.0.2.9"}, "/none"))
    assert (ruling.allowed, ruling.verdict, ruling.decision, ruling.degraded) == (False, "denied", None, "")
    assert "192.0.2.0/24" in ruling.reason


async def test_an_asynchronous_client_gives_equal_results(pair: Pair) -> None:
    request = Request({"user": "lovelace", "ip": "203.0.113.77"}, "/orders/3", "POST")
    async with AsyncClient(pair.address, clock=pair.clock, timeout=600) as client:
        for verb in ("check", "peek", "explain", "reset", "check", "reset_all"):
            theirs = comparable(await getattr(client, verb)(request))
            assert theirs == comparable(getattr(pair.engine, verb)(request)), verb
        assert await client.is_passed("zz", "orders") == pair.engine.is_passed("zz", "orders")
        ruling = await client.check_once(request, "k")
        assert comparable(ruling) == comparable(pair.engine.check_once(request, "k"))
        refunded = await client.refund(ruling)
        assert refunded.decision is not None
        pair.engine.refund(request)
        assert client.policy.ruleset == pair.engine.policy.ruleset
        assert len(await client.check_batch([request, request])) == 2
        pair.engine.check_batch([request, request])
