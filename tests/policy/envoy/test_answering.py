"""What comes of the decisions: codes, numbers, quota mode, shadow mode, metadata."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest

from headgate.core.errors import UsageError
from headgate.policy.envoy import Code, Descriptor, EnvoyAnswer, Matching, Status, Unit, envoy_answer, passed_metadata
from tests.policy.envoy.given import Service, policy, request, written

SECOND = 1_000_000
OK, OVER = Code.OK, Code.OVER_LIMIT
KINDS = """
  - {key: rate, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: both, quota_mode: true, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: ban, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: ban, value: shadow, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
"""


def named(text: str) -> Descriptor:
    """Return the descriptor of one entry that is written as key-value."""
    key, _, value = text.partition("-")
    return request((key, value))


def after_using(*used: str) -> Service:
    service = Service(written(KINDS))
    for text in used:
        service.decide(named(text))
    return service


def test_the_overall_code() -> None:
    """Of rates and quotas alone and together, the truth table below has all."""
    cases: list[tuple[str, str, Code]] = [
        # with what has no limit
        ("quota-1 free-1", "quota-1", OVER),
        ("quota-1 none-1", "quota-1", OVER),
        ("free-1 none-1", "", OK),
        # shadows
        ("shadow-1", "shadow-1", OK),
        ("rate-1 shadow-1", "rate-1", OVER),
        ("both-1", "both-1", OK),
        ("quota-1 both-1", "quota-1 both-1", OK),
        # bans
        ("ban-1", "", OVER),
        ("ban-shadow", "", OK),
        ("quota-1 ban-1", "", OVER),
    ]
    for request_of, used, expected in cases:
        service = after_using(*used.split())
        assert service.decide(*map(named, request_of.split())).code is expected


def test_the_truth_table_of_quota_mode() -> None:
    """Over the limit iff any rate limit is over, or there are quotas and all of them are."""
    names = ("rate-1", "rate-2", "quota-1", "quota-2")
    slices = [names[first:last] for first in range(4) for last in range(first + 1, 5)]
    for over, chosen in product(product([False, True], repeat=4), slices):
        state = dict(zip(names, over, strict=True))
        answer = after_using(*[name for name in names if state[name]]).decide(*map(named, chosen))
        refused = [state[name] for name in chosen if name.startswith("rate")]
        quotas = [state[name] for name in chosen if name.startswith("quota")]
        assert (answer.code is OVER) == (any(refused) or (bool(quotas) and all(quotas))), (state, chosen)
        assert [status.code is OVER for status in answer.statuses] == [state[name] for name in chosen]


def test_global_shadow_mode_turns_only_the_overall_code() -> None:
    service = after_using("rate-1")
    answer = service.decide(request(("rate", "1")), shadow_mode=True)
    assert (answer.code, answer.statuses[0].code, answer.shadowed) == (OK, OVER, True)
    answer = service.decide(request(("rate", "2")), shadow_mode=True)
    assert (answer.code, answer.shadowed) == (OK, False)


def test_global_quota_mode_makes_a_quota_of_everything_but_the_unlimited() -> None:
    service = after_using("rate-1", "rate-2")
    both = request(("rate", "1")), request(("rate", "2"))
    assert service.decide(*both, quota_mode=True).code is OVER
    assert service.decide(*both, request(("rate", "3")), quota_mode=True).code is OK
    assert service.decide(*both, request(("none", "")), quota_mode=True).code is OK
    assert service.decide(*both, request(("free", "")), quota_mode=True).code is OVER


def test_statuses_of_what_needs_no_store() -> None:
    service = Service(written(KINDS), now_us=3600 * SECOND + 1)
    free, none, ban, shadow = service.decide(
        request(("free", "")), request(("none", "")), request(("ban", "")), request(("ban", "shadow"))
    ).statuses
    assert free == Status(OK, None, 4294967295)
    assert none == Status(OK)
    assert (ban.code, ban.limit_remaining, ban.duration_until_reset, ban.over) == (OVER, 0, 3600, True)
    assert (shadow.code, shadow.over) == (OK, True)


def test_a_fixed_window_is_reset_at_its_end_whatever_was_used() -> None:
    rules = written("  - {key: k, rate_limit: {unit: minute, requests_per_unit: 1}}")
    minute = 60 * SECOND
    expected = {0: 60, 1: 60, SECOND - 1: 60, SECOND: 59, minute - SECOND: 1, minute - 1: 1, minute: 60}
    for now, seconds in expected.items():
        service = Service(rules, now_us=now + 60 * SECOND)
        key = ("k", "")
        for hits, code in ((0, OK), (1, OK), (1, OVER), (2, OVER), (0, OK)):
            (status,) = service.decide(request(key, hits=hits)).statuses
            assert (status.code, status.duration_until_reset) == (code, seconds), now


def test_long_units_are_counted_from_the_epoch_not_by_the_calendar() -> None:
    """So weeks begin on Thursdays, as the epoch did."""
    for unit, days in {"week": 7, "month": 30, "year": 365}.items():
        rules = written(f"  - {{key: k, rate_limit: {{unit: {unit}, requests_per_unit: 5}}}}")
        day = 86400 * SECOND
        service = Service(rules, now_us=days * day * 3 + day)
        (status,) = service.decide(request(("k", ""))).statuses
        assert status.duration_until_reset == (days - 1) * 86400, unit
        service.clock.set(days * day * 4 - 1)
        assert service.decide(request(("k", ""))).statuses[0].limit_remaining == 3, unit
        service.clock.set(days * day * 4)
        assert service.decide(request(("k", ""))).statuses[0].limit_remaining == 4, unit


def test_a_peek_at_an_exhausted_limit_is_ok() -> None:
    service = after_using("rate-1")
    (status,) = service.decide(request(("rate", "1"), hits=0)).statuses
    assert (status.code, status.limit_remaining) == (OK, 0)


def test_over_the_limit_nothing_remains_even_if_less_would_pass() -> None:
    service = Service(policy("example05"))
    service.decide(request(("azure", ""), hits=98))
    (status,) = service.decide(request(("azure", ""), hits=3)).statuses
    assert (status.code, status.limit_remaining) == (OVER, 0)
    assert service.decide(request(("azure", ""), hits=2)).code is OK  # what was refused took nothing


def test_too_many_hits_are_over_a_named_limit() -> None:
    service = Service(policy("beyond"))
    answer = service.decide(request(("user", "u"), hits=31))
    (status,) = answer.statuses
    assert (answer.code, status.over) == (OVER, True)
    assert status.current_limit is not None
    assert status.current_limit.unit is Unit.SECOND
    (status,) = service.decide(request(("user", "u"), hits=30)).statuses
    assert status.code is OK


def test_the_refusing_limit_is_reported() -> None:
    service = Service(policy("beyond"))
    user = ("user", "u")
    for _ in range(8):
        assert service.decide(request(user, hits=30)).code is OK
        service.clock.advance(3)
    (status,) = service.decide(request(user, hits=11)).statuses
    assert status.current_limit is not None
    assert (status.code, status.current_limit.name) == (OVER, "daily")
    (status,) = service.decide(request(user, hits=10)).statuses
    assert status.code is OK
    assert status.current_limit is not None
    assert (status.current_limit.name, status.limit_remaining) == ("daily", 0)


def test_algorithms_without_windows_report_the_end_of_waiting() -> None:
    rules = written("  - {key: k, rate_limit: {unit: minute, requests_per_unit: 2, algorithm: gcra}}")
    service = Service(rules)
    for expected in ((OK, 1, 30), (OK, 0, 60), (OVER, 0, 30)):
        (status,) = service.decide(request(("k", ""))).statuses
        assert (status.code, status.limit_remaining, status.duration_until_reset) == expected
    (fresh,) = service.decide(request(("k", "fresh"), hits=0)).statuses
    assert fresh.duration_until_reset == 0


def test_a_refund_is_always_ok() -> None:
    service = after_using("rate-1")
    (status,) = service.decide(Descriptor((("rate", "1"),), 1, refund=True)).statuses
    assert (status.code, status.limit_remaining) == (OK, 1)
    assert service.decide(Descriptor((("ban", "1"),), 1, refund=True)).code is OK


def test_a_degraded_decision_is_reported() -> None:
    service = Service(written(KINDS))
    matching = service.rules.match("d", [request(("rate", "1")), request(("rate", "2"))])
    fine, second = service.decisions(matching)
    assert second is not None
    degraded = msgspec.structs.replace(second, degraded="storage_unavailable")
    assert envoy_answer(matching, [fine, degraded], 0).degraded == "storage_unavailable"
    assert not envoy_answer(matching, [fine, second], 0).degraded


def test_a_decision_from_a_remote_store_finds_its_limit() -> None:
    service = Service(policy("beyond"))
    matching = service.rules.match("beyond", [request(("user", "u"))])
    (decision,) = service.decisions(matching)
    assert decision is not None
    quota = msgspec.structs.replace(decision, quota=type(decision.quota)(250, 86400 * SECOND, 0, "fixed_window"))  # type: ignore[arg-type]
    (status,) = envoy_answer(matching, [quota], 0).statuses
    assert status.current_limit is not None
    assert status.current_limit.name == "daily"


def test_a_missing_decision_is_misuse() -> None:
    matching = written(KINDS).match("d", [request(("rate", "1"))])
    with pytest.raises(UsageError, match="there is no decision for "):
        envoy_answer(matching, [None], 0)


def metadata_of(service: Service, *descriptors: Descriptor) -> dict[str, object]:
    (domain,) = service.rules.domains
    matching: Matching = service.rules.match(domain, descriptors)
    answer: EnvoyAnswer = envoy_answer(matching, service.decisions(matching), 0)
    return passed_metadata(matching, answer)


def test_metadata_of_what_passed_is_merged_and_the_first_counts() -> None:
    service = Service(policy("demo"))
    both = request(("service", "service_1")), request(("service", "service_2"))
    assert metadata_of(service, *both) == {"service_with_quota": {"name": "service_1"}}
    assert metadata_of(service, *both) == {"service_with_quota": {"name": "service_2"}}
    assert metadata_of(service, *both) == {}
    rules = written(
        "  - {key: a, metadata: {x: {p: 1}, y: 1}, rate_limit: {unit: day, requests_per_unit: 9}}\n"
        "  - {key: b, metadata: {x: {q: 2}, y: {r: 3}, z: [4]}, rate_limit: {unit: day, requests_per_unit: 9}}\n"
        "  - {key: c, metadata: {v: 5}, rate_limit: {unlimited: true}}"
    )
    merged = metadata_of(Service(rules), *[request((key, "")) for key in "abc"])
    assert merged == {"x": {"p": 1, "q": 2}, "y": 1, "z": (4,)}
