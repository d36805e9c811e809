"""The example file of the requirements, as it stands, and others of its form."""

from __future__ import annotations

from headgate import Quota
from headgate.core.mode import Mode
from headgate.policy.compiled import Policy
from headgate.policy.loading import load, read_file
from headgate.policy.model import Rule
from headgate.policy.request import Request
from tests.policy.written import FILES

SEED = FILES / "good" / "seed.yaml"


def limit(name: str, bucket: tuple[int, float, int], dimension: str, endpoint: str) -> Rule:
    quota = Quota.from_bucket(*bucket[:2], min_refill_interval_ms=bucket[2])
    return Rule(name, (quota,), dimension=dimension, endpoint=endpoint, on_store_failure=Mode.ALLOW)


def test_the_example_loads_unchanged() -> None:
    loaded = read_file(SEED)
    assert loaded.ruleset.rules == (
        limit("api_standard_user", (1000, 10, 10), "user", "/api.search"),
        limit("api_premium_user", (10_000, 100, 10), "user", "/api.search"),
        limit("ip_global_limit", (100, 5, 50), "ip", "**"),
        limit("global_api_limit", (1_000_000, 10_000, 10), "global", "/api.search"),
    )
    request = Request({"user": "ada", "ip": "203.0.113.9"}, "api.search")
    assert {*Policy(loaded.ruleset).select(request, 0).enforced.rules} == {rule.id for rule in loaded.ruleset.rules}
    found = {odd.path: odd for odd in loaded.warnings}
    elsewhere = ("enable_read_cache", "read_cache_ttl_ms", "redis", "health_check")
    assert found.keys() == {"rate_limits[1].name", *(f"runtime.{key}" for key in elsewhere)}
    assert all(odd.hint for odd in found.values())
    same = found["rate_limits[1].name"]
    assert same.line == 10
    assert same.message == (
        "has the scope and resource of 'api_standard_user': both apply, so the stricter one decides"
    )


def test_failing_open_or_closed() -> None:
    for runtime, mode in (
        ("", None),
        ("runtime: {fail_open: true}", Mode.ALLOW),
        ("runtime: {fail_open: false}", Mode.DENY),
    ):
        (rule,) = load(f"rate_limits: [{{name: a, scope: api_key, capacity: 1, refill_rate: 1}}]\n{runtime}").rules
        assert (rule.on_store_failure, rule.dimension, rule.endpoint) == (mode, "apikey", "**"), runtime
        assert rule.quotas[0].refill_every_us == 10_000, runtime


def test_a_resource_may_be_a_path() -> None:
    (rule,) = load("rate_limits: [{name: a, scope: user, resource: /api/*/orders, capacity: 1, refill_rate: 1}]").rules
    assert rule.endpoint == "/api/*/orders"
