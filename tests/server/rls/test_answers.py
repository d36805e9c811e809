"""Responses assembled from pieces equal those that protobuf encodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st

from headgate import Decision, Pressure, Quota, ResponseHeaders, Ruling
from headgate.core.plan import combine
from headgate.engine.descriptors import Answered
from headgate.policy.envoy import Descriptor, MatchOutcome, envoy_answer, load, passed_metadata
from headgate.policy.selection import Verdict
from headgate.protos import RateLimitResponse
from headgate.server.rls.answers import RlsAnswer, RuleAnswers, TreeAnswers, nearest_unit
from tests.server.rls.messages import OK, OVER_LIMIT
from tests.web import plain
from tests.web.plain import NOW

HEADERS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "default": {},
    "seconds": {"reset_format": "seconds"},
    "legacy": {"ietf": "off"},
    "standard": {"legacy": False},
}
RULES = ("orders", "per-user", "orders")
CHOSEN = st.sampled_from(list(HEADERS))


def headers_of(chosen: str) -> ResponseHeaders | None:
    settings = HEADERS[chosen]
    return None if settings is None else ResponseHeaders(**settings)


@cache
def by_rules(chosen: str, denies: bool) -> RuleAnswers:  # noqa: FBT001  a key
    """Return the writer of responses, which has those of earlier tests prepared."""
    return RuleAnswers(headers_of(chosen), lambda _: denies)


@cache
def by_trees(chosen: str, denies: bool) -> TreeAnswers:  # noqa: FBT001  a key
    return TreeAnswers(headers_of(chosen), denies=denies, with_metadata=True)


class Reference:
    def __init__(self, chosen: str) -> None:
        self.headers, self.answer = chosen, RateLimitResponse()

    def status(self, code: int, limit: tuple[int, int, str] | None, remaining: int, until: int) -> None:
        status = self.answer.statuses.add(code=code, limit_remaining=remaining)
        if limit is not None:
            status.current_limit.requests_per_unit, status.current_limit.unit, status.current_limit.name = limit
        if limit is not None or until:
            status.duration_until_reset.seconds = until

    def decided(self, decision: Decision, names: Sequence[str], *, is_ours: bool) -> None:
        settings = HEADERS[self.headers]
        shown, names = plain.shown(decision, names)
        if settings is not None:
            self.fields(plain.header_fields(shown, names, **settings))
        if self.answer.overall_code == OVER_LIMIT:
            self.document(plain.refusal(shown, names, is_ours=is_ours))

    def refused(self, detail: str) -> None:
        self.fields([("Cache-Control", "no-store")])
        self.document({"status": 429, "title": "Too Many Requests", "detail": detail})

    def document(self, problem: dict[str, Any]) -> None:
        self.fields([("content-type", "application/problem+json")])
        self.answer.raw_body = json.dumps(problem, separators=(",", ":")).encode()

    def fields(self, pairs: Sequence[tuple[str, str]]) -> None:
        for key, value in pairs:
            self.answer.response_headers_to_add.add(key=key, value=value)

    def describe(self, facts: dict[str, Any], **more: Any) -> None:
        self.answer.dynamic_metadata.update({"headgate": facts, **more})

    def is_same_as(self, answer: RlsAnswer) -> None:
        """Compare, field by field and byte by byte; but a mapping has no order."""
        found = RateLimitResponse.FromString(answer.raw)
        assert found == self.answer
        assert MessageToDict(found) == MessageToDict(self.answer)
        assert answer.allowed == (self.answer.overall_code == OK)
        found.ClearField("dynamic_metadata")  # which comes last
        assert answer.raw.startswith(found.SerializeToString())


def ruling_of(decision: Decision, names: Sequence[str], shadow: Sequence[tuple[str, Decision]] = ()) -> Ruling:
    tried = tuple([name for name, _ in shadow]), tuple([part for _, part in shadow])
    about = decision.allowed, Verdict.LIMITED, decision, names[decision.index], tuple(names)
    return Ruling(*about, *tried, matched=True)


@st.composite
def rulings(draw: st.DrawFn) -> Ruling:
    kind = draw(st.sampled_from(["limited"] * 6 + ["unlimited", "denied", "too much"]))
    shadow = draw(st.lists(st.tuples(st.sampled_from(["trial", "other"]), plain.single_decisions()), max_size=2))
    if kind == "unlimited":
        tried = tuple([name for name, _ in shadow]), tuple([each for _, each in shadow])
        return Ruling(True, Verdict.UNLIMITED, None, "", (), *tried)
    if kind == "denied":
        return Ruling(False, Verdict.DENIED, reason="on the deny list")
    decision = draw(plain.decisions(3))
    names = [*RULES[: len(decision.limits)]]
    if kind == "too much" and not decision.allowed:
        about = decision, names[decision.index], tuple(names)
        return Ruling(False, Verdict.LIMITED, *about, reason="cost 9 could never pass")
    return ruling_of(decision, names, shadow)


@given(st.lists(st.tuples(rulings(), st.booleans()), min_size=1, max_size=3), CHOSEN, st.booleans())
def test_responses_by_rules_are_those_of_protobuf(
    asked: list[tuple[Ruling, bool]],
    chosen: str,
    denies: bool,  # noqa: FBT001  hypothesis has no names
) -> None:
    reference = Reference(chosen)
    for ruling, refund in asked:
        decision = ruling.decision
        if decision is None:
            reference.status(OK if ruling.allowed or refund else OVER_LIMIT, None, 0, 0)
            continue
        limit = decision.quota.capacity, nearest_unit(decision.quota.window_us), ruling.rule_id
        if decision.allowed or refund:
            reference.status(OK, limit, decision.remaining, plain.seconds(decision.reset_after_us))
        else:
            reference.status(OVER_LIMIT, limit, 0, plain.wait(decision))
    counted = [ruling for ruling, refund in asked if ruling.allowed or not refund]
    facts: dict[str, Any] = {}
    shadowed = [each.rule_id for ruling in counted for each in ruling.shadow if not each.decision.allowed]
    if shadowed:
        facts["shadow_denied"] = list(dict.fromkeys(shadowed))
    hopeless = [ruling for ruling in counted if not ruling.allowed and ruling.reason]
    limits = [each for ruling in counted for each in ruling.limits]
    if hopeless:
        reference.answer.overall_code = OVER_LIMIT
        denied = hopeless[0].verdict is Verdict.DENIED
        reference.refused("This client is not admitted." if denied else hopeless[0].reason)
        facts |= {"state": "throttled", "reason": hopeless[0].reason}
    elif not limits:
        reference.answer.overall_code = OK
        facts["state"] = "normal"
    else:
        names, decision = [each.rule_id for each in limits], combine([each.decision for each in limits])
        reference.answer.overall_code = OK if decision.allowed else OVER_LIMIT
        reference.decided(decision, names, is_ours=denies and decision.degraded != "")
        facts |= {"rule_id": names[decision.index], "state": str(decision.state)}
        facts |= {"degraded": decision.degraded} if decision.degraded else {}
        facts |= {"delay": decision.delay_us / 1_000_000} if decision.delay_us else {}
    reference.describe(facts)
    writer = by_rules(chosen, denies)
    refunds = [refund for _, refund in asked]
    for _ in range(2):  # with what was prepared the first time
        reference.is_same_as(writer.of([ruling for ruling, _ in asked], NOW, refunds if any(refunds) else ()))


TREE = """
domain: edge
descriptors:
  - {key: plain, rate_limit: {unit: hour, requests_per_unit: 2, name: plain}, metadata: {owner: {team: web}}}
  - {key: unnamed, rate_limit: {unit: week, requests_per_unit: 5}, metadata: {owner: {team: x, room: 7}, rule_id: mine}}
  - {key: burst, rate_limit: {unit: minute, requests_per_unit: 4, algorithm: gcra, burst: 2, name: b}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 9, name: trial}}
  - {key: odd, rate_limit: {unit: second, unit_multiplier: 45, requests_per_unit: 4, name: "n\u00e4me"}}
  - {key: banned, rate_limit: {unit: minute, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: other, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 3, name: q}}
"""
POLICY = load({"tree.yaml": TREE})
KEYS = ("plain", "unnamed", "burst", "trial", "odd", "banned", "free", "quota", "other", "nobody")


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), plain.single_decisions(), st.booleans()), min_size=1, max_size=4),
    CHOSEN,
    st.booleans(),
    st.sampled_from([{}, {"shadow_mode": True}, {"quota_mode": True}]),
)
def test_responses_by_trees_are_those_of_protobuf(
    asked: list[tuple[str, Decision, bool]],
    chosen: str,
    denies: bool,  # noqa: FBT001  hypothesis has no names
    modes: dict[str, bool],
) -> None:
    matching = POLICY.match("edge", [Descriptor(((key, "x"),), 1, refund=refund) for key, _, refund in asked])
    decisions = [_about(match, decision) for match, (_, decision, _) in zip(matching.matches, asked, strict=True)]
    answered = Answered(matching, tuple(decisions), NOW, **modes)
    assert answered.answer == envoy_answer(matching, decisions, NOW, **modes)
    writer = by_trees(chosen, denies)
    for _ in range(2):  # with what was prepared the first time
        _reference(answered, chosen, denies=denies).is_same_as(writer.of(answered)[1])


def _about(match: Any, drawn: Decision) -> Decision | None:
    if not match.limits:
        return None
    quota: Quota = match.limits[0].quota
    remaining = min(drawn.remaining, quota.capacity)
    numbers = drawn.retry_after_us, drawn.reset_after_us, drawn.state, quota
    return Decision(
        drawn.allowed, quota.capacity, remaining, *numbers, degraded="circuit_open" if drawn.delay_us else ""
    )


def _reference(answered: Answered, chosen: str, *, denies: bool) -> Reference:
    reference, answer, matches = Reference(chosen), answered.answer, answered.matching.matches
    reference.answer.overall_code = answer.code
    for status in answer.statuses:
        limit = status.current_limit
        shown = None if limit is None else (limit.requests_per_unit, limit.nearest_unit, limit.name)
        reference.status(status.code, shown, status.limit_remaining, status.duration_until_reset)
    decided = [
        (decision, match.rule.limits[0].name if match.rule.limits[0].name.isascii() else "")
        for match, decision in zip(matches, answered.decisions, strict=True)
        if decision is not None and match.rule is not None and not match.shadow_mode
        if decision.allowed or not match.refund
    ]
    states = {decision.state for decision, _ in decided}
    worst = next((state for state in (Pressure.THROTTLED, Pressure.WARNING) if state in states), Pressure.NORMAL)
    given = passed_metadata(answered.matching, answer)
    facts: dict[str, Any] = {"state": str(worst if answer.code == OK else Pressure.THROTTLED)}
    pairs = list(zip(matches, answer.statuses, strict=True))
    shadowed = [".".join(match.stat) for match, each in pairs if each.over and (match.shadow_mode or answer.shadowed)]
    hopeless = [match for match, each in pairs if each.code == OVER_LIMIT and match.outcome is not MatchOutcome.LIMITED]
    if answer.code == OK:
        decided = [(decision, name) for decision, name in decided if decision.allowed]
    if answer.code == OVER_LIMIT and hopeless:
        reference.refused("The limit of this request is 0, or the request is more than the limit could ever admit.")
        facts |= {"rule_id": hopeless[0].name} if hopeless[0].name else {}
    elif decided:
        decision = combine([decision for decision, _ in decided])
        reference.decided(
            decision, [name or "default" for _, name in decided], is_ours=denies and decision.degraded != ""
        )
        facts |= {"rule_id": decided[decision.index][1]} if decided[decision.index][1] else {}
    facts |= {"shadow_denied": shadowed} if shadowed else {}
    facts |= {"degraded": answer.degraded} if answer.degraded else {}
    reference.describe(facts, **({"metadata": given} if given else {}))
    return reference


def test_a_shared_limit_is_shown_once_and_equal_limits_are_shown_twice() -> None:
    answers = RuleAnswers(ResponseHeaders(), lambda _: False)
    one, same = (Decision(False, 3, 0, 10, 20, Pressure.THROTTLED, plain.QUOTAS[0]) for _ in range(2))
    for other, policies in ((one, ["orders"]), (same, ["orders", "orders#2"])) * 2:
        answer = answers.of([ruling_of(one, ["orders"]), ruling_of(other, ["orders"])], NOW)
        fields = {each.key: each.value for each in RateLimitResponse.FromString(answer.raw).response_headers_to_add}
        assert [item.partition(";")[0] for item in fields["RateLimit"].split(", ")] == [
            f'"{name}"' for name in policies
        ]


def test_the_limit_that_blocks_longest_is_shown_even_within_a_second() -> None:
    answers = TreeAnswers(ResponseHeaders())
    matching = POLICY.match("edge", [Descriptor(((key, "x"),), 1) for key in ("plain", "burst")])
    quotas = [match.limits[0].quota for match in matching.matches]
    for waits, name in (((1_200_000, 1_300_000), "b"), ((1_300_000, 1_200_000), "plain")) * 2:
        decided = [
            Decision(False, quota.capacity, 0, wait, wait, Pressure.THROTTLED, quota)
            for quota, wait in zip(quotas, waits, strict=True)
        ]
        _, answer = answers.of(Answered(matching, tuple(decided), NOW))
        assert RateLimitResponse.FromString(answer.raw).dynamic_metadata["headgate"]["rule_id"] == name
