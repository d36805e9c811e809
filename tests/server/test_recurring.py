"""Requests with the same bytes are parsed once, and decided as if they were new. `tests/server/rls` has Envoy's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from inspect import getclosurevars
from typing import Any

import pytest

from headgate.engine.verbs import _Fixed
from headgate.policy.compiled import Policy
from headgate.policy.loading import load
from headgate.protos import message_class
from headgate.server.api.bodies import Timestamps
from headgate.server.api.checks import Checks
from headgate.server.api.routes import BATCH
from headgate.server.recurring import LARGEST_RECURRING, LONGEST_RECURRING
from headgate.server.rpc.ratelimiter import RateLimiter
from headgate.server.wire.grpc.calls import RpcError, UnaryCall, answer_of
from headgate.testing import ManualClock
from headgate.web.headers import MOST_SHOWN
from tests.server.serving import Service, problem, serving

START = ManualClock.START // 1_000_000
RULES = "version: 1\nrules: [{id: per-user, limit: 5, window: 1m}, {id: by-ip, dimension: ip, limit: 9, window: 1m}]"
ADA = {"principal": {"user": "ada"}}
ASKED: list[dict[str, Any]] = [{**ADA, "endpoint": "/a", "method": "GET"}, {"identifier": "ada", "rule_id": "per-user"}]
BY_KEY = {"key_type": "user", "key_value": "ada", "rule_id": "per-user", "request_count": 1}


class OverHttp:
    forms = (*ASKED, BY_KEY)

    def __init__(self, rules: str) -> None:
        self._serving = serving(rules)
        self.service = self._serving.__enter__()
        self.remembers, self.engine = self._made(self.service)

    def _made(self, service: Service) -> tuple[Any, Any]:
        checks = getclosurevars(service.handler).nonlocals["checks"]
        assert isinstance(checks, Checks)
        return checks._recurring, checks._engine

    def close(self) -> None:
        self._serving.__exit__(None, None, None)

    def ask(self, forms: dict[str, Any], key: str = "") -> tuple[int, int]:
        answer = self.service.check(forms, **({"idempotency_key": key} if key else {}))
        return answer["limit"], answer["remaining"]

    def limits(self, *forms: dict[str, Any]) -> list[int]:
        answer = json.loads(self.service.post({"requests": forms}, BATCH.decode()).body)
        return [each["limit"] for each in answer["results"]]

    def mistake(self, forms: dict[str, Any]) -> str:
        return str(problem(self.service.post(forms))["detail"])


class OverGrpc(OverHttp):
    forms = (*ASKED, {"identifier": "ada", "dimension": "USER"})

    def _made(self, service: Service) -> tuple[Any, Any]:
        limiter = RateLimiter(service.decisions, Timestamps())
        self._methods = limiter.methods()
        return limiter._recurring, limiter._decisions.engine

    def _called(self, method: str, kind: str, fields: dict[str, Any], key: str = "") -> Any:
        request, response = (message_class(f"headgate.v1.{kind}{end}") for end in ("Request", "Response"))
        call = UnaryCall(request(**fields).SerializeToString(), [(b"idempotency-key", key.encode())] if key else [])
        return response.FromString(self.service.run(lambda: answer_of(self._methods[method], call)))

    def ask(self, forms: dict[str, Any], key: str = "") -> tuple[int, int]:
        reply = self._called("CheckRateLimit", "Check", forms, key)
        return reply.limit, reply.remaining

    def limits(self, *forms: dict[str, Any]) -> list[int]:
        reply = self._called("CheckRateLimitBatch", "CheckBatch", {"requests": forms})
        return [each.response.limit for each in reply.results]

    def mistake(self, forms: dict[str, Any]) -> str:
        with pytest.raises(RpcError) as raised:
            self.ask(forms)
        return raised.value.message


Serve = Callable[[str], OverHttp]


@pytest.fixture(params=[OverHttp, OverGrpc])
def serve(request: pytest.FixtureRequest) -> Iterator[Serve]:
    made: list[OverHttp] = []

    def make(rules: str) -> OverHttp:
        made.append(request.param(rules))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("form", range(3))
def test_recurring_checks_follow_the_rules_in_force(serve: Serve, form: int) -> None:
    client = serve(RULES)
    check = client.forms[form]
    for number in (5, 7, 6):
        changed = load(RULES.replace("limit: 5", f"limit: {number}"))
        client.engine._verbs._rules = _Fixed(Policy(changed))
        assert [client.ask(check)[0] for _ in range(3)] == [number] * 3
        assert client.limits(check, check) == [number] * 2
        client.ask({"principal": {"user": "bob"}})
        assert len(client.remembers) <= 2, "what was understood by other rules is forgotten"


@pytest.mark.parametrize("form", range(3))
def test_recurring_checks_follow_the_end_of_an_override(serve: Serve, form: int) -> None:
    override = "{per-user: {limit: 8, until: 2025-06-15T15:07:00Z}}"
    client = serve(f"{RULES}\nusers: {{ada: {{overrides: {override}}}}}")
    limits = []
    for _ in range(4):
        limits.append(client.ask(client.forms[form])[0])
        client.service.clock.advance(10)
    assert limits == [8, 8, 5, 5]


def test_recurring_checks_keep_their_keys_and_timestamps(serve: Serve) -> None:
    client = serve(RULES)
    assert [client.ask(ADA, key)[1] for key in ("", "k", "k", "")] == [4, 3, 3, 2]
    old = {**ADA, "timestamp": START}
    assert client.ask(old)[1] == 1
    client.service.clock.advance(100)
    assert "behind the service's clock" in client.mistake(old)


def test_large_and_invalid_checks_are_not_cached(serve: Serve) -> None:
    client = serve(RULES)
    names = {f"a{number}": "" for number in range(LARGEST_RECURRING)}
    for forms in ({"principal": {"user": "a" * LONGEST_RECURRING}}, {**ADA, "attributes": names}):
        client.ask(forms)
        assert not client.remembers
    assert client.mistake({"identifier": "ada"})
    assert not client.remembers
    client.ask(ADA)
    assert len(client.remembers) == 1
    nobody = {"principal": {"user": ""}}
    assert client.mistake(nobody) == client.mistake(nobody)


def test_checks_of_many_limits_are_not_cached(serve: Serve) -> None:
    rules = ", ".join([f"{{id: r{number}, limit: 5, window: 1m}}" for number in range(MOST_SHOWN + 1)])
    client = serve(f"version: 1\nrules: [{rules}]")
    left = [client.ask(ADA)[1] for _ in range(3)]
    (understood,) = client.remembers.values()
    assert (left, understood.selected) == ([4, 3, 2], None)
