"""Answers by template are those that are written out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Quota, StoreUnavailable
from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.engine import Ruling
from headgate.policy.selection import Verdict
from headgate.server.api.answer import Answers
from headgate.server.api.checks import problem_of, problem_response
from headgate.testing import ManualClock
from headgate.web.headers import ResponseHeaders

QUOTAS = [Quota.parse(text)[0] for text in ("10/minute", "1000/hour burst 50", "3/s fixed_window")]
seconds = st.integers(0, 10**9)


@st.composite
def rulings(draw: st.DrawFn) -> Ruling:
    quota = draw(st.sampled_from(QUOTAS))
    rule_id = draw(st.sampled_from(["a", "orders-user", "x/y:z.1_"]))
    allowed = draw(st.booleans())
    state = draw(st.sampled_from(Pressure)) if allowed else Pressure.THROTTLED
    decision = Decision(
        allowed,
        quota.capacity,
        draw(st.integers(0, quota.capacity)),
        0 if allowed else draw(seconds),
        draw(seconds),
        state,
        quota,
        draw(st.sampled_from([0, 0, 1_500_000])),
        degraded=draw(st.sampled_from(["", "", "storage_unavailable"])),
    )
    return Ruling(allowed, Verdict.LIMITED, decision, rule_id, (rule_id,), (), matched=True)


@pytest.mark.parametrize("reset_format", ["seconds", "epoch"])
@given(st.lists(rulings(), max_size=20), st.integers(0, 10**8))
def test_whatever_was_answered_before(reset_format: str, asked: list[Ruling], later: int) -> None:
    answers = Answers(ResponseHeaders(ietf="off", reset_format=reset_format))
    now = ManualClock.START + later
    for ruling in asked:
        response, expected = answers.response(ruling, now), answers.written_out(ruling, now)
        assert response.body == expected.body
        assert sorted(response.headers) == sorted(expected.headers)


def test_a_store_that_does_not_answer_is_not_the_clients_fault() -> None:
    response = problem_response(problem_of(StoreUnavailable("away")))
    assert response.status == 503
    assert (b"retry-after", b"1") in response.headers


def test_what_is_remembered_is_bounded() -> None:
    answers = Answers(ResponseHeaders(ietf="off"))
    for number in range(10_000):
        decision = Decision(True, 10, 9, 0, 0, Pressure.NORMAL, QUOTAS[0])
        answers.response(Ruling(True, Verdict.LIMITED, decision, f"rule-{number}"), ManualClock.START)
    assert len(answers._known) <= 4096
