"""The examples of envoyproxy/ratelimit's README: their descriptors get the limits that it documents.

The files are written from the documented meaning. Where its text and its server disagree (the metric of a pattern whose
values count together), the server's behaviour is taken.
"""

from __future__ import annotations

from headgate.policy.envoy import Code, MatchOutcome
from tests.policy.envoy.given import Pairs, Service, matched, policy, rates, request

UNMATCHED, BANNED, UNLIMITED = MatchOutcome.UNMATCHED, MatchOutcome.BANNED, MatchOutcome.UNLIMITED
TO_NUMBER = ("to_number", "2061111111")
USER = ("user", "bkthomps")


def test_documented_descriptors_get_the_documented_limits() -> None:
    cases: list[tuple[str, Pairs, str]] = [
        ("example01", [("database", "users")], "500/second fixed_window"),
        ("example01", [("database", "default")], "500/second fixed_window"),
        ("example01", [("database", "orders")], UNMATCHED),
        ("example02", [("message_type", "marketing"), TO_NUMBER], "5/day fixed_window"),
        ("example02", [("message_type", "marketing")], UNMATCHED),
        ("example02", [("message_type", "alert"), TO_NUMBER], UNMATCHED),
        ("example02", [TO_NUMBER], "100/day fixed_window"),
        ("example03", [("remote_address", "50.0.0.1")], "10/second fixed_window"),
        ("example03", [("remote_address", "50.0.0.5")], BANNED),
        ("example04_flat", [("key", "value")], "300/second fixed_window"),
        ("example04_flat", [("key", "value"), ("subkey", "subvalue")], UNMATCHED),
        ("example04_nested", [("key", "value"), ("subkey", "subvalue")], "300/second fixed_window"),
        ("example05", [("ldap", "anything")], UNLIMITED),
        ("example05", [("azure", "anything")], "100/minute fixed_window"),
        ("example05", [("kerberos", "anything")], UNMATCHED),
        ("example06", [("service", "auth-service"), ("user", "user-a")], "10/second fixed_window"),
        ("example06", [("service", "auth-service"), ("user", "user-b")], "20/second fixed_window"),
        ("example07", [("key_1", "value_1"), USER], "5/second fixed_window"),
        ("example07", [("key_2", "value_2"), USER], "10/second fixed_window"),
        ("example08", [("key1", "unspecified_value")], "10/minute fixed_window"),
        ("example08", [("key1", "unspecified_value2")], "10/minute fixed_window"),
        ("example08", [("key1", "value1")], "20/minute fixed_window"),
        ("example09", [("key1", "value1")], "20/minute fixed_window"),
        ("example09", [("key1", "valueXYZ")], "20/minute fixed_window"),
        ("example09", [("key1", "other")], UNMATCHED),
        ("example09", [("path", "/api/123/action")], "20/minute fixed_window"),
        ("example09", [("path", "/api/user-id/action")], "20/minute fixed_window"),
        ("example09", [("path", "/api/123/other")], UNMATCHED),
        ("example09", [("route", "/api/v1/resource/123/action")], "20/minute fixed_window"),
        ("example09", [("route", "/api/v2/resource/456/action")], "20/minute fixed_window"),
        ("example09", [("route", "/api/v2/other/456/action")], UNMATCHED),
        ("example10", [("route", "api"), ("http_method", "GET"), ("subject_id", "1")], "60/minute fixed_window"),
        ("example11", [("files", "files/a.pdf")], "10/hour fixed_window"),
        ("example11", [("files_no_share", "files_no_share/a.pdf")], "10/hour fixed_window"),
    ]
    for file, descriptor, expected in cases:
        match = matched(policy(file), *descriptor)
        if isinstance(expected, MatchOutcome):
            assert match.outcome is expected, file
            assert not match.limits, file
        else:
            assert match.outcome is MatchOutcome.LIMITED, file
            assert rates(match) == [expected], file


def test_example_2_every_number_is_counted_alone_and_all_descriptors_of_a_request_count() -> None:
    service = Service(policy("example02"))
    both = request(("message_type", "marketing"), TO_NUMBER), request(TO_NUMBER)
    answers = [service.decide(*both) for _ in range(6)]
    assert [answer.code for answer in answers] == [Code.OK] * 5 + [Code.OVER_LIMIT]
    assert [status.code for status in answers[-1].statuses] == [Code.OVER_LIMIT, Code.OK]
    assert [status.limit_remaining for status in answers[-1].statuses] == [0, 94]
    other = request(("message_type", "marketing"), ("to_number", "2062222222"))
    assert service.decide(other).statuses[0].limit_remaining == 4


def test_example_3_a_limit_of_0_is_a_ban() -> None:
    service = Service(policy("example03"))
    (status,) = service.decide(request(("remote_address", "50.0.0.5"))).statuses
    assert status.code is Code.OVER_LIMIT
    assert status.current_limit is not None
    assert (status.current_limit.requests_per_unit, status.limit_remaining) == (0, 0)


def test_example_5_unlimited_is_the_highest_number() -> None:
    service = Service(policy("example05"))
    unlimited, limited, unknown = service.decide(
        request(("ldap", "")), request(("azure", "")), request(("x", ""))
    ).statuses
    assert (unlimited.code, unlimited.limit_remaining, unlimited.current_limit) == (Code.OK, 4294967295, None)
    assert (limited.code, limited.limit_remaining) == (Code.OK, 99)
    assert (unknown.code, unknown.limit_remaining, unknown.current_limit) == (Code.OK, 0, None)


def test_example_6_a_shadow_is_counted_and_never_refuses() -> None:
    service = Service(policy("example06"))
    of_a, of_b = (request(("service", "auth-service"), ("user", f"user-{name}")) for name in "ab")
    answers = [service.decide(of_a) for _ in range(12)]
    assert {answer.code for answer in answers} == {Code.OK}
    assert [answer.statuses[0].over for answer in answers] == [False] * 10 + [True] * 2
    assert [service.decide(of_b).code for _ in range(21)] == [Code.OK] * 20 + [Code.OVER_LIMIT]


def test_example_7_the_replaced_limit_is_not_used() -> None:
    service = Service(policy("example07"))
    first, second = (request((f"key_{number}", f"value_{number}"), USER) for number in (1, 2))
    answers = [service.decide(first, second) for _ in range(11)]
    assert [answer.code for answer in answers] == [Code.OK] * 10 + [Code.OVER_LIMIT]
    replaced, replacing = answers[0].statuses
    assert (replaced.code, replaced.current_limit) == (Code.OK, None)
    assert replacing.limit_remaining == 9
    assert service.decide(first).statuses[0].limit_remaining == 4


def test_example_11_a_shared_threshold_is_shared_and_another_is_not() -> None:
    service = Service(policy("example11"))
    for name in ("files/a.pdf", "files/b.csv"):
        assert [service.decide(request(("files", name))).code for _ in range(5)] == [Code.OK] * 5
    assert service.decide(request(("files", "files/c.txt"))).code is Code.OVER_LIMIT
    alone = [request(("files_no_share", f"files_no_share/{name}")) for name in ("a.pdf", "b.csv")]
    assert [service.decide(alone[0]).code for _ in range(11)] == [Code.OK] * 10 + [Code.OVER_LIMIT]
    assert service.decide(alone[1]).code is Code.OK


def test_metrics_have_the_documented_names() -> None:
    cases: list[tuple[str, Pairs, str]] = [
        ("example02", [("message_type", "marketing"), TO_NUMBER], "messaging.message_type_marketing.to_number"),
        ("example08", [("key1", "unspecified_value")], "example8.key1_unspecified_value"),
        ("example08", [("key1", "unspecified_value2")], "example8.key1_unspecified_value2"),
        ("example08", [("key1", "value1")], "example8.key1_value1"),
        ("example09", [("path", "/api/123/action")], "example9.path_/api/*/action"),
        (
            "example10",
            [("route", "api"), ("http_method", "GET"), ("subject_id", "123")],
            "example10.route_api.http_method_GET.subject_id",
        ),
        (
            "example10",
            [("route", "web"), ("http_method", "POST"), ("subject_id", "456")],
            "example10.route_web.http_method_POST.subject_id",
        ),
        (
            "example10_wildcard",
            [("user", "alice"), ("action", "readfile"), ("resource", "documents")],
            "example10_wildcard.user_alice.action_readfile.resource",
        ),
        ("example11_metrics", [("route", "api/v1"), ("method", "GET")], "example11_metrics.route_api/*.method"),
    ]
    for file, descriptor, metric in cases:
        assert ".".join(matched(policy(file), *descriptor).stat) == metric


def test_the_set_up_of_the_demonstration() -> None:
    cases: list[tuple[list[Pairs], list[str]]] = [
        ([[("foo", "foo")]], ["2/minute fixed_window"]),
        ([[("foo", "foo"), ("bar", "bar")]], ["3/minute fixed_window"]),
        ([[("foo", "foo"), ("bar", "banned")]], [BANNED]),
        ([[("foo", "foo"), ("baz", "baz")]], ["1/second fixed_window"]),
        ([[("foo", "foo"), ("bay", "x")]], [UNLIMITED]),
        ([[("foo", "foo"), ("bar", "bkthomps")]], ["1/minute fixed_window"]),
        (
            [[("foo", "foo"), ("bar", "bkthomps")], [("category", "account")]],
            [MatchOutcome.REPLACED, "4/minute fixed_window"],
        ),
        (
            [
                [("source_cluster", "proxy"), ("destination_cluster", "override")],
                [("foo", "foo"), ("bar", "banned")],
            ],
            ["2/minute fixed_window", MatchOutcome.REPLACED],
        ),
        (
            [[("category", "account")], [("source_cluster", "proxy"), ("destination_cluster", "fake")]],
            ["4/minute fixed_window", MatchOutcome.REPLACED],
        ),
    ]
    for descriptors, expected in cases:
        matches = policy("demo").match("rl", [request(*pairs) for pairs in descriptors]).matches
        found = [rates(match)[0] if match.limits else match.outcome for match in matches]
        assert found == expected, descriptors


def test_the_quotas_of_the_demonstration() -> None:
    service = Service(policy("demo"))
    both = request(("service", "service_1")), request(("service", "service_2"))
    assert [service.decide(*both).code for _ in range(3)] == [Code.OK, Code.OK, Code.OVER_LIMIT]
