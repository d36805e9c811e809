"""A rule sets the status and the message of its refusals, over every protocol."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate import Engine, InvalidRule, Rule
from headgate.integrations.exchange import Exchange
from headgate.integrations.limiter import RequestLimiter
from headgate.policy.loading import load
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
    shown = document["status"], document["detail"], document["violated-policies"], document["limit"]
    return shown == (status, MESSAGE, ["calls"], 1) and document["retry_after"] > 0


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


def test_the_check_returns_it() -> None:
    payload = {"principal": {"ip": CLIENT, "tenannt": "acme"}, "endpoint": "/"}
    with serving(FILE) as service:
        admitted, refused = [service.check(payload) for _ in range(2)]
        assert "refusal" not in admitted
        assert refused["refusal"] == {"status": 402, "message": MESSAGE}
        assert refused["unmatched_principals"] == ["tenannt"]


def test_frameworks_answer_with_it() -> None:
    with Engine(load(FILE)) as engine:
        limiter = RequestLimiter({"engine": engine})
        _, refused = [
            limiter.check(Exchange(limiter, {}, CLIENT, [], "/", "GET"), limiter.budgets, "route") for _ in range(2)
        ]
    assert refused is not None
    assert (refused.status, refused.detail) == (402, MESSAGE)
    assert is_own(json.loads(refused.problem.body))


def test_a_new_message_applies_at_once() -> None:
    with serving(FILE) as service:
        shown = [service.send("GET", "/api/v1/forward-auth", b"", PROXY) for _ in range(2)]
        rule = service.decisions.engine.policy.rules["calls"].rule
        object.__setattr__(rule, "refusal_message", "Not today.")  # as a reload that keeps the quotas
        shown.append(service.send("GET", "/api/v1/forward-auth", b"", PROXY))
    assert [json.loads(each.body)["detail"] for each in shown[1:]] == [MESSAGE, "Not today."]


def test_invalid_refusals_are_rejected() -> None:
    line = "refusal_message .* a line of at most 500 printable characters"
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"refusal_status": 200}, "refusal_status must be a whole number from 400 to 599"),
        *[({"refusal_message": text}, line) for text in ("two\nlines", "x" * 501)],
    ]
    for given, shown in wrong:
        with pytest.raises(InvalidRule, match=shown):
            Rule("calls", load(FILE).rules[0].quotas, **given)
    with pytest.raises(InvalidRule, match=r"rules:4:97: .* not a whole number from 400 to 599"):
        load(FILE.replace("refusal_status: 402", "refusal_status: 200"))
