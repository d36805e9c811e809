"""What rules say in vain is a warning, where it is written."""

from __future__ import annotations

from headgate.engine import Engine
from headgate.policy.loading import read, read_file
from headgate.policy.request import Request
from headgate.testing import ManualClock
from tests.policy.written import FILES

DESIGN = FILES / "good" / "design.yaml"
NOVEMBER, JANUARY = 1_793_000_000_000_000, 1_799_000_000_000_000
"""Before and after the override of the example ends: in 2026, and in 2027."""


def warnings(text: str) -> list[str]:
    """Return what is odd about rules, without the name of the file."""
    return [f"{odd.line} {odd.path}: {odd.message}" for odd in read(text, now=NOVEMBER).warnings]


FOR_FREE = "version: 1\nrules: [{id: a, quota: 5/m, tier: free}, {id: b, quota: 9/m}]\n"


def test_changes_that_change_nothing() -> None:
    cases: list[tuple[str, list[str]]] = [
        ("tiers: {free: {a: {limit: 1}}}", []),
        ("tiers: {gold: {b: {limit: 1}}}", []),
        ("tiers: {gold: {a: {limit: 1}}}", ["3 tiers.gold.a: has no effect: the rule is only for tier free"]),
        ("users: {ada: {tier: free, overrides: {a: {limit: 1}}}}", []),
        ("users: {ada: {overrides: {a: {limit: 1}}}}", []),
        ("users: {ada: {overrides: {a: {limit: 1}}}}\ndefault_tier: free", []),
        (
            "users: {ada: {tier: gold, overrides: {a: {limit: 1}}}}\ntiers: {gold: }\ndefault_tier: free",
            ["3 users.ada.overrides.a: has no effect: the rule is only for tier free, and the user is of tier gold"],
        ),
        (
            "users: {ada: {overrides: {a: {limit: 1}}}}\ntiers: {gold: }\ndefault_tier: gold",
            ["3 users.ada.overrides.a: has no effect: the rule is only for tier free, and the user is of tier gold"],
        ),
        (
            "users: {ada: {tier: fre}}",
            ["3 users.ada.tier: has no effect: tier 'fre' does not exist, and no rule names it"],
        ),
        ("default_tier: fre", ["3 default_tier: has no effect: tier 'fre' does not exist, and no rule names it"]),
        (
            "tiers: {free: {b: {limit: 1, until: 2026-01-01T00:00:00Z}}}",
            ["3 tiers.free.b.until: has no effect any more: it ended at 2026-01-01T00:00:00Z"],
        ),
        (
            "users: {ada: {overrides: {b: {limit: 1, until: 2026-01-01T00:00:00Z}}}}",
            ["3 users.ada.overrides.b.until: has no effect any more: it ended at 2026-01-01T00:00:00Z"],
        ),
        ("users: {ada: {overrides: {b: {limit: 1, until: 2027-01-01T00:00:00Z}}}}", []),
    ]
    for text, expected in cases:
        assert warnings(FOR_FREE + text) == expected


ALL_AS_ONE = "2 rules[0].enforce_percent: a global rule counts all callers together:"
COMPARES = "compares the attribute {0!r} of the caller, not the request's own {0}"


def test_fields_that_do_not_do_what_they_seem_to() -> None:
    cases: list[tuple[str, list[str]]] = [
        ("when: {region: eu, user: ada, endpoint: /a}", []),
        ("when: {method: POST}", [f"2 rules[0].when.method: {COMPARES.format('method')}"]),
        ("when: {tier: gold}", [f"2 rules[0].when.tier: {COMPARES.format('tier')}"]),
        ("enforce_percent: 30", []),
        ("dimension: global, enforce_percent: 0", []),
        ("dimension: global, enforce_percent: 1", [f"{ALL_AS_ONE} at 1 percent it is enforced for none"]),
        ("dimension: global, enforce_percent: 99", [f"{ALL_AS_ONE} at 99 percent it is enforced for all"]),
    ]
    for fields, expected in cases:
        assert warnings(f"version: 1\nrules: [{{id: x, quota: 5/m, {fields}}}]") == expected


def test_the_default_is_checked_as_well_and_a_misspelt_tier_gets_a_suggestion() -> None:
    (expected,) = warnings("version: 1\ndefault: {quota: 5/m, when: {tier: gold}}")
    assert expected.startswith("2 default.when.tier: ")
    (odd,) = read(f"{FOR_FREE}default_tier: fre").warnings
    assert odd.hint == "Did you mean 'free'?"


def test_the_example_has_changes_without_effect() -> None:
    expected = [f"{odd.path}: {odd.message}" for odd in read_file(DESIGN, now=NOVEMBER).warnings]
    why = "has no effect: the rule is only for tier free"
    assert expected == [
        f"tiers.premium.orders-user: {why}",
        f'users["12345"].overrides.orders-user: {why}, and the user is of tier premium',
    ]
    assert len(read_file(DESIGN, now=JANUARY).warnings) == 3


def test_without_a_tier_the_rule_is_for_all_and_its_changes_apply() -> None:
    for user, tier, now, capacity in (
        ("42", "", NOVEMBER, 120),
        ("42", "premium", NOVEMBER, 1020),
        ("12345", "", NOVEMBER, 5020),
        ("12345", "", JANUARY, 1020),
    ):
        loaded = read(DESIGN.read_text().replace("    tier: free  ", "    # "), now=NOVEMBER)
        assert loaded.warnings == (), user
        with Engine(loaded.ruleset, clock=ManualClock(now)) as engine:
            ruling = engine.check(Request({"user": user}, "/api/v1/orders/1", "POST", {"region": "eu"}, tier=tier))
        assert ruling.decision is not None, user
        assert ruling.decision.limit == capacity, user
