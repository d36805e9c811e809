"""Rules as people and programs may write them: random ones, and those of the example files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from headgate import Algorithm, Quota
from headgate.core.calendar import Calendar
from headgate.core.errors import UsageError
from headgate.core.mode import Mode
from headgate.policy.compiled import Policy
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from tests.core.quotas import odd_buckets, quotas

FILES = Path(__file__).parent / "files"
GOOD = sorted((FILES / "good").glob("*.yaml"))
BAD = sorted((FILES / "bad").glob("*.yaml"))
IDS = ["orders", "search", "a.b:c/d-e_f", "404", "on", "1e3"]
names = st.sampled_from(["user", "ip", "tenant", "apikey", "global", "no", "12"])
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
tiers = st.sampled_from(["free", "premium", "1.5", "~", "true"])
moments = st.integers(0, 253_402_300_799_999_999)
calendars = st.builds(
    lambda limit, unit, zone: Quota.per(limit, Calendar(unit, zone)),
    st.integers(1, 9),
    st.sampled_from(["day", "week", "month", "year"]),
    st.sampled_from(["UTC", "Europe/Berlin"]),
)


# Strategies are made once, not in functions that draw from them: that takes longer than to draw.
percents = st.tuples(st.integers(1, 100), st.integers(1, 100)).map(sorted)
options = st.tuples(st.none() | percents, st.booleans())


def assert_golden(lines: list[str], golden: Path) -> None:
    """Compare word for word with a file. After a change: HEADGATE_GOLDEN=write pytest ..., and read the difference."""
    if os.environ.get("HEADGATE_GOLDEN") == "write":
        golden.write_text("".join(lines))
    assert lines == golden.read_text().splitlines(keepends=True)


def with_options(quota: Quota, drawn: tuple[list[int] | None, bool]) -> Quota:
    levels, queue = drawn
    if levels is not None:
        quota = replace(quota, warn_percent=levels[1], calm_percent=levels[0])
    return replace(quota, queue=True) if queue and quota.algorithm is Algorithm.LEAKY_BUCKET else quota


written_quotas = st.builds(with_options, st.one_of(quotas(), odd_buckets(), calendars), options)
several = st.lists(written_quotas, min_size=1, max_size=3, unique_by=lambda quota: quota.shape).map(tuple)
fields = st.fixed_dictionaries(
    {
        "quotas": several,
        "name": st.just("") | texts,
        "dimension": names | st.sampled_from(["user+endpoint", "tenant+user+ip"]),
        "endpoint": st.sampled_from(["**", "/", "/a/*/b", "/a/{id}/**", "/caf%C3%A9"]),
        "methods": st.frozensets(st.sampled_from(["GET", "POST", "NO", "M-SEARCH"])),
        "tier": st.just("") | tiers,
        "when": st.dictionaries(names, texts, max_size=2),
        "shadow": st.booleans(),
        "enabled": st.booleans(),
        "enforce_percent": st.integers(0, 100),
        "on_store_failure": st.sampled_from([None, *Mode]),
        "replicas": st.integers(0, 2),
        "reset_on_change": st.booleans(),
        "created_at": st.sampled_from(["", "2026-01-01T00:00:00Z"]),
    }
)
default_rules = st.none() | fields.map(lambda drawn: Rule("other", **drawn))
changes = st.one_of(
    st.builds(Change, limit=st.integers(1, 99), until=st.one_of(st.none(), moments)),
    st.builds(Change, capacity=st.integers(1, 99)),
    st.builds(Change, burst=st.integers(-3, 9), window_us=st.integers(1, 10**9), algorithm=st.sampled_from(Algorithm)),
    st.builds(Change, quotas=several, until=st.one_of(st.none(), moments)),
    st.just(Change()),
)
entries = st.one_of(
    st.builds(Entry, st.just("ip"), st.sampled_from(["10.0.0.0/8", "::1", "10.*"])),
    st.builds(Entry, names.filter(lambda name: name != "ip"), texts),
)


by_rule = st.dictionaries(st.sampled_from(IDS), changes, max_size=2)
settings = st.fixed_dictionaries(
    {
        "tiers": st.dictionaries(tiers, by_rule, max_size=2),
        "users": st.dictionaries(texts, st.builds(User, st.just("") | tiers, by_rule), max_size=2),
        "default_tier": st.just("") | tiers,
        "allow": st.lists(entries, max_size=2).map(tuple),
        "deny": st.lists(entries, max_size=2).map(tuple),
        "default": default_rules,
        "unknown_rule": st.sampled_from(["allow", "error"]),
        "ignore_case": st.booleans(),
    }
)
rules = st.lists(st.tuples(st.sampled_from(IDS), fields, st.frozensets(st.sampled_from(IDS))), max_size=4)


@st.composite
def rulesets(draw: st.DrawFn) -> Ruleset:
    written: dict[str, Rule] = {}
    for rule_id, drawn, replaces in draw(rules):
        if rule_id not in written:  # a rule replaces only those before it
            written[rule_id] = Rule(rule_id, replaces=replaces & written.keys(), **drawn)
    given: dict[str, Any] = draw(settings)

    def known(changed: Mapping[str, Change]) -> dict[str, Change]:
        return {rule_id: change for rule_id, change in changed.items() if rule_id in written}

    given["tiers"] = {tier: known(changed) for tier, changed in given["tiers"].items()}
    given["users"] = {name: User(user.tier, known(user.overrides)) for name, user in given["users"].items()}
    try:
        ruleset = Ruleset(tuple(written.values()), **given)
    except UsageError:  # a change that makes no quota of a rule
        assume(False)
        raise
    Policy(ruleset)  # whatever a ruleset accepts can be compiled
    return ruleset
