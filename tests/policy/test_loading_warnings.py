"""What rules say in vain is a warning, where it is written."""

from __future__ import annotations

import pytest

from headgate.engine import Engine
from headgate.policy.loading import load_file, read, read_file
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


@pytest.mark.parametrize(
    ("text", "told"),
    [
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
        ("users: {ada: {tier: fre}}", ["3 users.ada.tier: has no effect: there is no tier 'fre', and no rule for one"]),
        ("default_tier: fre", ["3 default_tier: has no effect: there is no tier 'fre', and no rule for one"]),
        (
            "tiers: {free: {b: {limit: 1, until: 2026-01-01T00:00:00Z}}}",
            ["3 tiers.free.b.until: has no effect any more: it ended at 2026-01-01T00:00:00Z"],
        ),
        (
            "users: {ada: {overrides: {b: {limit: 1, until: 2026-01-01T00:00:00Z}}}}",
            ["3 users.ada.overrides.b.until: has no effect any more: it ended at 2026-01-01T00:00:00Z"],
        ),
        ("users: {ada: {overrides: {b: {limit: 1, until: 2027-01-01T00:00:00Z}}}}", []),
    ],
)
def test_changes_that_change_nothing(text: str, told: list[str]) -> None:
    assert warnings(FOR_FREE + text) == told


def test_a_misspelt_tier_gets_a_suggestion() -> None:
    (odd,) = read(f"{FOR_FREE}default_tier: fre").warnings
    assert odd.hint == "Did you mean 'free'?"


COMPARES = "compares an attribute {0!r} that callers give, and not the request's own {0}"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("when: {region: eu, user: ada, endpoint: /a}", []),
        ("when: {method: POST}", [f"2 rules[0].when.method: {COMPARES.format('method')}"]),
        ("when: {tier: gold}", [f"2 rules[0].when.tier: {COMPARES.format('tier')}"]),
        ("enforce_percent: 30", []),
        ("dimension: global, enforce_percent: 0", []),
        (
            "dimension: global, enforce_percent: 1",
            [
                "2 rules[0].enforce_percent: a global rule counts all as one: at 1 percent it is enforced for none",
            ],
        ),
        (
            "dimension: global, enforce_percent: 99",
            [
                "2 rules[0].enforce_percent: a global rule counts all as one: at 99 percent it is enforced for all",
            ],
        ),
    ],
)
def test_fields_that_do_not_do_what_they_seem_to(fields: str, told: list[str]) -> None:
    assert warnings(f"version: 1\nrules: [{{id: x, quota: 5/m, {fields}}}]") == told


def test_the_default_is_looked_at_as_well() -> None:
    (told,) = warnings("version: 1\ndefault: {quota: 5/m, when: {tier: gold}}")
    assert told.startswith("2 default.when.tier: ")


def test_the_example_of_the_design_has_changes_for_those_whom_its_rule_is_not_for() -> None:
    told = [f"{odd.path}: {odd.message}" for odd in read_file(DESIGN, now=NOVEMBER).warnings]
    why = "has no effect: the rule is only for tier free"
    assert told == [
        f"tiers.premium.orders-user: {why}",
        f'users["12345"].overrides.orders-user: {why}, and the user is of tier premium',
    ]
    assert len(read_file(DESIGN, now=JANUARY).warnings) == 3


@pytest.mark.parametrize(
    ("user", "tier", "capacity"),
    [("42", "free", 120), ("42", "", None), ("42", "premium", None), ("12345", "", None), ("12345", "free", 5020)],
)
def test_who_gets_which_limit_by_the_example_of_the_design(user: str, tier: str, capacity: int | None) -> None:
    """It is for the free tier, and for nobody else; not even for the user of another tier who has an override."""
    with Engine(load_file(DESIGN), clock=ManualClock(NOVEMBER)) as engine:
        ruling = engine.check(Request({"user": user}, "/api/v1/orders/1", "POST", {"region": "eu"}, tier=tier))
    assert ruling.allowed
    assert (ruling.decision.limit if ruling.decision else None) == capacity


@pytest.mark.parametrize(
    ("user", "now", "capacity"),
    [("42", NOVEMBER, 120), ("12345", NOVEMBER, 5020), ("12345", JANUARY, 1020)],
)
def test_a_check_of_the_rule_itself_asks_for_no_tier(user: str, now: int, capacity: int) -> None:
    with Engine(load_file(DESIGN), clock=ManualClock(now)) as engine:
        ruling = engine.check(Request({"user": user}, rule_id="orders-user"))
    assert ruling.decision is not None
    assert ruling.decision.limit == capacity


@pytest.mark.parametrize(
    ("user", "tier", "now", "capacity"),
    [
        ("42", "", NOVEMBER, 120),
        ("42", "premium", NOVEMBER, 1020),
        ("12345", "", NOVEMBER, 5020),
        ("12345", "", JANUARY, 1020),
    ],
)
def test_without_the_tier_it_is_for_all_and_its_changes_act(user: str, tier: str, now: int, capacity: int) -> None:
    loaded = read(DESIGN.read_text().replace("    tier: free  ", "    # "), now=NOVEMBER)
    assert loaded.warnings == ()
    with Engine(loaded.ruleset, clock=ManualClock(now)) as engine:
        ruling = engine.check(Request({"user": user}, "/api/v1/orders/1", "POST", {"region": "eu"}, tier=tier))
    assert ruling.decision is not None
    assert ruling.decision.limit == capacity
