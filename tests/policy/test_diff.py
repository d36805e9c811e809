"""What a new file of rules changes, and what becomes of what was used."""

from __future__ import annotations

import json

from hypothesis import given, settings

from headgate import MemoryStore
from headgate.engine import Engine
from headgate.policy.diff import Diff, FieldChange, State, compare
from headgate.policy.loading import load
from headgate.policy.model import Ruleset
from headgate.policy.request import Request
from headgate.testing import ManualClock
from tests.policy.written import rulesets

BASE = "id: a, limit: 10, window: 1m"
RESET = f"{BASE}, reset_on_change: true"


def difference(old: str, new: str) -> Diff:
    """Compare two files of one rule each."""
    return compare(*(load(f"version: 1\nrules: [{{{text}}}]") for text in (old, new)))


def test_a_changed_rule() -> None:
    cases: list[tuple[str, str, list[tuple[str, object, object]], State]] = [
        (BASE, "id: a, limit: 20, window: 1m", [("limit", 10, 20)], State.KEPT),
        (BASE, f"{BASE}, burst: 5", [("burst", None, 5)], State.KEPT),
        (BASE, f"{BASE}, shadow: true, name: A", [("shadow", None, True), ("name", None, "A")], State.KEPT),
        (BASE, "id: a, limit: 10, window: 2m", [("window", "1m", "2m")], State.AFRESH),
        (BASE, f"{BASE}, algorithm: gcra", [("algorithm", None, "gcra")], State.AFRESH),
        (BASE, f"{BASE}, dimension: ip", [("dimension", None, "ip")], State.AFRESH),
        (BASE, RESET, [("reset_on_change", None, True)], State.AFRESH),
        (RESET, RESET.replace("10", "20"), [("limit", 10, 20)], State.AFRESH),
        (RESET, f"{RESET}, name: A", [("name", None, "A")], State.KEPT),
        (
            "id: a, quota: 10/s; 20/m",
            "id: a, quota: 10/s; 20/h",
            [
                (
                    "limits",
                    [{"limit": 10, "window": "1s"}, {"limit": 20, "window": "1m"}],
                    [{"limit": 10, "window": "1s"}, {"limit": 20, "window": "1h"}],
                )
            ],
            State.PARTLY,
        ),
    ]
    for old, new, fields, state in cases:
        (change,) = difference(old, new).changed
        assert {(field.field, str(field.before), str(field.after)) for field in change.fields} == {
            (name, str(before), str(after)) for name, before, after in fields
        }
        assert change.state is state, old
        assert bool(change.because) is (state is not State.KEPT), old


def test_why_a_rule_starts_afresh() -> None:
    """Rather than believe the words: what was used is still there, or not."""
    cases: list[tuple[str, State, str]] = [
        (f"{BASE}, dimension: ip", State.AFRESH, "it counts by ip now"),
        (f"{BASE}, dimension: ip, algorithm: gcra, reset_on_change: true", State.AFRESH, "it counts by ip now"),
        ("id: a, limit: 10, window: 2m", State.AFRESH, "the algorithm or the window changed"),
        (RESET, State.AFRESH, "of reset_on_change"),
        ("id: a, quota: 10/m; 5/s", State.PARTLY, "there was no 5/second before"),
    ]
    for new, state, because in cases:
        (change,) = difference(BASE, new).changed
        assert (change.state, change.because) == (state, because), new
        store = MemoryStore(clock=ManualClock())
        same = {"user": "10.0.0.1", "ip": "10.0.0.1"}
        for text, used in ((BASE, {"a": 1}), (new, {"a": 1 if state is State.AFRESH else 2})):
            ruling = Engine(load(f"version: 1\nrules: [{{{text}}}]"), store=store).check(Request(same))
            assert {limit.rule_id: 10 - limit.decision.remaining for limit in ruling.limits[:1]} == used, new


def test_only_the_meaning_counts_and_rules_come_and_go() -> None:
    assert difference("id: a, quota: 10/minute", "limit: 10, window: 60, id: a, enabled: true").same
    assert difference("id: a, capacity: 10, refill_rate: 5", "id: a, limit: 5, window: 1s, burst: 5").same
    diff = difference("id: a, quota: 1/s", "id: b, quota: 1/s")
    assert ([rule.id for rule in diff.removed], [rule.id for rule in diff.added]) == (["a"], ["b"])
    assert diff.changed == ()


OLD = """
version: 1
rules: [{id: a, quota: 10/s}]
tiers: {premium: {a: {limit: 20}}, gone: {a: {limit: 1}}}
users: {ada: {tier: premium}, bob: {overrides: {a: {limit: 30}}}}
allow: [{ip: 10.0.0.0/8}]
default: 5/s
"""
NEW = """
version: 1
rules: [{id: a, quota: 10/s}]
tiers: {premium: {a: {limit: 20, window: 1m}}}
users: {ada: {}, bob: {overrides: {a: {limit: 31, until: 2026-12-01T00:00:00Z}}}}
allow: [{ip: 10.0.0.0/9}]
deny: [{user: eve}]
default_tier: free
unknown_rule: error
"""


def test_tiers_users_lists_and_settings() -> None:
    diff = compare(load(OLD), load(NEW))
    assert [rule.id for rule in diff.removed] == ["default"]
    assert diff.others == (
        FieldChange("tiers.premium.a", {"limit": 20}, {"limit": 20, "window": "1m"}, State.AFRESH),
        FieldChange("tiers.gone.a", {"limit": 1}, None, State.KEPT),
        FieldChange("users.ada.tier", "premium", None),
        FieldChange("users.bob.overrides.a", {"limit": 30}, {"limit": 31, "until": "2026-12-01T00:00:00Z"}, State.KEPT),
        FieldChange("allow", {"ip": "10.0.0.0/8"}, None),
        FieldChange("allow", None, {"ip": "10.0.0.0/9"}),
        FieldChange("deny", None, {"user": "eve"}),
        FieldChange("default_tier", "", "free"),
        FieldChange("unknown_rule", "", "error"),
    )


def test_the_default_may_become_a_rule() -> None:
    old, new = load("{version: 1, default: {id: a, quota: 1/s}}"), load("{version: 1, rules: [{id: a, quota: 1/s}]}")
    (change,) = compare(old, new).changed
    assert change.fields == (FieldChange("default", before=True, after=False),)
    assert change.state is State.KEPT


@given(rulesets(), rulesets())
@settings(max_examples=15)
def test_only_equal_rules_are_the_same_and_differences_are_json(old: Ruleset, new: Ruleset) -> None:
    assert compare(old, old).same
    diff = compare(old, new)
    assert json.loads(json.dumps(diff.to_data())) == diff.to_data()
    back = compare(new, old)
    assert [rule.id for rule in diff.added] == [rule.id for rule in back.removed]
    assert {change.id for change in diff.changed} == {change.id for change in back.changed}
