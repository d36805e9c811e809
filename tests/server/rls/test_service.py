"""The rate limit service by rules, by the configuration of envoyproxy/ratelimit, and by both."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from headgate import LivePolicy, ResponseHeaders, Ruleset
from headgate.policy.envoy import load as load_trees
from headgate.policy.loading import load
from headgate.server.recurring import LARGEST_RECURRING, LONGEST_RECURRING
from headgate.server.wire.grpc.calls import RpcError, StatusCode
from tests.observe.readings import value
from tests.server.rls.conftest import Asking
from tests.server.rls.messages import OK, OVER_LIMIT, answered, descriptor, encoded, headers

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
    name = "rules"

    def __init__(self, ruleset: Ruleset) -> None:
        self.read = lambda: ruleset

    def changed(self) -> None:
        return None


def metadata_of(answer: Any) -> dict[str, Any]:
    found: dict[str, Any] = MessageToDict(answer.dynamic_metadata)["headgate"]
    return found


def left(answer: Any) -> list[int]:
    return [status.limit_remaining for status in answer.statuses]


def codes_of(answer: Any) -> list[int]:
    return [answer.overall_code, *[status.code for status in answer.statuses]]


def test_a_limit_applies_and_is_reported(service: Asking) -> None:
    service.serve(RULES)
    answer = service.ask(IP)
    (status,), limit = answer.statuses, answer.statuses[0].current_limit
    assert (codes_of(answer), left(answer)) == ([OK, OK], [2])
    assert (limit.requests_per_unit, limit.unit, limit.name) == (3, 6, "per-ip")
    assert 1 <= status.duration_until_reset.seconds <= 365 * 86400
    fields = headers(answer)
    assert (fields["X-RateLimit-Limit"], fields["X-RateLimit-Remaining"]) == ("3", "2")
    assert fields["RateLimit-Policy"] == '"per-ip";q=3;w=31536000'
    assert metadata_of(answer) == {"rule_id": "per-ip", "state": "normal"}
    assert [service.codes(IP) for _ in range(3)] == [[OK, OK], [OK, OK], [OVER_LIMIT, OVER_LIMIT]]
    answer = service.ask(IP)
    (status,), fields, problem = answer.statuses, headers(answer), json.loads(answer.raw_body)
    assert (status.limit_remaining, status.current_limit.name) == (0, "per-ip")
    assert int(fields["Retry-After"]) == status.duration_until_reset.seconds >= 1
    assert (fields["content-type"], fields["Cache-Control"]) == ("application/problem+json", "no-store")
    assert (fields["X-RateLimit-State"], problem["status"]) == ("throttled", 429)
    assert problem["violated-policies"] == ["per-ip"]
    assert metadata_of(answer) == {"rule_id": "per-ip", "state": "throttled"}


def test_a_refusal_has_the_time_when_the_same_request_would_pass(service: Asking) -> None:
    """Not when all is back: a bucket has room for one again before it is empty."""
    rules = "rules: [{id: bucket, dimension: user, limit: 2, window: 365d, algorithm: token_bucket}]"
    service.serve(rules, headers=ResponseHeaders(reset_format="seconds"))
    assert [service.ask(USER).overall_code for _ in range(2)] == [OK, OK]
    answer = service.ask(USER)
    seconds, reset = answer.statuses[0].duration_until_reset.seconds, int(headers(answer)["X-RateLimit-Reset"])
    assert seconds == int(headers(answer)["Retry-After"])
    assert reset // 3 < seconds < reset * 2 // 3


def test_numbers_that_the_protocol_has_no_room_for_are_the_largest_that_it_has(in_memory: Asking) -> None:
    in_memory.serve("rules: [{id: many, dimension: user, limit: 10000000000, window: 365d, algorithm: fixed_window}]")
    answer = in_memory.ask(USER)
    assert (answer.statuses[0].current_limit.requests_per_unit, left(answer)) == (2**32 - 1, [2**32 - 1])
    assert headers(answer)["X-RateLimit-Remaining"] == "9999999999"


def test_descriptors_pass_together_or_not_at_all_and_a_shared_limit_is_shown_once(service: Asking) -> None:
    service.serve(RULES)
    assert [service.codes(IP, USER) for _ in range(2)] == [[OK, OK, OK]] * 2
    answer = service.ask(IP, USER, [*USER, ("generic_key", "x")])
    assert (codes_of(answer), left(answer)) == ([OVER_LIMIT, OK, OVER_LIMIT, OVER_LIMIT], [1, 0, 0])
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
    assert service.ask(order).statuses[0].current_limit.name == "writes"
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
    nothing = descriptor(*IP, hits=0)
    assert left(service.ask(IP, hits_addend=2)) == left(service.ask(nothing, hits_addend=2)) == [1]
    assert left(service.ask(descriptor(*IP, hits=1), descriptor(*USER, hits=2))) == [0, 0]
    assert service.codes(nothing) == [OVER_LIMIT, OVER_LIMIT]
    for hits, remaining in ((2, 2), (10**9, 3)):
        assert service.codes(descriptor(*IP, hits=hits, refund=True)) == [OK, OK]
        assert left(service.ask(nothing)) == [remaining]


def test_hits_that_could_never_pass_are_over_the_limit_without_a_wait(service: Asking) -> None:
    service.serve(RULES)
    for hits in (4, 100_001, 2**40):
        for descriptors in ([descriptor(*IP, hits=hits)], [USER, descriptor(*IP, hits=hits)]):
            answer = service.ask(*descriptors)
            assert codes_of(answer) == [OVER_LIMIT, *[OK] * (len(descriptors) - 1), OVER_LIMIT]
            assert "Retry-After" not in headers(answer)
            problem = json.loads(answer.raw_body)
            assert problem == {"status": 429, "title": "Too Many Requests", "detail": metadata_of(answer)["reason"]}
    detail = "rule 'per-ip': cost 4 is above the capacity of 3/365d fixed_window, 3: it could never pass"
    assert metadata_of(service.ask(descriptor(*IP, hits=4))) == {"state": "throttled", "reason": detail}
    assert left(service.ask(descriptor(*USER, hits=0))) == [2]


def test_refused_hits_can_use_up_the_rest_of_a_limit(service: Asking) -> None:
    service.serve(RULES, count_refused=True)
    assert left(service.ask(IP, hits_addend=2)) == [1]
    assert service.codes(IP, hits_addend=2) == [OVER_LIMIT, OVER_LIMIT]
    nothing = [descriptor(*each, hits=0) for each in (IP, USER)]
    assert service.codes(nothing[0]) == [OVER_LIMIT, OVER_LIMIT]
    assert service.codes(descriptor(*USER, hits=10**9)) == [OVER_LIMIT, OVER_LIMIT]
    assert service.codes(nothing[1]) == [OVER_LIMIT, OVER_LIMIT]
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


def test_requests_that_cannot_be_matched_are_over_the_limit_and_take_nothing(in_memory: Asking) -> None:
    """An error would let it pass, since Envoy fails open by default."""
    in_memory.serve(RULES)
    for limit in ((5, 0), (5, 9), (0, 1)):
        answer = in_memory.ask(USER, descriptor(*IP, limit=limit))
        assert codes_of(answer) == [OVER_LIMIT, OK, OVER_LIMIT]
        assert "limit that came with the request" in json.loads(answer.raw_body)["detail"]
    for _ in range(3):
        answer = in_memory.ask(USER, [("path", "/a/../b")])
    assert (codes_of(answer), json.loads(answer.raw_body)["status"]) == ([OVER_LIMIT, OK, OVER_LIMIT], 429)
    assert in_memory.codes([("remote_address", "not an address")]) == [OVER_LIMIT, OVER_LIMIT]
    assert left(in_memory.ask(descriptor(*USER, hits=0))) == [2]


def test_incomplete_messages_are_invalid_arguments(in_memory: Asking) -> None:
    in_memory.serve(RULES)
    for message, complaint in ((encoded("", IP), "domain is empty"), (encoded("edge"), "no descriptors")):
        with pytest.raises(RpcError, match=complaint) as caught:
            in_memory.raw(message)
        assert caught.value.code is StatusCode.INVALID_ARGUMENT


UNREADABLE = {
    "not UTF-8": encoded("edge", [("user", "ada?")]).replace(b"ada?", b"ada\xff"),
    "not a RateLimitRequest": b"\x0a\x09short",
    "more than 256 entries": encoded("edge", [("user", "ada")] * 257),
    "more than 256 descriptors": encoded("edge", *[IP] * 257),
}


@pytest.mark.parametrize("policy", [RULES, ""], ids=["rules", "trees"])
def test_malformed_messages_are_over_the_limit(in_memory: Asking, policy: str) -> None:
    """At an error Envoy lets requests pass, and clients choose the bytes of their headers."""
    in_memory.serve(policy, "" if policy else "domain: edge")
    for complaint, message in UNREADABLE.items():
        answer = answered(in_memory.raw(message))
        assert codes_of(answer) == [OVER_LIMIT, OVER_LIMIT]
        assert complaint in json.loads(answer.raw_body)["detail"]
        assert "retry-after" not in [header.key.lower() for header in answer.response_headers_to_add]


def test_malformed_messages_pass_in_shadow_mode_and_everything_without_rules(in_memory: Asking) -> None:
    in_memory.serve(tree="domain: edge", engine={"shadow_mode": True})
    assert answered(in_memory.raw(UNREADABLE["not UTF-8"])).overall_code == OK
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
    own = f", on_store_failure: {rule_mode}" if rule_mode else ""
    away = {"store": "redis://127.0.0.1:1/0?timeout=0.1", "on_store_failure": mode}
    in_memory.serve(f"rules: [{{id: per-ip, dimension: ip, limit: 3, window: 1m{own}}}]", engine=away)
    answer = in_memory.ask(IP)
    assert (answer.overall_code, headers(answer)["X-RateLimit-Degraded"]) == (code, "true")
    assert metadata_of(answer)["degraded"] == "storage_unavailable"
    assert (json.loads(answer.raw_body)["status"] if answer.raw_body else None) == status
    if mode == "deny":
        of_no_rule = in_memory.ask(descriptor(*IP, limit=(5, 1)))
        assert json.loads(of_no_rule.raw_body)["status"] == 503


def test_a_question_is_remembered_unless_it_is_long_or_has_many_descriptors_or_entries(in_memory: Asking) -> None:
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


def test_recurring_requests_are_decided_by_the_rules_in_force(in_memory: Asking) -> None:
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


TREE = """
domain: edge
descriptors:
  - key: remote_address
    rate_limit: {unit: year, requests_per_unit: 2, name: per-ip}
    metadata: {owner: {team: web}}
  - key: user
    rate_limit: {unit: week, requests_per_unit: 5}
    metadata: {owner: {team: accounts, room: 7}}
  - key: trial
    rate_limit: {unit: year, requests_per_unit: 1, name: trial}
    shadow_mode: true
  - key: odd
    rate_limit: {unit: second, unit_multiplier: 45, requests_per_unit: 4, name: "n\u00e4me"}
  - key: banned
    rate_limit: {unit: minute, requests_per_unit: 0}
  - key: free
    rate_limit: {unlimited: true}
  - key: quota
    quota_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
"""


def test_limits_apply_and_are_reported(service: Asking) -> None:
    service.serve(tree=TREE)
    answer = service.ask(IP, USER)
    first, second = answer.statuses
    limit = first.current_limit
    assert (answer.overall_code, first.code, first.limit_remaining, second.limit_remaining) == (OK, OK, 1, 4)
    assert (limit.requests_per_unit, limit.unit, limit.name, second.current_limit.unit) == (2, 6, "per-ip", 7)
    assert 0 < first.duration_until_reset.seconds <= 365 * 86400
    fields = headers(answer)
    assert (fields["X-RateLimit-Limit"], fields["X-RateLimit-Remaining"]) == ("2", "1")
    assert fields["RateLimit-Policy"] == '"per-ip";q=2;w=31536000, "default";q=5;w=604800'
    assert MessageToDict(answer.dynamic_metadata) == {"headgate": {"rule_id": "per-ip", "state": "normal"}}
    assert service.codes(IP) == [OK, OK]
    answer = service.ask(IP, USER)
    assert [answer.overall_code, *[status.code for status in answer.statuses]] == [OVER_LIMIT, OVER_LIMIT, OK]
    fields = headers(answer)
    assert (fields["content-type"], fields["X-RateLimit-Remaining"]) == ("application/problem+json", "0")
    assert int(fields["Retry-After"]) > 0
    assert json.loads(answer.raw_body)["violated-policies"] == ["per-ip"]
    assert MessageToDict(answer.dynamic_metadata) == {"headgate": {"rule_id": "per-ip", "state": "throttled"}}
    assert service.ask(USER).statuses[0].limit_remaining == 2  # that of the refused request was taken


def test_special_descriptors_of_a_tree(service: Asking) -> None:
    service.serve(tree=TREE)
    assert [service.codes([("trial", "x")]) for _ in range(2)] == [[OK, OK]] * 2
    metadata = MessageToDict(service.ask([("trial", "x")]).dynamic_metadata)["headgate"]
    assert metadata["shadow_denied"] == ["edge.trial"]
    assert service.ask([("odd", "x")]).statuses[0].current_limit.unit == 2
    assert headers(service.ask([("odd", "x")]))["RateLimit-Policy"] == '"default";q=4;w=45'
    banned = service.ask([("banned", "x")])
    assert (banned.overall_code, json.loads(banned.raw_body)["status"]) == (OVER_LIMIT, 429)
    free = service.ask([("free", "x")])
    assert (free.overall_code, free.statuses[0].limit_remaining) == (OK, 2**32 - 1)
    assert service.codes([("nobody", "knows")]) == [OK, OK]
    assert service.codes(IP, domain="unknown") == [OK, OK]
    assert service.service is not None
    text = service.service.recorder.metrics()[1]
    assert value(text, "headgate_unknown_domain_requests_total") == 1


def test_a_refund_that_the_store_cannot_make_refuses_nothing(in_memory: Asking) -> None:
    in_memory.serve(tree=TREE, engine={"store": "redis://127.0.0.1:1/0?timeout=0.1", "on_store_failure": "deny"})
    answer = in_memory.ask(descriptor(*USER, refund=True), [("user", "bob")])
    assert [status.code for status in answer.statuses] == [OK, OVER_LIMIT]
    assert json.loads(answer.raw_body)["violated-policies"] == ["default"]


def test_domains_that_the_trees_do_not_know_are_decided_by_the_rules(service: Asking) -> None:
    service.serve("rules: [{id: by-rule, dimension: ip, limit: 9, window: 1h}]", TREE)
    assert service.ask(IP).statuses[0].current_limit.name == "per-ip"
    assert service.ask(IP, domain="other").statuses[0].current_limit.name == "by-rule"


@pytest.mark.parametrize(("mode", "code", "status"), [("local", OK, None), ("deny", OVER_LIMIT, 503)])
def test_without_a_store_the_mode_decides(in_memory: Asking, mode: str, code: int, status: int | None) -> None:
    away = {"store": "redis://127.0.0.1:1/0?timeout=0.1", "on_store_failure": mode}
    in_memory.serve(tree=TREE, engine=away)
    answer = in_memory.ask(IP)
    assert (answer.overall_code, headers(answer)["X-RateLimit-Degraded"]) == (code, "true")
    assert MessageToDict(answer.dynamic_metadata)["headgate"]["degraded"] == "storage_unavailable"
    assert (json.loads(answer.raw_body)["status"] if answer.raw_body else None) == status
    assert in_memory.codes(descriptor(*IP, hits=1, refund=True)) == [OK, OK]


def test_recurring_requests_are_matched_again_when_files_change(in_memory: Asking) -> None:
    in_memory.serve(tree=TREE)
    assert in_memory.service is not None
    trees = in_memory.service.trees
    assert trees is not None
    for number in (2, 9, 7):
        changed = TREE.replace("requests_per_unit: 2", f"requests_per_unit: {number}")
        trees._trees = load_trees({"tree.yaml": changed})
        limits = [in_memory.ask(IP).statuses[0].current_limit.requests_per_unit for _ in range(4)]
        assert limits == [number] * 4


def test_of_very_many_limits_only_the_one_that_matters_is_shown(service: Asking) -> None:
    service.serve("rules: [{id: per-user, dimension: user, limit: 5, window: 1h}]", TREE)
    users = [[("user", f"u{number}")] for number in range(255)]
    for domain in ("edge", "other"):
        answer = service.ask(*users, descriptor(("user", "most"), hits=4), domain=domain)
        assert len(answer.statuses) == 256
        assert headers(answer)["RateLimit"].count(";r=") == 1
        assert headers(answer)["X-RateLimit-Remaining"] == "1"
        answer = service.ask(*users, descriptor(("user", "most"), hits=4), domain=domain)
        assert answer.overall_code == OVER_LIMIT
        assert len(json.loads(answer.raw_body)["limits"]) == 1
