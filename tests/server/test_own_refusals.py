"""A rule says itself what its refusals say, and with which status, whichever way the request comes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate import Engine, InvalidRule
from headgate.integrations.exchange import Exchange
from headgate.integrations.limiter import RequestLimiter
from headgate.policy.dumping import to_yaml
from headgate.policy.loading import load
from headgate.policy.model import Rule
from headgate.server.api.forward_auth import ForwardAuth
from tests.server.authz.conftest import asking
from tests.server.rls.conftest import (
    Asking,
    in_memory,  # noqa: F401  a fixture
)
from tests.server.rls.messages import descriptor
from tests.server.serving import problem, serving

MESSAGE = "Your plan has 1 call a day. <Upgrade> at https://example.com/plans"
RULES = f"""
rules:
  - {{id: calls, limit: 1, window: 365d, dimension: ip, algorithm: fixed_window, refusal_status: 402,
     refusal_message: '{MESSAGE}'}}
"""
FILE = f"version: 1\n{RULES}"
CLIENT = "203.0.113.9"
PROXY = [("X-Original-URI", "/"), ("X-Original-Method", "GET"), ("X-Forwarded-For", CLIENT)]


def is_own(document: dict[str, Any], status: int = 402) -> bool:
    """Is it the problem document of the rule, with all that others have?"""
    told = document["status"], document["detail"], document["violated-policies"], document["limit"]
    return told == (status, MESSAGE, ["calls"], 1) and document["retry_after"] > 0


@pytest.mark.parametrize(("deny_status", "status"), [(429, 402), (403, 403)], ids=["any", "nginx"])
def test_proxies_pass_it_on(deny_status: int, status: int) -> None:
    with serving(FILE, forward_auth=ForwardAuth(deny_status=deny_status)) as service:
        first, second = [service.send("GET", "/api/v1/forward-auth", b"", PROXY) for _ in range(2)]
        assert first.status == 200
        assert is_own(problem(second, status))
        assert b"<" not in second.body


def test_envoy_gets_it_by_external_authorization() -> None:
    with asking(FILE) as found:
        assert found.ask().status == 200
        answer = found.ask()
        assert answer.status == 402
        assert is_own(answer.problem)


def test_envoys_rate_limit_filter_gets_the_message_and_has_a_status_of_its_own(in_memory: Asking) -> None:  # noqa: F811
    in_memory.serve(RULES)
    _, refused = [in_memory.ask(descriptor(("remote_address", CLIENT))) for _ in range(2)]
    assert is_own(json.loads(refused.raw_body), 429)


def test_the_check_says_it_to_whoever_answers_the_client() -> None:
    asked = {"principal": {"ip": CLIENT, "tenannt": "acme"}, "endpoint": "/"}
    with serving(FILE) as service:
        admitted, refused = [service.check(asked) for _ in range(2)]
        assert "refusal" not in admitted
        assert refused["refusal"] == {"status": 402, "message": MESSAGE}
        assert refused["unmatched_principals"] == ["tenannt"]


def test_frameworks_answer_with_it() -> None:
    with Engine(load(FILE)) as engine:
        gate = RequestLimiter({"engine": engine})
        _, refused = [gate.check(Exchange(gate, {}, CLIENT, [], "/", "GET"), gate.budgets, "route") for _ in range(2)]
    assert refused is not None
    assert (refused.status, refused.detail) == (402, MESSAGE)
    assert is_own(json.loads(refused.problem.body))


def test_a_new_message_is_said_at_once() -> None:
    with serving(FILE) as service:
        told = [service.send("GET", "/api/v1/forward-auth", b"", PROXY) for _ in range(2)]
        rule = service.decisions.engine.policy.rules["calls"].rule
        object.__setattr__(rule, "refusal_message", "Not today.")  # as a reload that keeps the quotas
        told.append(service.send("GET", "/api/v1/forward-auth", b"", PROXY))
    assert [json.loads(each.body)["detail"] for each in told[1:]] == [MESSAGE, "Not today."]


def test_it_is_written_as_it_is_read() -> None:
    assert load(to_yaml(load(FILE))) == load(FILE)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"refusal_status": 200}, "refusal_status is a whole number from 400 to 599"),
        ({"refusal_message": "two\nlines"}, "refusal_message is a line of at most 500 printable characters"),
        ({"refusal_message": "x" * 501}, "refusal_message is a line of at most 500 printable characters"),
    ],
)
def test_what_cannot_be_sent_is_refused(wrong: dict[str, Any], told: str) -> None:
    rule = load(FILE).rules[0]
    with pytest.raises(InvalidRule, match=told):
        Rule("calls", rule.quotas, **wrong)
    with pytest.raises(InvalidRule, match=r"rules:4:97: .* not a whole number from 400 to 599"):
        load(FILE.replace("refusal_status: 402", "refusal_status: 200"))
