"""Answers that are put together from pieces are those that are written out plainly."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headgate import StoreUnavailable
from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.engine import Ruling
from headgate.policy.selection import Verdict
from headgate.server.api.answers import CheckAnswers
from headgate.server.api.checks import problem_of, problem_response
from headgate.web.headers import MOST_PREPARED, MOST_SHOWN
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
        told = limit(ruling.rule_id, decision)
        numbers = {name: told[name] for name in ("limit", "remaining", "reset_at", "retry_after")}
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
def test_whatever_was_answered_before(reset_format: str, asked: list[Ruling]) -> None:
    answers = CheckAnswers(reset_format)
    for ruling in (*asked, *asked):
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


def test_what_is_prepared_is_bounded() -> None:
    answers = CheckAnswers()
    for number in range(MOST_PREPARED + 100):
        decision = Decision(True, 3, 2, 0, 0, Pressure.NORMAL, plain.QUOTAS[0])
        answers.response(Ruling(True, Verdict.LIMITED, decision, f"rule-{number}", (f"rule-{number}",)), NOW)
    assert len(answers._prepared) <= MOST_PREPARED


def test_many_limits_are_all_told() -> None:
    parts = tuple([Decision(False, 3, 0, 1, 1, Pressure.THROTTLED, plain.QUOTAS[0])] * (MOST_SHOWN + 1))
    ruling = Ruling(False, Verdict.LIMITED, replace(parts[0], made_of=parts), "a", ("a",) * len(parts), matched=True)
    answers = CheckAnswers()
    assert json.loads(answers.response(ruling, NOW).body) == answer(ruling)


ONE = Decision(False, 3, 0, 2_000_000, 3_000_000, Pressure.THROTTLED, plain.QUOTAS[0])
OTHERS: list[dict[str, Any]] = [
    {"limit": 4},
    {"remaining": 1},
    {"retry_after_us": 3_000_000},
    {"reset_after_us": 9_000_000},
    {"delay_us": 1_500_000},
    {"degraded": "storage_unavailable"},
    {"allowed": True, "state": Pressure.NORMAL, "retry_after_us": 0},
    {"allowed": True, "state": Pressure.WARNING, "retry_after_us": 0},
]


@pytest.mark.parametrize("reset_format", ["epoch", "seconds"])
def test_a_remembered_answer_is_given_only_where_nothing_it_says_differs(reset_format: str) -> None:
    decisions = [ONE, *[replace(ONE, **other) for other in OTHERS]]
    decisions += [replace(ONE, made_of=(ONE, each), index=index) for each in decisions for index in (0, 1)]
    rulings = []
    for decision in decisions:
        for rules in (RULES, RULES[1:]):
            several = rules[: len(decision.limits)]
            for tried in ((), (ONE,), (decisions[2],)):
                about = decision.allowed, Verdict.LIMITED, decision, rules[decision.index], several
                shadow = ("trial",) * len(tried)
                rulings += [Ruling(*about, shadow, tried, True, "", 1, names) for names in ((), ("zone",))]
    answers = CheckAnswers(reset_format)
    for ruling in (*rulings, *rulings):
        for later in (0, 1_000_000):
            fresh = CheckAnswers(reset_format).response(ruling, NOW + later)
            assert answers.response(ruling, NOW + later) == fresh
