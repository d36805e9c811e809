"""The example file of the requirements, as it stands, and others of its form."""

from __future__ import annotations

from itertools import permutations

import pytest

from headgate import Quota
from headgate.core.mode import Mode
from headgate.policy.compiled import Policy
from headgate.policy.loading import InvalidRules, load, load_file, read, read_file
from headgate.policy.model import Rule
from headgate.policy.request import Request
from tests.policy.written import FILES

SEED = FILES / "good" / "seed.yaml"


def bucket(capacity: int, rate: float, interval_ms: int) -> tuple[Quota, ...]:
    return (Quota.from_bucket(capacity, rate, min_refill_interval_ms=interval_ms),)


def test_the_example_loads_as_it_stands() -> None:
    standard = Rule(
        "api_standard_user",
        bucket(1000, 10, 10),
        dimension="user",
        endpoint="/api.search",
        on_store_failure=Mode.ALLOW,
    )
    premium = Rule(
        "api_premium_user",
        bucket(10_000, 100, 10),
        dimension="user",
        endpoint="/api.search",
        tier="premium",
        replaces=frozenset({"api_standard_user"}),
        on_store_failure=Mode.ALLOW,
    )
    by_ip = Rule("ip_global_limit", bucket(100, 5, 50), dimension="ip", on_store_failure=Mode.ALLOW)
    for_all = Rule(
        "global_api_limit",
        bucket(1_000_000, 10_000, 10),
        dimension="global",
        endpoint="/api.search",
        on_store_failure=Mode.ALLOW,
    )
    assert load_file(SEED).rules == (standard, premium, by_ip, for_all)


def test_what_is_not_about_rules_is_said() -> None:
    told = {odd.path: odd.hint for odd in read_file(SEED).warnings}
    elsewhere = ("enable_read_cache", "read_cache_ttl_ms", "redis", "health_check")
    assert told.keys() == {"rate_limits[1].name", *(f"runtime.{key}" for key in elsewhere)}
    assert told["runtime.redis"] == "Give the server --store redis://redis.default.svc.cluster.local:6379/0."


def test_what_is_guessed_is_said() -> None:
    (guess,) = (odd for odd in read_file(SEED).warnings if odd.path == "rate_limits[1].name")
    assert guess.line == 10
    assert guess.message == "is taken as the limit of tier 'premium', and 'api_standard_user' as that of everyone else"


def test_the_order_of_limits_does_not_matter() -> None:
    limits = [
        f"  - {{name: api_{tier}_user, scope: user, capacity: {capacity}, refill_rate: 1}}\n"
        for tier, capacity in (("gold", 500), ("free", 10), ("premium", 100))
    ]
    for order in permutations(limits):
        loaded = read("rate_limits:\n" + "".join(order))
        tiers = {rule.id: (rule.tier, {*rule.replaces}) for rule in loaded.ruleset.rules}
        assert tiers == {
            "api_free_user": ("", set()),
            "api_gold_user": ("gold", {"api_free_user"}),
            "api_premium_user": ("premium", {"api_free_user"}),
        }
        assert len(loaded.warnings) == 2


def test_a_name_without_a_tier_is_for_everyone() -> None:
    limit = "scope: user, refill_rate: 1"
    names = f"[{{name: api_trial_user, capacity: 10, {limit}}}, {{name: api_user, capacity: 100, {limit}}}]"
    trial, base = load(f"rate_limits: {names}").rules
    assert (trial.tier, trial.replaces, base.tier) == ("trial", frozenset({"api_user"}), "")


@pytest.mark.parametrize(("tier", "applied"), [("", "api_standard_user"), ("premium", "api_premium_user")])
def test_a_user_has_the_limit_of_one_tier(tier: str, applied: str) -> None:
    policy = Policy(load_file(SEED))
    asked = Request(principal={"user": "ada", "ip": "203.0.113.9"}, endpoint="api.search", tier=tier)
    assert {*policy.select(asked, 0).enforced.rules} == {applied, "ip_global_limit", "global_api_limit"}


@pytest.mark.parametrize(
    ("runtime", "mode"),
    [("", None), ("runtime: {fail_open: true}", Mode.ALLOW), ("runtime: {fail_open: false}", Mode.DENY)],
)
def test_failing_open_or_closed(runtime: str, mode: Mode | None) -> None:
    (rule,) = load(f"rate_limits: [{{name: a, scope: api_key, capacity: 1, refill_rate: 1}}]\n{runtime}").rules
    assert (rule.on_store_failure, rule.dimension, rule.endpoint) == (mode, "apikey", "**")
    assert rule.quotas[0].refill_every_us == 10_000


def test_three_tiers_and_a_path() -> None:
    limit = "scope: user, resource: /api/v1/orders/**, capacity: 10, refill_rate: 1"
    names = ["orders-free", "orders-gold", "orders-gold-plus"]
    rules = load("rate_limits:\n" + "".join(f"  - {{name: {name}, {limit}}}\n" for name in names[:2])).rules
    assert [(rule.tier, set(rule.replaces), rule.endpoint) for rule in rules] == [
        ("", set(), "/api/v1/orders/**"),
        ("gold", {"orders-free"}, "/api/v1/orders/**"),
    ]
    with pytest.raises(InvalidRules, match="no tier can be told from its name"):
        load("rate_limits:\n" + "".join(f"  - {{name: {name}, {limit}}}\n" for name in names))
