"""The log of refusals: sampled, and honest about what was left out."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from headgate.core.errors import UsageError
from headgate.observe.denials import Denials
from headgate.observe.principals import LONGEST_SECRET, Principals


def refuse(denials: Denials, rule: str, times: int = 1) -> None:
    for _ in range(times):
        if denials.wants(rule):
            denials.log(rule, "alice", api="check", retry_after_us=1_500_000)


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    return [(each.getMessage(), each.__dict__["headgate_fields"]) for each in caplog.records]


@pytest.fixture(autouse=True)
def info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_a_line_says_which_rule_refused_whom_until_when(caplog: pytest.LogCaptureFixture) -> None:
    refuse(Denials(Principals(plain=True)), "orders")
    expected = {"rule": "orders", "principal": "alice", "retry_after": 1.5, "api": "check", "reason": None}
    assert lines(caplog) == [("denied", expected)]


def test_principals_are_digests_unless_told(caplog: pytest.LogCaptureFixture) -> None:
    refuse(Denials(Principals()), "orders")
    ((_, line),) = lines(caplog)
    assert line["principal"] == Principals().shown("alice") != "alice"


def test_so_many_lines_a_second_for_each_rule_and_the_rest_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    denials = Denials(Principals(), per_rule=2)
    refuse(denials, "orders", 10)
    refuse(denials, "search", 3)
    refuse(denials, "quiet", 1)
    assert [line["rule"] for _, line in lines(caplog)] == ["orders"] * 2 + ["search"] * 2 + ["quiet"]
    caplog.clear()
    assert denials.second() == 9
    left_out = {"count": 9, "of_rules": 2, "first": "orders: 8, search: 1"}
    assert lines(caplog) == [("denials not logged", left_out)]
    caplog.clear()
    assert denials.second() == 0
    refuse(denials, "orders")
    assert len(lines(caplog)) == 1


def test_all_rules_together_have_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    denials = Denials(Principals(), per_rule=2, in_all=5)
    for rule in range(100):
        refuse(denials, f"rule-{rule}")
    assert len(lines(caplog)) == 5
    assert denials.second() == 95


def test_none_at_all() -> None:
    assert not Denials(Principals(), per_rule=0).is_on
    with pytest.raises(UsageError):
        Denials(Principals(), per_rule=-1)


def test_digests_are_stable_and_depend_on_the_secret() -> None:
    names = [Principals(secret=secret).shown("alice") for secret in (b"", b"", b"one", b"two")]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert all(len(name) == 17 for name in names)
    assert Principals().shown("\ud800") != Principals().shown("alice")
    with pytest.raises(UsageError):
        Principals(secret=b"x" * (LONGEST_SECRET + 1))
