"""Rules as people and programs may write them: random ones, and those of the example files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

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


@st.composite
def written_quotas(draw: st.DrawFn) -> Quota:
    quota = draw(st.one_of(quotas(), odd_buckets(), calendars))
    if draw(st.booleans()):
        calm, warn = sorted((draw(st.integers(1, 100)), draw(st.integers(1, 100))))
        quota = replace(quota, warn_percent=warn, calm_percent=calm)
    if quota.algorithm is Algorithm.LEAKY_BUCKET and draw(st.booleans()):
        quota = replace(quota, queue=True)
    return quota


several = st.lists(written_quotas(), min_size=1, max_size=3, unique_by=lambda quota: quota.shape).map(tuple)


@st.composite
def rules(draw: st.DrawFn, rule_id: str, others: list[str]) -> Rule:
    return Rule(
        id=rule_id,
        quotas=draw(several),
        name=draw(st.one_of(st.just(""), texts)),
        dimension=draw(st.one_of(names, st.sampled_from(["user+endpoint", "tenant+user+ip"]))),
        endpoint=draw(st.sampled_from(["**", "/", "/a/*/b", "/a/{id}/**", "/caf%C3%A9"])),
        methods=draw(st.frozensets(st.sampled_from(["GET", "POST", "NO", "M-SEARCH"]))),
        tier=draw(st.one_of(st.just(""), tiers)),
        when=draw(st.dictionaries(names, texts, max_size=2)),
        shadow=draw(st.booleans()),
        enabled=draw(st.booleans()),
        enforce_percent=draw(st.integers(0, 100)),
        replaces=draw(st.frozensets(st.sampled_from(others))) if others else frozenset(),
        on_store_failure=draw(st.sampled_from([None, *Mode])),
        replicas=draw(st.integers(0, 2)),
        reset_on_change=draw(st.booleans()),
        created_at=draw(st.sampled_from(["", "2026-01-01T00:00:00Z"])),
    )


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


@st.composite
def rulesets(draw: st.DrawFn) -> Ruleset:
    ids = draw(st.lists(st.sampled_from(IDS), unique=True, max_size=4))
    written = [draw(rules(rule_id, ids[:place])) for place, rule_id in enumerate(ids)]
    by_rule = st.dictionaries(st.sampled_from(ids), changes, max_size=2) if ids else st.just({})
    try:
        ruleset = Ruleset(
            rules=tuple(written),
            tiers=draw(st.dictionaries(tiers, by_rule, max_size=2)),
            users=draw(st.dictionaries(texts, st.builds(User, st.one_of(st.just(""), tiers), by_rule), max_size=2)),
            default_tier=draw(st.one_of(st.just(""), tiers)),
            allow=tuple(draw(st.lists(entries, max_size=2))),
            deny=tuple(draw(st.lists(entries, max_size=2))),
            default=draw(st.one_of(st.none(), rules("other", []))),
            unknown_rule=draw(st.sampled_from(["allow", "error"])),
            ignore_case=draw(st.booleans()),
        )
    except UsageError:  # a change that makes no quota of a rule
        assume(False)
        raise
    Policy(ruleset)  # whatever a ruleset accepts can be compiled
    return ruleset
