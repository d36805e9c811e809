"""Envoy answered by the configuration of envoyproxy/ratelimit, alone and beside rules."""

from __future__ import annotations

import json

import pytest
from google.protobuf.json_format import MessageToDict

from headgate.policy.envoy import load
from tests.observe.readings import value
from tests.server.rls.conftest import Asking
from tests.server.rls.messages import OK, OVER_LIMIT, descriptor, headers

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
IP = [("remote_address", "203.0.113.9")]
USER = [("user", "ada")]


def test_limits_are_kept_and_told(service: Asking) -> None:
    service.serve(tree=TREE)
    answer = service.ask(IP, USER)
    first, second = answer.statuses
    assert (answer.overall_code, first.code, first.limit_remaining, second.limit_remaining) == (OK, OK, 1, 4)
    assert (first.current_limit.requests_per_unit, first.current_limit.unit, first.current_limit.name) == (
        2,
        6,
        "per-ip",
    )
    assert second.current_limit.unit == 7
    assert 0 < first.duration_until_reset.seconds <= 365 * 86400
    told = headers(answer)
    assert (told["X-RateLimit-Limit"], told["X-RateLimit-Remaining"]) == ("2", "1")
    assert told["RateLimit-Policy"] == '"per-ip";q=2;w=31536000, "default";q=5;w=604800'
    assert MessageToDict(answer.dynamic_metadata) == {"headgate": {"rule_id": "per-ip", "state": "normal"}}


def test_a_denial_has_headers_a_problem_document_and_metadata(service: Asking) -> None:
    service.serve(tree=TREE)
    assert [service.codes(IP) for _ in range(2)] == [[OK, OK]] * 2
    answer = service.ask(IP, USER)
    assert [answer.overall_code, *[status.code for status in answer.statuses]] == [OVER_LIMIT, OVER_LIMIT, OK]
    told = headers(answer)
    assert (told["content-type"], told["X-RateLimit-Remaining"]) == ("application/problem+json", "0")
    assert int(told["Retry-After"]) > 0
    assert json.loads(answer.raw_body)["violated-policies"] == ["per-ip"]
    assert MessageToDict(answer.dynamic_metadata) == {"headgate": {"rule_id": "per-ip", "state": "throttled"}}
    assert service.ask(USER).statuses[0].limit_remaining == 3  # that of the refused request was taken


def test_hits_refunds_and_limits_that_come_with_the_request(service: Asking) -> None:
    service.serve(tree=TREE)
    assert service.ask(descriptor(*USER, hits=5)).statuses[0].limit_remaining == 0
    assert service.codes(descriptor(*USER, hits=0)) == [OVER_LIMIT, OVER_LIMIT]
    assert service.ask(descriptor(*USER, hits=3, refund=True)).statuses[0].limit_remaining == 3
    answer = service.ask(descriptor(*USER, limit=(70, 1)))
    assert answer.statuses[0].current_limit.requests_per_unit == 70
    answer = service.ask(descriptor(*USER, limit=(70, 0)))
    assert answer.overall_code == OVER_LIMIT
    assert "0 is not a unit" in json.loads(answer.raw_body)["detail"]


def test_what_is_special_in_a_tree(service: Asking) -> None:
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


def test_nobody_is_told_to_come_back_with_what_could_never_pass(in_memory: Asking) -> None:
    tree = """
domain: edge
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: ban, rate_limit: {unit: year, requests_per_unit: 0}}
"""
    in_memory.serve(tree=tree)
    assert in_memory.codes([("user", "ada")]) == [OK, OK]
    assert "Retry-After" in headers(in_memory.ask([("user", "ada")]))
    for never in ([("ban", "x")], descriptor(("user", "bob"), hits=2)):
        answer = in_memory.ask([("user", "ada")], never)
        assert [status.code for status in answer.statuses] == [OVER_LIMIT, OVER_LIMIT]
        assert "Retry-After" not in headers(answer)
        assert json.loads(answer.raw_body)["detail"].startswith("The limit of this request is 0, or")


def test_a_refund_that_the_store_cannot_make_is_not_among_what_refuses(in_memory: Asking) -> None:
    away = {"store": "redis://127.0.0.1:1/0?timeout=0.1", "on_store_failure": "deny"}
    in_memory.serve(
        tree="domain: edge\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 9}}]", engine=away
    )
    answer = in_memory.ask(descriptor(("user", "ada"), refund=True), [("user", "bob")])
    assert [status.code for status in answer.statuses] == [OK, OVER_LIMIT]
    assert json.loads(answer.raw_body)["violated-policies"] == ["default"]


def test_the_state_is_that_of_limits_that_may_refuse(in_memory: Asking) -> None:
    tree = """
domain: edge
descriptors:
  - {key: trial, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1}}
"""
    in_memory.serve(tree=tree)
    states = [in_memory.ask([("trial", "x")]).dynamic_metadata["headgate"]["state"] for _ in range(2)]
    assert states == ["normal", "normal"]
    assert in_memory.ask([("trial", "x")], [("user", "ada")]).dynamic_metadata["headgate"]["state"] == "throttled"


def test_quotas_refuse_only_together(service: Asking) -> None:
    service.serve(tree=TREE)
    one, other = [("quota", "1")], [("quota", "2")]
    assert service.codes(one) == [OK, OK]
    answer = service.ask(one, other)
    assert [answer.overall_code, *[status.code for status in answer.statuses]] == [OK, OVER_LIMIT, OK]
    assert "Retry-After" not in headers(answer)
    assert service.codes(one, other) == [OVER_LIMIT, OVER_LIMIT, OVER_LIMIT]


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


def test_header_fields_can_be_left_out(in_memory: Asking) -> None:
    in_memory.serve(tree=TREE, headers=None)
    for _ in range(3):
        answer = in_memory.ask(IP)
        told = {} if answer.overall_code == OK else {"content-type": "application/problem+json"}
        assert headers(answer) == told


def test_what_recurs_is_matched_again_when_the_files_have_changed(in_memory: Asking) -> None:
    in_memory.serve(tree=TREE)
    assert in_memory.service is not None
    trees = in_memory.service.trees
    assert trees is not None
    for number in (2, 9, 7):
        changed = TREE.replace("requests_per_unit: 2", f"requests_per_unit: {number}")
        trees._trees = load({"tree.yaml": changed})
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
