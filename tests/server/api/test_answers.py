"""Responses assembled from pieces equal plainly encoded ones, as JSON and by protobuf."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate import Decision, Pressure, Ruling, StoreUnavailable
from headgate.policy.selection import Verdict
from headgate.protos import message_class
from headgate.server.api.answers import CheckAnswers
from headgate.server.api.checks import problem_of, problem_response
from headgate.server.rpc.answers import RpcAnswers
from headgate.web.headers import MOST_SHOWN
from tests.web import plain
from tests.web.plain import NOW

RULES = ("orders-user", "x/y:z.1_", "orders-user", "a")


@st.composite
def rulings(draw: st.DrawFn) -> Ruling:
    unmatched = draw(st.sampled_from([(), ("zone",), ('a"b', "\u00e9")]))
    tried = draw(st.lists(plain.single_decisions(), max_size=2))
    shadow = tuple([f"trial-{place}" for place in range(len(tried))]), tuple(tried)
    if draw(st.sampled_from([False] * 4 + [True])):
        allowed, matched = draw(st.booleans()), draw(st.booleans())
        verdict = Verdict.UNLIMITED if allowed else Verdict.DENIED
        return Ruling(allowed, verdict, None, "", (), *shadow, matched, 'on a "list"', 1, unmatched)
    decision = draw(plain.decisions())
    rules, rule_id = RULES[: len(decision.limits)], RULES[decision.index]
    return Ruling(decision.allowed, Verdict.LIMITED, decision, rule_id, rules, *shadow, True, "", 1, unmatched)


def limit(rule_id: str, decision: Decision) -> dict[str, Any]:
    return {
        "rule_id": rule_id,
        "allowed": decision.allowed,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "reset_at": plain.seconds(NOW + decision.reset_after_us),
        "retry_after": 0 if decision.allowed else plain.wait(decision),
        "state": str(decision.state),
    }


def answer(ruling: Ruling) -> dict[str, Any]:
    decision = ruling.decision
    numbers: dict[str, Any] = dict.fromkeys(("limit", "remaining", "reset_at"))
    numbers |= {"retry_after": 0 if ruling.allowed else None, "current_count": None}
    if decision is not None:
        listed = limit(ruling.rule_id, decision)
        numbers = {name: listed[name] for name in ("limit", "remaining", "reset_at", "retry_after")}
        numbers["current_count"] = decision.limit - decision.remaining
    return {
        "allowed": ruling.allowed,
        **numbers,
        "rule_id": ruling.rule_id,
        "state": str(ruling.state),
        "degraded": ruling.degraded != "",
        "matched": ruling.matched,
        "reason": ruling.reason or ruling.degraded,
        "delay": decision.delay_us / 1_000_000 if decision is not None else 0.0,
        "limits": [limit(each.rule_id, each.decision) for each in ruling.limits],
        "shadow": [limit(each.rule_id, each.decision) for each in ruling.shadow],
        "unmatched_principals": list(ruling.unmatched_principals),
    }


@pytest.mark.parametrize("reset_format", ["epoch", "seconds"])
@given(st.lists(rulings(), min_size=1, max_size=3))
def test_responses_do_not_depend_on_earlier_ones(reset_format: str, several: list[Ruling]) -> None:
    answers = CheckAnswers(reset_format)
    for ruling in (*several, *several):
        response = answers.response(ruling, NOW)
        assert list(json.loads(response.body).items()) == list(answer(ruling).items())
        expected = []
        if ruling.decision is not None:
            names = [each.rule_id for each in ruling.limits]
            expected = plain.header_fields(ruling.decision, names, reset_format=reset_format, ietf="off")
        fields = [(name.lower().encode(), value.encode()) for name, value in expected]
        assert response.headers == ((b"content-type", b"application/json"), *fields)


def test_a_store_that_does_not_answer_is_not_the_clients_fault() -> None:
    response = problem_response(problem_of(StoreUnavailable("away")))
    assert response.status == 503
    assert (b"retry-after", b"1") in response.headers


def test_many_limits_are_all_listed() -> None:
    parts = tuple([Decision(False, 3, 0, 1, 1, Pressure.THROTTLED, plain.QUOTAS[0])] * (MOST_SHOWN + 1))
    ruling = Ruling(False, Verdict.LIMITED, replace(parts[0], parts=parts), "a", ("a",) * len(parts), matched=True)
    answers = CheckAnswers()
    assert json.loads(answers.response(ruling, NOW).body) == answer(ruling)


CheckResponse, QuotaResponse = (message_class(f"headgate.v1.{name}Response") for name in ("Check", "Quota"))
STATES = {Pressure.NORMAL: 0, Pressure.WARNING: 1, Pressure.THROTTLED: 2}
ANSWERS = RpcAnswers()


def message_limit(rule_id: str, decision: Decision) -> dict[str, Any]:
    return limit(rule_id, decision) | {"state": STATES[decision.state]}


def written(kind: Any, ruling: Ruling) -> bytes:
    decision = ruling.decision
    facts = {"allowed": ruling.allowed, "matched": ruling.matched, "reason": ruling.reason}
    facts |= {"state": STATES[ruling.state], "unmatched_principals": ruling.unmatched_principals}
    if decision is not None:
        facts |= message_limit(ruling.rule_id, decision)
        facts |= {"current_count": decision.limit - decision.remaining, "delay": decision.delay_us / 1_000_000}
        facts |= {"degraded": decision.degraded != "", "reason": decision.degraded}
    listed = {"limits": ruling.limits, "shadow": ruling.shadow}
    lists = {name: [message_limit(each.rule_id, each.decision) for each in limits] for name, limits in listed.items()}
    encoded: bytes = kind(**facts, **lists).SerializeToString(deterministic=True)
    return encoded


@given(rulings(), st.booleans())
def test_responses_are_those_of_protobuf(ruling: Ruling, refundable: bool) -> None:  # noqa: FBT001  drawn
    answer = ANSWERS.of(ruling, NOW, refundable=refundable)
    assert answer == written(CheckResponse, ruling) == written(QuotaResponse, ruling)


def test_numbers_that_are_below_0_are_written_as_protobuf_does() -> None:
    decision = Decision(True, 1, 3, 0, 10, Pressure.NORMAL, plain.QUOTAS[0])
    ruling = Ruling(True, Verdict.LIMITED, msgspec.structs.replace(decision, limit=3, remaining=7), "a", ("a",))
    assert CheckResponse.FromString(ANSWERS.of(ruling, NOW)).current_count == -4
