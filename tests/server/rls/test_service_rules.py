"""Envoy answered by Headgate's rules."""

from __future__ import annotations

import json

import pytest
from google.protobuf.json_format import MessageToDict

from headgate.policy.live import LivePolicy
from headgate.policy.loading import load
from headgate.policy.model import Ruleset
from headgate.server.recurring import LARGEST_RECURRING, LONGEST_RECURRING
from headgate.server.wire.grpc.calls import RpcError, StatusCode
from headgate.testing import ManualClock
from headgate.web.headers import MOST_SHOWN, ResponseHeaders
from tests.server.rls.conftest import Asking
from tests.server.rls.messages import OK, OVER_LIMIT, answered, asked, descriptor, headers

IP = [("remote_address", "203.0.113.9")]
USER = [("user", "ada")]
RULES = """
rules:
  - {id: per-ip, dimension: ip, limit: 3, window: 365d, algorithm: fixed_window, when: {domain: edge}}
  - {id: per-user, dimension: user, limit: 2, window: 365d, algorithm: fixed_window}
  - {id: writes, dimension: user, endpoint: /orders/**, methods: [POST], limit: 1, window: 1d}
  - {id: slow, dimension: generic_key, limit: 1, window: 30s, when: {generic_key: slow}}
deny: [{user: mallory}]
allow: [{user: root}]
"""


class Given:
    """A source of rules that do not change."""

    name = "rules"

    def __init__(self, ruleset: Ruleset) -> None:
        self._ruleset = ruleset

    def read(self) -> Ruleset:
        return self._ruleset

    def changed(self) -> None:
        return None


def test_a_limit_is_kept_and_told(service: Asking) -> None:
    service.serve(RULES)
    answer = service.ask(IP)
    (status,) = answer.statuses
    assert (answer.overall_code, status.code, status.limit_remaining) == (OK, OK, 2)
    limit = status.current_limit
    assert (limit.requests_per_unit, limit.unit, limit.name) == (3, 6, "per-ip")
    assert 1 <= status.duration_until_reset.seconds <= 365 * 86400
    told = headers(answer)
    assert (told["X-RateLimit-Limit"], told["X-RateLimit-Remaining"]) == ("3", "2")
    assert told["RateLimit-Policy"] == '"per-ip";q=3;w=31536000'
    assert MessageToDict(answer.dynamic_metadata)["headgate"] == {"rule_id": "per-ip", "state": "normal"}
    assert [service.codes(IP) for _ in range(3)] == [[OK, OK], [OK, OK], [OVER_LIMIT, OVER_LIMIT]]


def test_a_denial_has_headers_a_problem_document_and_metadata(service: Asking) -> None:
    service.serve(RULES)
    answer = service.ask(IP, hits_addend=3)
    assert answer.overall_code == OK
    answer = service.ask(IP)
    (status,) = answer.statuses
    assert (status.code, status.limit_remaining, status.current_limit.name) == (OVER_LIMIT, 0, "per-ip")
    assert status.duration_until_reset.seconds >= 1
    told = headers(answer)
    assert told["content-type"] == "application/problem+json"
    assert int(told["Retry-After"]) == status.duration_until_reset.seconds
    assert (told["Cache-Control"], told["X-RateLimit-State"]) == ("no-store", "throttled")
    problem = json.loads(answer.raw_body)
    assert (problem["status"], problem["violated-policies"]) == (429, ["per-ip"])
    assert MessageToDict(answer.dynamic_metadata)["headgate"] == {"rule_id": "per-ip", "state": "throttled"}


def test_who_is_refused_is_told_when_the_same_request_would_pass(service: Asking) -> None:
    """Not when all is back: a bucket has room for one again before it is empty."""
    rules = "rules: [{id: bucket, dimension: user, limit: 2, window: 365d, algorithm: token_bucket}]"
    service.serve(rules, headers=ResponseHeaders(reset_format="seconds"))
    assert [service.ask(USER).overall_code for _ in range(2)] == [OK, OK]
    answer = service.ask(USER)
    told = headers(answer)
    seconds = answer.statuses[0].duration_until_reset.seconds
    assert seconds == int(told["Retry-After"])
    assert int(told["X-RateLimit-Reset"]) // 3 < seconds < int(told["X-RateLimit-Reset"]) * 2 // 3


def test_numbers_that_the_protocol_has_no_room_for_are_the_largest_that_it_has(service: Asking) -> None:
    service.serve("rules: [{id: many, dimension: user, limit: 10000000000, window: 365d, algorithm: fixed_window}]")
    answer = service.ask(USER)
    (status,) = answer.statuses
    assert (status.current_limit.requests_per_unit, status.limit_remaining) == (2**32 - 1, 2**32 - 1)
    assert headers(answer)["X-RateLimit-Remaining"] == "9999999999"


def test_descriptors_pass_together_or_not_at_all(service: Asking) -> None:
    service.serve(RULES)
    assert service.codes(IP, USER) == [OK, OK, OK]
    assert service.codes(IP, USER) == [OK, OK, OK]
    answer = service.ask(IP, USER)
    assert [status.code for status in answer.statuses] == [OK, OVER_LIMIT]
    assert [status.limit_remaining for status in answer.statuses] == [1, 0]
    assert headers(answer)["RateLimit-Policy"] == '"per-ip";q=3;w=31536000, "per-user";q=2;w=31536000'
    assert json.loads(answer.raw_body)["violated-policies"] == ["per-user"]
    assert service.codes(IP) == [OK, OK]


def test_each_descriptor_beyond_the_first_is_charged(in_memory: Asking) -> None:
    charged: list[int] = []
    in_memory.serve(RULES, admit_more=lambda requests, _: charged.append(requests))
    for descriptors in ([IP], [IP, USER], [USER, USER, descriptor(*IP, hits=9)]):
        in_memory.ask(*descriptors)
    assert charged == [1, 2]


def test_paths_methods_and_attributes_choose_rules(service: Asking) -> None:
    service.serve(RULES)
    order = [*USER, ("path", "/orders/7?x=1"), ("method", "POST")]
    answer = service.ask(order)
    assert answer.statuses[0].current_limit.name == "writes"
    assert service.codes(order) == [OVER_LIMIT, OVER_LIMIT]
    assert service.codes([*USER, ("path", "/orders/7"), ("method", "GET")]) == [OK, OK]
    answer = service.ask([("generic_key", "slow")])
    limit = answer.statuses[0].current_limit
    assert (limit.requests_per_unit, limit.unit, limit.name) == (1, 2, "slow")  # 30 seconds are nearest to a minute
    assert service.codes([("generic_key", "slow")]) == [OVER_LIMIT, OVER_LIMIT]
    assert service.codes(IP, domain="other") == [OK, OK]
    assert not service.ask(IP, domain="other").statuses[0].HasField("current_limit")


def test_hits_of_the_request_and_of_descriptors(service: Asking) -> None:
    service.serve(RULES)
    assert service.ask(IP, hits_addend=2).statuses[0].limit_remaining == 1
    assert service.ask(descriptor(*IP, hits=0), hits_addend=2).statuses[0].limit_remaining == 1
    answer = service.ask(descriptor(*IP, hits=1), descriptor(*USER, hits=2))
    assert [status.limit_remaining for status in answer.statuses] == [0, 0]
    assert service.codes(descriptor(*IP, hits=0)) == [OVER_LIMIT, OVER_LIMIT]
    assert service.codes(descriptor(*IP, hits=2, refund=True)) == [OK, OK]
    assert service.ask(descriptor(*IP, hits=0)).statuses[0].limit_remaining == 2
    assert service.codes(descriptor(*IP, hits=10**9, refund=True)) == [OK, OK]
    assert service.ask(descriptor(*IP, hits=0)).statuses[0].limit_remaining == 3


@pytest.mark.parametrize("hits", [4, 100_001, 2**40])
def test_more_hits_than_could_ever_pass_are_over_the_limit(service: Asking, hits: int) -> None:
    service.serve(RULES)
    assert service.codes(descriptor(*IP, hits=hits)) == [OVER_LIMIT, OVER_LIMIT]
    assert service.codes(USER, descriptor(*IP, hits=hits)) == [OVER_LIMIT, OK, OVER_LIMIT]
    assert service.ask(descriptor(*USER, hits=0)).statuses[0].limit_remaining == 2


def test_nobody_is_told_to_come_back_with_what_could_never_pass(in_memory: Asking) -> None:
    in_memory.serve(RULES)
    in_memory.ask(USER, hits_addend=2)
    for answer in (in_memory.ask(descriptor(*IP, hits=4)), in_memory.ask(USER, descriptor(*IP, hits=4))):
        assert "Retry-After" not in headers(answer)
        detail = "rule 'per-ip': cost 4 is above the capacity of 3/365d fixed_window, 3: it could never pass"
        assert json.loads(answer.raw_body) == {"status": 429, "title": "Too Many Requests", "detail": detail}
        assert MessageToDict(answer.dynamic_metadata)["headgate"] == {"state": "throttled", "reason": detail}


def test_a_limit_that_descriptors_share_is_told_once(service: Asking) -> None:
    service.serve(RULES)
    answer = service.ask(USER, IP, [*USER, ("generic_key", "x")])
    assert [status.limit_remaining for status in answer.statuses] == [0, 2, 0]
    assert headers(answer)["RateLimit-Policy"] == '"per-user";q=2;w=31536000, "per-ip";q=3;w=31536000'
    assert json.loads(service.ask(USER, USER).raw_body)["violated-policies"] == ["per-user"]


def test_the_delay_of_a_queue_is_told_in_metadata(in_memory: Asking) -> None:
    """Envoy cannot wait, but those behind it can."""
    in_memory.serve("rules: [{id: q, dimension: user, limit: 60, window: 365d, algorithm: leaky_bucket, queue: true}]")
    assert MessageToDict(in_memory.ask(USER).dynamic_metadata)["headgate"] == {"rule_id": "q", "state": "normal"}
    told = MessageToDict(in_memory.ask(USER).dynamic_metadata)["headgate"]
    assert 0 < told["delay"] <= 365 * 86400 / 60


def test_refused_hits_use_up_what_is_left_where_that_is_asked_for(service: Asking) -> None:
    service.serve(RULES, count_refused=True)
    assert service.ask(IP, hits_addend=2).statuses[0].limit_remaining == 1
    assert service.codes(IP, hits_addend=2) == [OVER_LIMIT, OVER_LIMIT]
    assert service.codes(descriptor(*IP, hits=0)) == [OVER_LIMIT, OVER_LIMIT]
    assert service.codes(descriptor(*USER, hits=10**9)) == [OVER_LIMIT, OVER_LIMIT]
    assert service.codes(descriptor(*USER, hits=0)) == [OVER_LIMIT, OVER_LIMIT]
    assert service.codes(descriptor(*USER, hits=1, refund=True)) == [OK, OK]


def test_a_limit_that_comes_with_a_descriptor_is_its_own(service: Asking) -> None:
    service.serve(RULES)
    own = descriptor(*IP, limit=(1, 6))
    limit = service.ask(own).statuses[0].current_limit
    assert (limit.requests_per_unit, limit.unit, limit.name) == (1, 6, "envoy-override")
    assert service.codes(own) == [OVER_LIMIT, OVER_LIMIT]
    assert service.codes(descriptor(("remote_address", "203.0.113.10"), limit=(1, 6))) == [OK, OK]
    assert service.ask(own, domain="other").overall_code == OK
    assert service.ask(descriptor(*IP, hits=0)).statuses[0].limit_remaining == 3
    assert service.codes(descriptor(("user", "mallory"), limit=(1, 6))) == [OVER_LIMIT, OVER_LIMIT]


@pytest.mark.parametrize("limit", [(5, 0), (5, 9), (0, 1)])
def test_a_limit_that_is_none_is_over_the_limit(in_memory: Asking, limit: tuple[int, int]) -> None:
    in_memory.serve(RULES)
    answer = in_memory.ask(USER, descriptor(*IP, limit=limit))
    assert [answer.overall_code, *[status.code for status in answer.statuses]] == [OVER_LIMIT, OK, OVER_LIMIT]
    assert "limit that came with the request" in json.loads(answer.raw_body)["detail"]


def test_lists_hold(in_memory: Asking) -> None:
    in_memory.serve(RULES)
    answer = in_memory.ask([("user", "mallory")])
    assert answer.overall_code == OVER_LIMIT
    assert json.loads(answer.raw_body)["detail"] == "This client is not admitted."
    assert "deny list" in MessageToDict(answer.dynamic_metadata)["headgate"]["reason"]
    assert [in_memory.codes([("user", "root")]) for _ in range(5)] == [[OK, OK]] * 5


def test_what_cannot_be_matched_is_over_the_limit_and_takes_nothing(in_memory: Asking) -> None:
    """An error would let it pass, since Envoy fails open by default."""
    in_memory.serve(RULES)
    answer = in_memory.ask(USER, [("path", "/a/../b")])
    assert [answer.overall_code, *[status.code for status in answer.statuses]] == [OVER_LIMIT, OK, OVER_LIMIT]
    assert json.loads(answer.raw_body)["status"] == 429
    assert in_memory.codes([("remote_address", "not an address")]) == [OVER_LIMIT, OVER_LIMIT]
    assert in_memory.ask(descriptor(*USER, hits=0)).statuses[0].limit_remaining == 2


def test_shadow_rules_are_told_in_metadata_only(service: Asking) -> None:
    service.serve("rules: [{id: trial, dimension: ip, limit: 1, window: 1h, shadow: true}]")
    assert service.codes(IP) == [OK, OK]
    answer = service.ask(IP)
    assert answer.overall_code == OK
    assert MessageToDict(answer.dynamic_metadata)["headgate"] == {"state": "normal", "shadow_denied": ["trial"]}


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (asked("", IP), "domain is empty"),
        (asked("edge"), "no descriptors"),
    ],
)
def test_what_asks_nothing_is_an_invalid_argument(in_memory: Asking, message: bytes, complaint: str) -> None:
    in_memory.serve(RULES)
    with pytest.raises(RpcError, match=complaint) as caught:
        in_memory.raw(message)
    assert caught.value.code is StatusCode.INVALID_ARGUMENT


UNREADABLE = {
    "not UTF-8": asked("edge", [("user", "ada?")]).replace(b"ada?", b"ada\xff"),
    "not a RateLimitRequest": b"\x0a\x09short",
    "more than 256 entries": asked("edge", [("user", "ada")] * 257),
    "more than 256 descriptors": asked("edge", *[IP] * 257),
}


@pytest.mark.parametrize("complaint", UNREADABLE)
@pytest.mark.parametrize("policy", [RULES, ""], ids=["rules", "trees"])
def test_what_cannot_be_read_is_over_the_limit(in_memory: Asking, policy: str, complaint: str) -> None:
    """At an error Envoy lets requests pass, and clients choose the bytes of their headers."""
    in_memory.serve(policy, "" if policy else "domain: edge")
    answer = answered(in_memory.raw(UNREADABLE[complaint]))
    assert (answer.overall_code, [status.code for status in answer.statuses]) == (OVER_LIMIT, [OVER_LIMIT])
    assert complaint in json.loads(answer.raw_body)["detail"]
    assert "retry-after" not in [header.key.lower() for header in answer.response_headers_to_add]


def test_what_cannot_be_read_passes_where_nothing_is_refused(in_memory: Asking) -> None:
    in_memory.serve(tree="domain: edge", engine={"shadow_mode": True})
    assert answered(in_memory.raw(UNREADABLE["not UTF-8"])).overall_code == OK


def test_without_rules_everything_passes(in_memory: Asking) -> None:
    in_memory.serve()
    assert in_memory.codes(IP, USER) == [OK, OK, OK]


@pytest.mark.parametrize(
    ("rule_mode", "mode", "code", "status"),
    [
        ("local", "deny", OK, None),
        ("deny", "local", OVER_LIMIT, 503),
        ("allow", "deny", OK, None),
        ("", "deny", OVER_LIMIT, 503),
    ],
)
def test_without_a_store_the_mode_of_the_rule_decides(
    in_memory: Asking, rule_mode: str, mode: str, code: int, status: int | None
) -> None:
    told = f", on_store_failure: {rule_mode}" if rule_mode else ""
    away = {"store": "redis://127.0.0.1:1/0?timeout=0.1", "on_store_failure": mode}
    in_memory.serve(f"rules: [{{id: per-ip, dimension: ip, limit: 3, window: 1m{told}}}]", engine=away)
    answer = in_memory.ask(IP)
    assert answer.overall_code == code
    assert headers(answer)["X-RateLimit-Degraded"] == "true"
    assert MessageToDict(answer.dynamic_metadata)["headgate"]["degraded"] == "storage_unavailable"
    assert (json.loads(answer.raw_body)["status"] if answer.raw_body else None) == status


def test_a_limit_that_is_gone_with_the_rules_is_answered_by_the_mode_of_the_service(in_memory: Asking) -> None:
    away = {"store": "redis://127.0.0.1:1/0?timeout=0.1", "on_store_failure": "deny"}
    in_memory.serve(RULES, engine=away)
    answer = in_memory.ask(descriptor(*IP, limit=(5, 1)))  # of no rule
    assert json.loads(answer.raw_body)["status"] == 503


def test_which_header_fields_are_told_can_be_chosen(in_memory: Asking) -> None:
    in_memory.serve(RULES, headers=None)
    assert headers(in_memory.ask(IP)) == {}
    assert headers(in_memory.ask(IP, hits_addend=3)) == {"content-type": "application/problem+json"}
    in_memory.serve(RULES, headers=ResponseHeaders(ietf="off", reset_format="epoch"))
    told = headers(in_memory.ask(IP))
    assert set(told) == {"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"}
    assert int(told["X-RateLimit-Reset"]) > 1_000_000_000


def test_a_tier_is_believed_only_if_that_is_asked_for(in_memory: Asking) -> None:
    rules = f"{RULES}\ntiers: {{gold: {{per-user: {{limit: 50}}}}}}"
    gold = [*USER, ("tier", "gold")]
    in_memory.serve(rules)
    assert in_memory.ask(gold).statuses[0].current_limit.requests_per_unit == 2
    in_memory.serve(rules, trust_tier=True)
    assert in_memory.ask(gold).statuses[0].current_limit.requests_per_unit == 50


def test_a_question_has_the_same_answer_however_often_it_comes(service: Asking) -> None:
    service.serve("rules: [{id: per-user, dimension: user, limit: 5, window: 365d, algorithm: fixed_window}]")
    answers = [service.ask(USER) for _ in range(6)]
    assert [answer.statuses[0].limit_remaining for answer in answers] == [4, 3, 2, 1, 0, 0]
    assert [answer.overall_code for answer in answers] == [OK] * 5 + [OVER_LIMIT]
    for strange in ([("user", "bob"), ("path", "//a")], descriptor(("user", "bob"), hits=6)):
        assert [service.codes(strange) for _ in range(3)] == [[OVER_LIMIT, OVER_LIMIT]] * 3
    assert [service.ask(descriptor(("user", "bob"), hits=0)).statuses[0].limit_remaining for _ in range(3)] == [5] * 3


def test_a_question_is_remembered_unless_it_is_long_or_has_many_descriptors_or_entries(in_memory: Asking) -> None:
    """What is remembered takes little memory, whatever clients ask."""
    in_memory.serve(RULES)
    assert in_memory.service is not None
    remembered = in_memory.service._recurring
    for descriptors, count in (
        ([[("user", "ann")]], 1),
        ([[("user", "x" * LONGEST_RECURRING)]], 1),
        ([[("user", "ann")]] * (LARGEST_RECURRING // 2), 2),
        ([[("user", "ann")]] * (LARGEST_RECURRING // 2 + 1), 2),
        ([[("user", "ann")] * LARGEST_RECURRING], 2),
    ):
        in_memory.ask(*descriptors)
        assert len(remembered) == count


@pytest.mark.parametrize(("limits", "is_kept"), [(MOST_SHOWN - 1, True), (MOST_SHOWN + 1, False)])
@pytest.mark.parametrize("shadow", [False, True])
def test_of_many_limits_it_is_only_remembered_what_is_asked(
    in_memory: Asking, limits: int, *, is_kept: bool, shadow: bool
) -> None:
    rule = "{{id: r{}, shadow: {}, limits: [{{limit: 5, window: 365d}}, {{limit: 5, window: 365d, algorithm: gcra}}]}}"
    more = [rule.format(number, str(shadow).lower()) for number in range((limits - 1) // 2)]
    first = "{id: per-user, limit: 5, window: 365d, algorithm: fixed_window}"
    in_memory.serve(f"rules: [{first}, {', '.join(more)}]")
    assert in_memory.service is not None
    left = [in_memory.ask(USER).statuses[0].limit_remaining for _ in range(3)]
    (understood,) = in_memory.service._recurring.values()
    assert (left, understood.selected is not None) == ([4, 3, 2], is_kept)


def test_what_recurs_is_decided_by_the_rules_in_force(in_memory: Asking) -> None:
    in_memory.serve(RULES)
    assert in_memory.service is not None
    decisions, remembered = in_memory.service._decisions, in_memory.service._recurring
    assert decisions is not None
    for number in (2, 9, 7):
        changed = load("version: 1" + RULES.replace("limit: 2,", f"limit: {number},"))
        decisions.engine._verbs._rules = LivePolicy(Given(changed))
        limits = [in_memory.ask(USER).statuses[0].current_limit.requests_per_unit for _ in range(3)]
        assert limits == [number] * 3
        in_memory.ask(IP)
        assert len(remembered) <= 2, "what was understood by other rules is forgotten"
        decisions.engine._verbs._rules.enforce(enforcing=False)
        assert not any(in_memory.ask(USER, hits_addend=99).statuses[0].HasField("current_limit") for _ in range(3))


def test_what_recurs_is_decided_anew_when_an_override_ends(in_memory: Asking) -> None:
    clock = ManualClock()
    overrides = f'{RULES}\nusers: {{ada: {{overrides: {{per-user: {{limit: 9, until: "2025-06-15T15:07:00Z"}}}}}}}}'
    in_memory.serve(overrides, engine={"clock": clock})
    limits = []
    for _ in range(6):
        limits.append(in_memory.ask(USER).statuses[0].current_limit.requests_per_unit)
        clock.advance(10)
    assert limits == [9, 9, 2, 2, 2, 2]
