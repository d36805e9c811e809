"""Limits suggested from logs: the measurement, the rules, and a replay of them."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from headgate import Limiter, MemoryStore
from headgate.cli.__main__ import main
from headgate.core.algorithms import Algorithm
from headgate.core.errors import UsageError
from headgate.policy.loading import read
from headgate.replay.endpoints import MOST_NODES, Endpoints
from headgate.replay.entry import Entry
from headgate.replay.suggesting import Suggester, Suggestion, round_up
from headgate.replay.use import Usage
from headgate.testing import ManualClock

MINUTE, HOUR = 60_000_000, 3_600_000_000
BEGAN = 1_795_003_200 * 1_000_000
Printed = pytest.CaptureFixture[str]


def request(at: int, who: str, path: str = "/orders", method: str = "GET", status: int = 200, **others: Any) -> Entry:
    return Entry(BEGAN + at, others.pop("address", "203.0.113.9"), who, method, path, "", status, **others)


def suggested(entries: Iterable[Entry], **options: Any) -> Suggestion:
    suggester = Suggester(**options)
    suggester.read(entries)
    return suggester.suggestion()


def shop() -> list[str]:
    """Return three hours of a shop with 150 users and two abusers, as nginx logs them."""
    chance = random.Random(24)
    entries = []
    for user in range(150):
        for minute in chance.sample(range(180), 8):
            at = minute * MINUTE
            entries.append(request(at, f"user{user}", "/api/orders", "POST", 201))
            for _ in range(chance.randrange(1, 6)):
                entries.append(request(at, f"user{user}", f"/api/orders/{chance.randrange(10**6)}"))
                product = f"{chance.choice('abcdefgh')}-{chance.randrange(99)}"
                entries.append(request(at, f"user{user}", f"/api/products/{product}"))
    entries += [request(each * 1_000_000, "scraper", f"/api/products/p-{each % 300}") for each in range(3600)]
    entries += [request(HOUR + each * 250_000, "tester", "/api/orders", "POST", 201) for each in range(300)]
    entries.append(request(2 * HOUR, "tester", "/api/orders", "POST", 429))
    entries += [request(chance.randrange(3 * HOUR), "", f"/.env{number}", "GET", 404) for number in range(500)]
    entries.sort()
    return [
        f'{each.address} - {each.user or "-"} [{_clf(each.at)}] "{each.method} {each.path} HTTP/1.1" {each.status} 5'
        for each in entries
    ]


def _clf(at: int) -> str:
    seconds = (at - BEGAN) // 1_000_000
    return f"18/Nov/2026:{12 + seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02} +0000"


def test_suggested_rules_refuse_only_the_outliers(tmp_path: Path, capsys: Printed) -> None:
    log, rules = tmp_path / "access.log", tmp_path / "rules.yaml"
    lines = shop()
    log.write_text("\n".join([*lines, "no line", ""]))
    assert main(["rules", "suggest", str(log)]) == 0
    output = capsys.readouterr()
    assert "1 line could not be read" in output.err
    assert f"line {len(lines) + 1:,}: not a line of this format: no line" in output.err
    assert "# 500 requests" in output.out
    assert "# Requests answered with 429: 1." in output.out
    by_id = {rule.id: rule for rule in read(output.out, name="suggested").ruleset.rules}
    assert {(rule.endpoint, *rule.methods) for rule in by_id.values()} == {
        ("**",), ("/api/orders", "POST"), ("/api/orders/*", "GET"), ("/api/products/*", "GET")
    }  # fmt: skip
    assert all(rule.shadow for rule in by_id.values())
    assert "2 of 152 users exceeded it: scraper (3,600 in an hour), tester (240 in a minute)." in output.out
    assert "1 of 151 users exceeded it: tester (240 in a minute)." in output.out
    rules.write_text(output.out)
    assert main(["rules", "validate", "--strict", str(rules)]) == 0
    where = ["--database", f"sqlite:///{tmp_path / 'headgate.db'}"]
    assert main(["rules", "apply", str(rules), "--dry-run", *where]) == 0
    capsys.readouterr()
    assert main(["rules", "suggest", "--enforce", str(log)]) == 0
    rules.write_text(capsys.readouterr().out)
    assert main(["replay", "--rules", str(rules), "--json", str(log)]) == 0
    found = json.loads(capsys.readouterr().out)["rules"][0]
    assert found["refused"] > 1000
    refused = {each["principal"] for rule in found["rules"] for each in rule["refused"]["top"]}
    assert refused == {"scraper", "tester"}


def test_paths_become_endpoints() -> None:
    endpoints = Endpoints()
    expected = {
        "/": "/", "/users/17": "/users/*", "/users/me": "/users/me", "/v2/oauth2/token": "/v2/oauth2/token",
        "/files/3f2504e0-4f89-11d3-9a0c-0305e82c3301/raw": "/files/*/raw", "/commits/9fceb02d0ae5": "/commits/*",
        "/customers/cus_NffrFeUfNV2Hib": "/customers/*", "/days/2026-11-18": "/days/*",
        "/mail/a@example.com": "/mail/*",
        "/a/b/c/d/e/f/g/h/i/j": "/a/b/c/d/e/f/g/h/**", "/feedback": "/feedback", "/a*b": "/*",
        "/deadbeef": "/deadbeef",
    }  # fmt: skip
    for path, pattern in expected.items():
        for method in ("GET", "HEAD"):
            found = endpoints.find(method, path, 200)
            assert found is not None
            assert (found.method, found.pattern) == ("GET", pattern)
    assert endpoints.find("GET", "/wp-login.php", 404) is None
    assert endpoints.find("BREW", "/", 200) is None


def test_segments_with_many_values_are_identifiers() -> None:
    endpoints = Endpoints()
    for number in range(1000):
        endpoints.find("GET", f"/blog/{'x' * (number % 40)}{chr(97 + number % 26)}/comments", 200)
        endpoints.find("GET", "/login", 200)
    assert {str(each): each.requests for each in endpoints} == {"GET /blog/*/comments": 1000, "GET /login": 1000}


def test_a_scan_hides_no_endpoint_and_takes_bounded_memory() -> None:
    endpoints = Endpoints()
    for number in range(30_000):
        for name in ("orders", "users", "login"):
            endpoints.find("GET", f"/{name}", 200)
        word = "".join(chr(97 + int(digit)) for digit in str(number))
        endpoints.find("GET", f"/{word}" if number < 10_000 else f"/orders/{word[:2]}/{word[1:3]}/{word[2:]}/x", 200)
    found = {str(each): each.requests for each in endpoints}
    assert {found[f"GET /{name}"] for name in ("orders", "users", "login")} == {30_000}
    assert len(found) < MOST_NODES


def busy(count: int, peaks: Sequence[int]) -> Iterable[Entry]:
    """Return requests of many principals over two hours, each with a busiest minute of one of these numbers."""
    chance = random.Random(7)
    order = [f"p{number}" for number in range(count)]
    chance.shuffle(order)
    for place, who in enumerate(order):
        for _ in range(peaks[int(who[1:]) % len(peaks)]):
            yield request(2 * HOUR * place // count // MINUTE * MINUTE, who)


def test_memory_is_bounded_and_a_sample_gives_the_same_percentiles() -> None:
    """1 % need 9 requests in a minute, 10 % need 3; four outliers are last, most of them outside the sample."""
    peaks = [9] + [3] * 10 + [1] * 89
    tracemalloc.start()
    try:
        usage = Usage(most_cells=3000)
        suggester = Suggester(usage=usage)
        suggester.read([*busy(15_000, peaks), *[request(2 * HOUR, f"abuser{each}") for each in range(4)] * 400])
        assert tracemalloc.get_traced_memory()[0] < 13 << 20
    finally:
        tracemalloc.stop()
    assert usage.level >= 3
    overall = suggester.suggestion().rules[0]
    minute = next(reason for reason in overall.reasons if "minute" in reason)
    assert "p50 1, p99 3, p99.9 9, most" in minute or "p50 1, p99 9, p99.9 9, most" in minute
    assert {over.principal for over in overall.over} == {f"abuser{each}" for each in range(4)}
    count = int(overall.reasons[0].split("about ")[1].split()[0].replace(",", ""))
    assert 12_500 < count < 17_500


def test_ever_busier_principals_do_not_shrink_the_sample() -> None:
    usage = Usage(most_cells=400)
    for number in range(2000):
        for _ in range(1 + number // 40):
            usage.add(BEGAN + number * MINUTE, f"p{number}", "GET", "/", 200)
    use = usage.use(None, 0)
    assert use.weight > 1
    assert len(use.sample) > 400 // 8
    assert 1500 < len(use.sample) * use.weight < 2500


def test_limits_ignore_outliers_but_not_larger_groups() -> None:
    crowd = [request(minute * MINUTE, f"user{user}") for user in range(50) for minute in range(61) for _ in range(4)]
    abuse = [request(0, "abuser") for _ in range(500)]
    overall = suggested(sorted([*crowd, *abuse])).rules[0]
    assert overall.rule.quotas[0].limit == 8
    assert [over.principal for over in overall.over] == ["abuser"]
    heavy = [request(0, f"user{user}") for user in range(30, 50) for _ in range(500)]
    overall = suggested(sorted([*crowd, *heavy])).rules[0]
    assert overall.rule.quotas[0].limit == 1200
    assert overall.over == []


def test_occasional_callers_do_not_hide_regular_ones() -> None:
    often = [request(minute * MINUTE, f"often{each}") for each in range(120) for minute in range(5) for _ in range(6)]
    once = [request(minute * MINUTE, f"once{minute}-{each}") for minute in range(5) for each in range(4000)]
    promotion = [request(each, f"once{each}", "/promotion") for each in range(4000)]
    found = suggested(sorted([*often, *once, *promotion]))
    (overall,) = found.rules
    assert overall.reasons[0].endswith("by 24,120 users. Percentiles are those of 120 with 10 requests or more.")
    assert overall.rule.quotas[0].limit == 12
    assert overall.over == []
    assert "Busy endpoints without a rule, since they have too few regular users: 1." in found.about


def test_requests_are_counted_by_caller() -> None:
    cases: list[tuple[dict[str, Any], list[Entry], str, str]] = [
        ({}, [request(0, "a"), request(1, "b"), request(2, "")], "user", "2 users"),
        ({}, [request(0, "a"), request(1, ""), request(2, "")], "ip", "1 address"),
        ({"by": "ip"}, [request(0, "a", address=f"2001:db8::{each}") for each in "123"], "ip", "1 address"),
        ({}, [request(0, "", fields={"apikey": each}) for each in "ab"], "apikey", "2 API keys"),
        ({"by": "tenant", "field": "x"}, [request(0, "a", fields={"x": id_}) for id_ in "abc"], "tenant", "3 tenants"),
    ]
    for options, entries, dimension, count in cases:
        first = suggested(entries, **options).rules[0]
        assert first.rule.dimension == dimension
        assert first.reasons[0].endswith(f"by {count}.")


def test_names_from_the_log_stay_inside_the_comments() -> None:
    evil = "x\n- id: evil\n  limit: 1\u2028#\x1b[31m\x85" + "y" * 500
    paths = ("/orders/{a}", "/ü/%2e%2e", "/a b", '/"', "/<script>", "/#", "/**", "/{b}", "/'")
    entries = [request(each, evil, path) for each in range(100) for path in paths]
    written = suggested([*entries, *[request(1, f"u{each}") for each in range(9)]], by="user").to_yaml()
    data = yaml.safe_load(written)
    assert {rule.get("dimension", "user") for rule in data["rules"]} == {"user"}
    assert "evil" not in {rule["id"] for rule in data["rules"]}
    assert read(written, name="suggested").ruleset.rules
    assert all(line.isprintable() for line in written.split("\n"))


@pytest.mark.parametrize("algorithm", [*Algorithm])
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 59)), max_size=40))
def test_a_headroom_of_two_admits_all_callers_within_the_percentile(
    algorithm: Algorithm, requests: list[tuple[int, int]]
) -> None:
    """For any distribution of requests within minutes, and every algorithm."""
    times = [(minute * 60 + second) * 1_000_000 for minute, second in sorted(requests)]
    most = max(Counter(minute for minute, _ in requests).values(), default=1)
    clock = ManualClock(BEGAN)
    limiter = Limiter(f"{2 * most}/minute {algorithm}", store=MemoryStore(clock=clock))
    for time in times:
        clock.set(BEGAN + time)
        assert limiter.check("user").allowed


def test_limits_are_round_numbers() -> None:
    numbers = (0, 1, 7, 10, 11, 13, 21, 41, 81, 100, 101, 1234, 99_999)
    assert [round_up(each) for each in numbers] == [1, 1, 7, 10, 12, 15, 25, 50, 100, 100, 120, 1500, 100_000]


def test_errors_of_suggestions_have_the_reason(tmp_path: Path, capsys: Printed) -> None:
    with pytest.raises(UsageError, match="none of the 1 requests in the log has a user"):
        suggested([request(0, "")], by="user")
    for headroom in (0.5, 101, float("nan")):
        with pytest.raises(UsageError, match="headroom must be a number from 1 to 100"):
            Suggester(headroom=headroom)
    with pytest.raises(UsageError, match="the number of rules for endpoints must be from 0 to 1000"):
        Suggester(most_endpoints=-1)
    (tmp_path / "empty").touch()
    assert main(["rules", "suggest", str(tmp_path / "empty")]) == 2
    assert "the log has no requests" in capsys.readouterr().err
    log = tmp_path / "log"
    log.write_text('{"time": 1800000000, "path": "/", "sub": "u"}\n' * 3)
    assert main(["rules", "suggest", "--by", "team=org", str(log)]) == 2
    assert "none of the 3 requests in the log has a team" in capsys.readouterr().err
    assert main(["rules", "suggest", "--by", "team=sub", str(log)]) == 0
    assert "dimension: team" in capsys.readouterr().out
    assert main(["rules", "suggest", "--column", "user=typo", str(log)]) == 2
    assert "none of the 3 requests in the log has a user" in capsys.readouterr().err
