"""Files of rules and what they mean."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate import Algorithm, Quota
from headgate.config.problems import MOST, InvalidRules, ProblemKind
from headgate.config.yaml_text import Document, decode_text, resolve_scalar
from headgate.core.calendar import Calendar
from headgate.core.errors import InvalidRule
from headgate.core.mode import Mode
from headgate.policy.compiled import Policy
from headgate.policy.loading import (
    change_from_data,
    from_data,
    load,
    load_file,
    loads_json,
    read,
    read_apart,
    read_file,
    rule_from_data,
    user_from_data,
)
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from tests.policy.written import BAD, FILES, GOOD, assert_golden

MINUTE, DAY = 60_000_000, 86_400_000_000


def rule(text: str) -> Rule:
    """Return the one rule whose fields, besides the id, are written in `text`."""
    return load(f"version: 1\nrules: [{{id: a, {text}}}]").rules[0]


def problems(text: str) -> list[str]:
    """Return the problems of a file, without its name."""
    with pytest.raises(InvalidRules) as caught:
        load(text, name="f")
    return [f"{problem.line}:{problem.column} {problem.path}: {problem.message}" for problem in caught.value.problems]


def test_bad_files_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FILES / "bad")
    lines = []
    for path in BAD:
        with pytest.raises(InvalidRules) as caught:
            read_file(path.name)
        lines += [f"{problem}\n" for problem in caught.value.problems]
    assert_golden(lines, FILES / "bad.txt")


def test_the_example_of_the_design() -> None:
    orders = Rule(
        id="orders-user",
        name="Orders per user",
        dimension="user",
        endpoint="/api/v1/orders/**",
        methods=frozenset({"POST"}),
        tier="free",
        when={"region": "eu"},
        quotas=(Quota(100, MINUTE, burst=20),),
        on_store_failure=Mode.LOCAL,
    )
    assert load_file(FILES / "good" / "design.yaml") == Ruleset(
        rules=(orders,),
        tiers={"premium": {"orders-user": Change(limit=1000)}},
        users={"12345": User("premium", {"orders-user": Change(limit=5000, until=1_796_083_200_000_000)})},
    )


def test_the_ways_to_write_a_quota() -> None:
    cases: list[tuple[str, Sequence[Quota]]] = [
        ("limit: 10, window: 1m", [Quota(10, MINUTE)]),
        ("limit: 10, window: minute", [Quota(10, MINUTE)]),
        ("limit: 10, window: 1 Hour", [Quota(10, 60 * MINUTE)]),
        ("limit: 10, window: 60", [Quota(10, MINUTE)]),
        ("limit: 10, window: 0.25", [Quota(10, 250_000)]),
        ("limit: 10, window: day", [Quota(10, DAY)]),
        ("limit: 10, window: 1m, burst: 5, algorithm: gcra", [Quota(10, MINUTE, 5, Algorithm.GCRA)]),
        ("limit: 10, window: 1m, capacity: 4", [Quota(10, MINUTE, -6)]),
        ("limit: 10, window: 1s, algorithm: sliding_window", [Quota.parse("10/s sliding_window_counter")[0]]),
        ("limit: 10, window: 1s, refill_every: 10ms", [Quota(10, 1_000_000, refill_every_us=10_000)]),
        (
            "limit: 10, window: 1s, algorithm: leaky_bucket, queue: true",
            [Quota(10, 1_000_000, algorithm=Algorithm.LEAKY_BUCKET, queue=True)],
        ),
        (
            "limit: 10, window: 1m, warn_percent: 60, calm_percent: 50",
            [Quota(10, MINUTE, warn_percent=60, calm_percent=50)],
        ),
        ("quota: 10/m, warn_percent: 90", [Quota(10, MINUTE, warn_percent=90)]),
        ("quota: 10/s burst 20; 5000/day gcra", Quota.parse("10/s burst 20; 5000/day gcra")),
        (
            "capacity: 1000, refill_rate: 10.0, min_refill_interval_ms: 10",
            [Quota.from_bucket(1000, 10, min_refill_interval_ms=10)],
        ),
        ("capacity: 7, refill_rate: 0.1", [Quota(1, 10_000_000, 6)]),
        ("capacity: 7, refill_rate: 1/3", [Quota(1, 3_000_000, 6)]),
        ("capacity: 7, refill_rate: 0", [Quota.one_off(7)]),
        ("capacity: 7, refill_rate: 5, algorithm: token_bucket", [Quota(5, 1_000_000, 2)]),
        ("capacity: 7, refill_rate: 5, algorithm: gcra", [Quota(5, 1_000_000, 2, Algorithm.GCRA)]),
        (
            "capacity: 7, refill_rate: 5, algorithm: leaky_bucket, queue: true, warn_percent: 90",
            [Quota(5, 1_000_000, 2, Algorithm.LEAKY_BUCKET, queue=True, warn_percent=90)],
        ),
        (
            "limits: [{limit: 10, window: 1s}, {limit: 250, window: 1d, algorithm: fixed_window}, 9/m gcra]",
            Quota.parse("10/s; 250/d fixed_window; 9/m gcra"),
        ),
        (
            "limit: 250, window: month, calendar: Europe/Berlin",
            [Quota.per(250, Calendar("month", "Europe/Berlin"))],
        ),
        ("limit: 250, window: day, calendar: true", [Quota.per(250, Calendar("day"))]),
        ("limit: 250, window: day, calendar: false", [Quota(250, DAY)]),
        (
            "limits: [{limit: 9, window: week, calendar: UTC}, {limit: 1, window: 1s}]",
            [Quota.per(9, Calendar("week")), Quota(1, 1_000_000)],
        ),
    ]
    for text, quotas in cases:
        assert rule(text).quotas == tuple(quotas)


def test_fields_have_other_names_that_mean_the_same() -> None:
    """Those of other documents: rule_id, key_type, endpoint_pattern, window_seconds, and key_pattern."""
    assert load_file(FILES / "good" / "other_spellings.yaml") == load("""
        version: 1
        rules:
          - {id: rule_001, limit: 1000, window: 1m, algorithm: sliding_window_counter}
          - {id: keys, name: Orders per key, dimension: apikey, endpoint: /api/v1/orders/*, limit: 100, window: 1h,
             tier: free}
          - {id: bots, dimension: apikey, key_pattern: bot-*, quota: 1/s; 100/d}
          - {id: each, dimension: [user, endpoint], limit: 5, window: 1s}
        tiers: {premium: {rule_001: {limit: 5000, window: 1m}}}
        default: {id: others, dimension: ip, limit: 10, window: 1s}
        """)


def test_every_field_of_a_rule_is_read() -> None:
    ruleset = load_file(FILES / "good" / "everything.yaml")
    rules = {rule.id: rule for rule in ruleset.rules}
    assert rules["several"].when == {"region": "NO", "beta": "true", "shard": "7"}
    assert rules["several"].on_store_failure is Mode.DENY
    last = rules["404"]
    assert (last.dimension, last.methods, last.replaces) == (
        "tenant",
        frozenset({"GET", "NO"}),
        frozenset({"text", "several"}),
    )
    assert (last.shadow, last.enabled, last.enforce_percent, last.reset_on_change) == (True, False, 5, True)
    assert (last.replicas, rules["text"].replicas) == (1, 0)
    assert ruleset.allow == (Entry("ip", "10.0.0.0/8"), Entry("user", "bot-*"), Entry("user", "12345"))
    assert ruleset.users.keys() == {"12345", "on", "naïve user"}
    assert ruleset.users["on"].overrides["several"].until == 2_111_698_800_000_000
    assert ruleset.tiers["premium"]["bucket"].quotas == (Quota.from_bucket(10_000, 100),)
    assert ruleset.default is not None
    assert (ruleset.default.id, ruleset.default.dimension) == ("default", "ip")
    assert (ruleset.default_tier, ruleset.unknown_rule, ruleset.ignore_case) == ("free", "error", True)


TEXTS = "NO on yes off 1:30 010 0x1F 0o17 1_000 +5 2026-12-01 - . .inf 1e999 1.2.3 10.0.0.1 -0 \u0663"


def test_scalars_are_numbers_only_if_they_plainly_are() -> None:
    numbers = {"12": 12, "-12": -12, "0": 0, "1.5": 1.5, "1e3": 1000.0, ".5": 0.5}
    words = {"true": True, "FALSE": False, "~": None, "": None} | {text: text for text in (*TEXTS.split(), "9" * 41)}
    for plain, value in (numbers | words).items():
        assert (resolve_scalar(plain), type(resolve_scalar(plain))) == (value, type(value)), plain


def test_text_that_looks_like_another_type_stays_text() -> None:
    written = rule("dimension: no, methods: [GET, NO], tier: 2026, when: {region: NO, on: 'off'}, quota: 1/s")
    assert (written.dimension, written.methods, written.tier) == ("no", frozenset({"GET", "NO"}), "2026")
    assert written.when == {"region": "NO", "on": "off"}
    assert load("{version: 1, users: {0012: {tier: a}, ~: {tier: b}, 1.0: {}}}").users.keys() == {"0012", "~", "1.0"}


def test_anchors_aliases_and_merges() -> None:
    ruleset = load(
        """
        version: 1
        x-base: &base {dimension: ip, limit: 10, window: &window 1m}
        x-more: &more {limit: 99, burst: 5}
        rules:
          - {<<: *base, id: a, limit: 20}
          - {<<: [*base, *more], id: b}
          - {id: c, limit: 1, window: *window}
        """
    )
    quotas = [rule.quotas[0] for rule in ruleset.rules]
    assert quotas == [Quota(20, MINUTE), Quota(10, MINUTE, 5), Quota(1, MINUTE)]


def test_all_problems_are_reported_at_once_in_order() -> None:
    found = problems("version: 1\nrules:\n  - {id: a, limit: x, window: y z}\n  - {id: b, qota: 1/s}\nusers: 5\n")
    assert [problem.split(":")[0] for problem in found] == ["3", "3", "4", "5"]


def test_the_error_is_an_invalid_rule_with_its_problems() -> None:
    with pytest.raises(InvalidRule, match=r"rules\.yaml:1:10: version: 2 is unknown here\. Write 1") as caught:
        load("version: 2", name="rules.yaml")
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert again.problems == caught.value.problems  # type: ignore[attr-defined]
    (problem,) = again.problems
    assert (problem.file, problem.line, problem.column, problem.path) == ("rules.yaml", 1, 10, "version")
    assert problem.source == "version: 2"


def test_an_override_need_not_fit_tiers_of_other_users() -> None:
    ruleset = load(
        """
        version: 1
        rules: [{id: a, quota: 5/m}]
        tiers: {free: {a: {algorithm: fixed_window}}}
        users: {ada: {overrides: {a: {burst: 5}}}}
        """
    )
    assert Policy(ruleset).rules.keys() == {"a"}


def test_a_file_of_envoyproxy_is_recognised() -> None:
    for text in ("domain: edge\ndescriptors: []", '{"domain": "edge"}'):
        with pytest.raises(InvalidRules, match=r"1:\d+: domain: this is a file of envoyproxy/ratelimit") as caught:
            load(text)
        assert len(caught.value.problems) == 1, text


def test_many_problems_are_bounded() -> None:
    """After that many, the rest is not read; a last problem has its place and its size."""
    for item in ("  - 5\n", "  - {id: a}\n"):
        with pytest.raises(InvalidRules) as caught:
            load("version: 1\nallow: [{user: a}, {user: b}]\nrules:\n" + item * 3000)
        *problems, unread = caught.value.problems
        assert [problem.line for problem in problems] == [*range(4, MOST + 4)]
        assert (unread.line, unread.path, unread.kind) == (MOST + 4, f"rules[{MOST}]", ProblemKind.UNREAD)
        *_, more, last = str(caught.value).splitlines()
        assert more == f"... and {MOST - 20} more"
        assert (
            last == f"rules:{MOST + 4}:5: rules[{MOST}]: not checked, after {MOST} problems: {3000 - MOST} from here on"
        )


def test_after_too_many_problems_the_rest_is_not_read() -> None:
    with pytest.raises(InvalidRules) as caught:
        load("version: 1\nrules:\n" + "  - 5\n" * MOST + "users: {ada: {tier: 5.5}, bob: {}}\ndeny: [{user: a}]")
    assert [problem.path for problem in caught.value.problems[MOST:]] == ["users.ada", "deny[0]"]


def test_the_number_of_unlisted_problems_is_reported() -> None:
    replaces = [f"b{number}" for number in range(MOST + 5)]
    with pytest.raises(InvalidRules, match="5 more problems are not listed") as caught:
        from_data({"version": 1, "rules": [{"id": "a", "quota": "1/s", "replaces": replaces}]})
    assert len(caught.value.problems) == MOST + 1


def test_a_thousand_misspelt_names_take_no_time() -> None:
    for shape in ("tenant-{:04}-orders-per-user", "{:04}" * 15, "x" * 56 + "{:04}"):
        ids = [shape.format(*[number] * 15) for number in range(2000)]
        rules = [{"id": rule_id, "quota": "1/s"} for rule_id in ids]
        overrides = {f"{rule_id}Q": {"limit": 1} for rule_id in ids[:1000]}
        started = time.process_time()
        with pytest.raises(InvalidRules) as caught:
            from_data({"version": 1, "rules": rules, "users": {"ada": {"overrides": overrides}}})
        assert time.process_time() - started < 5, shape
        assert len(caught.value.problems) == 1000, shape
        suggested = [bool(problem.hint) for problem in caught.value.problems]
        assert suggested == sorted(suggested, reverse=True), shape
        assert 0 < sum(suggested) < 20, shape


def test_in_a_file_of_usual_size_every_misspelt_name_gets_a_suggestion() -> None:
    rules = [{"id": f"rule-{number}", "quota": "1/s", "endpont": "/"} for number in range(100)]
    with pytest.raises(InvalidRules) as caught:
        from_data({"version": 1, "rules": rules, "tiers": {"t": {f"rul-{number}": {} for number in range(50)}}})
    assert len(caught.value.problems) == 150
    assert all(problem.hint for problem in caught.value.problems)


def test_an_unreadable_file_is_a_problem(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.yaml", tmp_path, "nul\0byte"):
        with pytest.raises(InvalidRules, match="cannot be read"):
            load_file(path)


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("version: 1 " + "#" * 100)
    monkeypatch.setattr("headgate.config.yaml_text.MAX_BYTES", 100)
    for reading in (partial(load_file, path), partial(load, "version: 1 # " + "é" * 60)):
        with pytest.raises(InvalidRules, match="more than 100 bytes: split the file"):
            reading()
    monkeypatch.setattr("headgate.config.yaml_text.MAX_NODES", 10)
    for text in (
        "version: 1\nx-a: [1, 2, 3, 4, 5, 6, 7, 8]",
        "x-a: &a [1, 2, 3]\nx-b: *a\nx-c: *a",
        "x-a: {a: {b: {c: {d: {}}}}}",
    ):
        with pytest.raises(InvalidRules, match="more than 10 values"):
            load(text)


def test_a_byte_order_mark_and_windows_lines_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_bytes(b"\xef\xbb\xbfversion: 1\r\nrules:\r\n  - {id: a, quota: 1/s}\r\n")
    assert len(load_file(path).rules) == 1
    assert len(load("\ufeffversion: 1\nrules: [{id: a, quota: 1/s}]").rules) == 1


def test_without_libyaml_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML's own parser words syntax errors otherwise; all else is equal."""

    def outcome(path: Path) -> object:
        try:
            return read_file(path)
        except InvalidRules as error:
            return [(problem.line, problem.path) for problem in error.problems]

    expected = {path: outcome(path) for path in (*GOOD, *BAD)}
    monkeypatch.delattr(yaml, "CSafeLoader")
    assert {path: outcome(path) for path in (*GOOD, *BAD)} == expected


def test_without_pyyaml_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ImportError, match=r"pip install pyyaml.*'\.\[policy\]'"):
        load("version: 1")
    assert loads_json('{"version": 1}') == from_data({"version": 1}) == Ruleset()


def test_invalid_json_is_refused() -> None:
    wrong: dict[str | bytes, str] = {
        "{": "invalid JSON: Expecting property name",
        '{"version": NaN}': "NaN is not a number",
        '{"version": 1, "version": 1, "rules": [{"id": "a", "id": "b"}]}': "the key '(id|version)' occurs twice",
        "[" * 100_000: "invalid JSON",
        '{"version": ' + "9" * 5000 + "}": "invalid JSON",
        b'{"version": "\xff"}': "invalid JSON",
        '{"version": 1, "rules": [{"id": "a", "limit": 1.5, "window": "1m"}]}': r"rules\[0\].limit: 1.5 is not a whole",
        '{"version": 1, "allow": [{"ip": null}]}': r"allow\[0\].ip: has no value",
    }
    for text, message in wrong.items():
        with pytest.raises(InvalidRules, match=message):
            loads_json(text)


def test_problems_of_a_part_have_paths_and_no_lines() -> None:
    for reading, data, expected in (
        (
            rule_from_data,
            {"limit": 1.5, "window": "soon", "methods": ["get"], "endpont": "/"},
            [
                "limit: 1.5 is not a whole number from 0 to 2251799813685248",
                "window: 'soon' is not a duration. Accepted: a number of seconds, or a duration such as 500ms",
                "methods[0]: 'get' cannot be used here. Accepted: an HTTP method in capitals. Did you mean 'GET'?",
                "endpont: a rule has no 'endpont'. Did you mean 'endpoint'?",
                "a rule needs 'id'. The name of the rule in responses, and in the keys of its state.",
            ],
        ),
        (rule_from_data, None, ["is empty"]),
        (change_from_data, {"limt": 5}, ["limt: a change has no 'limt'. Did you mean 'limit'?"]),
        (user_from_data, {"overrides": {"a": {"limit": "5"}}}, ["overrides.a.limit: '5' is not a whole number"]),
    ):
        with pytest.raises(InvalidRules) as caught:
            reading(data)
        for problem, start in zip(caught.value.problems, expected, strict=True):
            assert str(problem).startswith(start)
            assert problem.line == 0


def test_rules_are_checked_together_when_a_ruleset_is_made() -> None:
    rule = rule_from_data({"id": "a", "quota": "1/s", "replaces": ["orders"]})
    assert Ruleset((rule, rule_from_data({"id": "orders", "quota": "2/s"}))).rules[0] is rule
    with pytest.raises(InvalidRules) as caught:
        Ruleset((rule, rule_from_data({"id": "order", "quota": "2/s"})), {"pro": {"order": Change(burst=-9)}})
    assert [problem.path for problem in caught.value.problems] == ["rules[0].replaces", "tiers.pro.order.burst"]
    assert caught.value.problems[0].hint == "Did you mean 'order'?"


def test_data_that_is_not_json() -> None:
    rules: list[Any] = [{"rules": [{"id": 10**5000}]}, {"version": 1, "rules": ()}]
    for data in (None, 5, [], {1: 2}, {"version": 1, 5: 6}, {"version": {1}}, *rules):
        with pytest.raises(InvalidRules):
            from_data(data)


def test_odd_values_are_warnings() -> None:
    for text, warning in {
        "dimension: api_keys, quota: 1/s": "rules[0].dimension: counts by the attribute 'api_keys'",
        "methods: [GTE], quota: 1/s": "rules[0].methods: GTE is an unusual method",
    }.items():
        (odd,) = read(f"version: 1\nrules: [{{id: a, {text}}}]", name="f").warnings
        assert f"{odd.path}: {odd.message}" == warning
        assert odd.hint.startswith("Did you mean")


def test_usual_things_are_no_warnings() -> None:
    for path in GOOD:
        assert path.stem in {"seed", "design"} or not read_file(path).warnings


def test_the_lines_of_a_document_are_those_of_yaml() -> None:
    document = Document("version: 1\r\n# \x85rules: 5\nrules: 5", "f")
    assert document.locate(("rules",), at_key=True) == (3, 1) or document.source(4) == "rules: 5"
    assert document.source(0) == document.source(99) == ""
    assert decode_text("é".encode(), "f") == "é"


def test_a_long_text_is_read_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold up this one: PyYAML reads a long scalar in one step."""
    lines = "".join(f"- {{id: a{number}, quota: 5/s, name: {'n' * 100}}}\n" for number in range(2000))
    text = f"version: 1\nrules:\n{lines}"
    whole = read(text)
    with pytest.raises(InvalidRules) as here:
        read(text + "- [\ud800")
    monkeypatch.delattr("headgate.policy.loading.Document")
    assert read_apart(text) == whole
    with pytest.raises(InvalidRules) as apart:
        read_apart(text + "- [\ud800")
    assert apart.value.problems == here.value.problems
