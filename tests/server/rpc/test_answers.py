"""Answers that are put together from pieces are those that protobuf writes of the same facts."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.engine import Ruling
from headgate.policy.selection import Verdict
from headgate.protos import message_class
from headgate.server.rpc.answers import RpcAnswers
from tests.server.api.test_answers import rulings
from tests.web import plain
from tests.web.plain import NOW

CheckResponse, QuotaResponse = (message_class(f"headgate.v1.{name}Response") for name in ("Check", "Quota"))
STATES = {Pressure.NORMAL: 0, Pressure.WARNING: 1, Pressure.THROTTLED: 2}
ANSWERS = RpcAnswers()


def limit(rule_id: str, decision: Decision) -> dict[str, Any]:
    return {
        "rule_id": rule_id,
        "allowed": decision.allowed,
        "limit": decision.limit,
        "remaining": decision.remaining,
        "reset_at": plain.seconds(NOW + decision.reset_after_us),
        "retry_after": 0 if decision.allowed else plain.wait(decision),
        "state": STATES[decision.state],
    }


def written(kind: Any, ruling: Ruling) -> bytes:
    decision = ruling.decision
    facts = {"allowed": ruling.allowed, "matched": ruling.matched, "reason": ruling.reason}
    facts |= {"state": STATES[ruling.state], "unmatched_principals": ruling.unmatched_principals}
    if decision is not None:
        facts |= limit(ruling.rule_id, decision)
        facts |= {"current_count": decision.limit - decision.remaining, "delay": decision.delay_us / 1_000_000}
        facts |= {"degraded": decision.degraded != "", "reason": decision.degraded}
    told = {"limits": ruling.limits, "shadow": ruling.shadow}
    lists = {name: [limit(each.rule_id, each.decision) for each in limits] for name, limits in told.items()}
    encoded: bytes = kind(**facts, **lists).SerializeToString(deterministic=True)
    return encoded


@given(rulings(), st.booleans())
def test_an_answer_is_what_protobuf_writes(ruling: Ruling, refundable: bool) -> None:  # noqa: FBT001  drawn
    answer = ANSWERS.of(ruling, NOW, refundable=refundable)
    assert answer == written(CheckResponse, ruling) == written(QuotaResponse, ruling)


def test_numbers_that_are_below_0_are_written_as_protobuf_does() -> None:
    decision = Decision(True, 1, 3, 0, 10, Pressure.NORMAL, plain.QUOTAS[0])
    ruling = Ruling(True, Verdict.LIMITED, msgspec.structs.replace(decision, limit=3, remaining=7), "a", ("a",))
    assert CheckResponse.FromString(ANSWERS.of(ruling, NOW)).current_count == -4
