"""Files of rules and what they mean."""

from __future__ import annotations

import pickle
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate import Algorithm, Quota
from headgate.config.problems import MOST, ProblemKind
from headgate.config.yaml_text import Document, decoded, resolved
from headgate.core.calendar import Calendar
from headgate.core.errors import InvalidRule
from headgate.core.mode import Mode
from headgate.policy.compiled import Policy
from headgate.policy.loading import InvalidRules, from_data, load, load_file, loads_json, read, read_apart, read_file
from headgate.policy.model import Change, Entry, Rule, Ruleset, User
from tests.policy.written import BAD, FILES, GOOD

MINUTE, DAY = 60_000_000, 86_400_000_000


def rule(text: str) -> Rule:
    """Return the one rule whose fields, besides the id, are written in `text`."""
    return load(f"version: 1\nrules: [{{id: a, {text}}}]").rules[0]


def problems(text: str) -> list[str]:
    """Return the problems of a file, without its name."""
    with pytest.raises(InvalidRules) as caught:
        load(text, name="f")
    return [f"{problem.line}:{problem.column} {problem.path}: {problem.message}" for problem in caught.value.problems]


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


@pytest.mark.parametrize(
    ("text", "quotas"),
    [
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
    ],
)
def test_the_ways_to_write_a_quota(text: str, quotas: list[Quota]) -> None:
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


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            "id: a, rule_id: b, quota: 1/s",
            "2:17: rules[0].rule_id: 'rule_id' is another name of 'id': give one of them",
        ),
        ("rule_id: a b, quota: 1/s", "2:19: rules[0].rule_id: 'a b' cannot be used here"),
        ("rule_id: a, limit: 1, window_seconds: soon", "2:48: rules[0].window_seconds: 'soon' is not a length of time"),
        ("rule_id: a, limit: 1, window_seconds: 1, window: 1s", "is another name of 'window': give one of them"),
        ("rule_id: a, quota: 1/s, window_seconds: 1", "'window' does not go with 'quota'"),
        ("rule_id: a, key_type: [], quota: 1/s", "rules[0].key_type: has 0 names. Accepted: 1 to 4 names"),
        ("id: a, dimension: [user, a b], quota: 1/s", "rules[0].dimension[1]: 'a b' cannot be used here"),
        ("id: a, dimension: [user, user_id], quota: 1/s", "different dimensions"),
        ("id: a, dimension: ip, key_pattern: 10.0.0.1/8, quota: 1/s", "has host bits set"),
        ("id: a, dimension: endpoint, key_pattern: /a/../b, quota: 1/s", "rules[0].key_pattern: an entry of a list"),
    ],
)
def test_what_is_wrong_is_told_in_the_names_that_were_written(fields: str, told: str) -> None:
    with pytest.raises(InvalidRules) as caught:
        load(f"version: 1\nrules: [{{{fields}}}]")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("window", "told"),
    [
        ("2 months", "'2 months' is not a length of time: a month has no fixed length: write 60d"),
        ("0s", "'0s' is not a length of time: a window cannot be empty"),
        ("4000d", "'4000d' is longer than 3660 days"),
        ("2 fortnights", "'2 fortnights' is not a length of time"),
    ],
)
def test_a_window_that_makes_no_sense(window: str, told: str) -> None:
    assert problems(f"version: 1\nrules: [{{id: a, limit: 1, window: {window}}}]") == [f"2:35 rules[0].window: {told}"]


def test_a_second_id_is_found_by_any_name() -> None:
    with pytest.raises(InvalidRules, match=r"the id 'a' is that of rules\[0\] already"):
        load("{version: 1, rules: [{rule_id: a, quota: 1/s}, {id: a, quota: 1/s}]}")
    assert (
        load("{version: 1, rules: [{rule_id: a, quota: 1/s}], tiers: {t: {a: {limit: 2}}}}").tiers["t"]["a"].limit == 2
    )


def test_everything_there_is() -> None:
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


@pytest.mark.parametrize(
    ("plain", "value"),
    [
        ("12", 12),
        ("-12", -12),
        ("0", 0),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        *(
            (text, text)
            for text in ("NO", "on", "yes", "off", "1:30", "010", "0x1F", "0o17", "1_000", "+5", "2026-12-01", "-", ".")
        ),
        *((text, text) for text in (".inf", "1e999", "1.2.3", "10.0.0.1", "9" * 41, "-0", "٣")),
    ],
)
def test_scalars_are_numbers_only_if_they_plainly_are(plain: str, value: Any) -> None:
    assert resolved(plain) == value
    assert type(resolved(plain)) is type(value)


def test_text_that_looks_otherwise_stays_text() -> None:
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


def test_a_problem_in_merged_fields_is_shown_where_it_is_written() -> None:
    text = "version: 1\nx-base: &base {limit: ten}\nrules:\n  - {<<: *base, id: a, window: 1m}\n"
    assert problems(text) == ["2:23 rules[0].limit: 'ten' is not a whole number from 0 to 2251799813685248"]


def test_all_problems_are_told_at_once_and_in_order() -> None:
    found = problems("version: 1\nrules:\n  - {id: a, limit: x, window: y z}\n  - {id: b, qota: 1/s}\nusers: 5\n")
    assert [problem.split(":")[0] for problem in found] == ["3", "3", "4", "5"]


def test_a_rule_that_is_wrong_is_still_known_to_others() -> None:
    text = "version: 1\nrules: [{id: a, quota: x}, {id: b, quota: 1/s, replaces: [a]}]\ntiers: {t: {a: {limit: 1}}}"
    assert len(problems(text)) == 1


def test_the_error_is_an_invalid_rule_with_its_problems() -> None:
    with pytest.raises(InvalidRule, match=r"rules\.yaml:1:10: version: 2 is unknown here\. Write 1") as caught:
        load("version: 2", name="rules.yaml")
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301
    assert again.problems == caught.value.problems  # type: ignore[attr-defined]
    (problem,) = again.problems
    assert (problem.file, problem.line, problem.column, problem.path) == ("rules.yaml", 1, 10, "version")
    assert problem.source == "version: 2"


def test_an_override_need_not_fit_tiers_that_the_user_is_not_of() -> None:
    ruleset = load(
        """
        version: 1
        rules: [{id: a, quota: 5/m}]
        tiers: {free: {a: {algorithm: fixed_window}}}
        users: {ada: {overrides: {a: {burst: 5}}}}
        """
    )
    assert Policy(ruleset).rules.keys() == {"a"}


@pytest.mark.parametrize("text", ["domain: edge\ndescriptors: []", '{"domain": "edge"}'])
def test_a_file_of_envoyproxy_is_known_as_one(text: str) -> None:
    with pytest.raises(InvalidRules, match=r"1:\d+: domain: this is a file of envoyproxy/ratelimit") as caught:
        load(text)
    assert len(caught.value.problems) == 1


def test_many_problems_are_bounded() -> None:
    """Beyond so many none is looked for, and it is said where that begins, and how much it is."""
    for item in ("  - 5\n", "  - {id: a}\n"):
        with pytest.raises(InvalidRules) as caught:
            load("version: 1\nallow: [{user: a}, {user: b}]\nrules:\n" + item * 3000)
        *problems, unread = caught.value.problems
        assert [problem.line for problem in problems] == [*range(4, MOST + 4)]
        assert (unread.line, unread.path, unread.kind) == (MOST + 4, f"rules[{MOST}]", ProblemKind.UNREAD)
        *_, more, last = str(caught.value).splitlines()
        assert more == f"... and {MOST - 20} more"
        assert (
            last
            == f"rules:{MOST + 4}:5: rules[{MOST}]: not looked at, after {MOST} problems: {3000 - MOST} from here on"
        )


def test_what_comes_after_too_many_problems_is_not_looked_at() -> None:
    with pytest.raises(InvalidRules) as caught:
        load("version: 1\nrules:\n" + "  - 5\n" * MOST + "users: {ada: {tier: 5.5}, bob: {}}\ndeny: [{user: a}]")
    assert [problem.path for problem in caught.value.problems[MOST:]] == ["users.ada", "deny[0]"]


def test_of_problems_that_are_not_listed_the_number_is() -> None:
    replaces = [f"b{number}" for number in range(MOST + 5)]
    with pytest.raises(InvalidRules, match="5 more problems are not listed") as caught:
        from_data({"version": 1, "rules": [{"id": "a", "quota": "1/s", "replaces": replaces}]})
    assert len(caught.value.problems) == MOST + 1


@pytest.mark.parametrize("shape", ["tenant-{:04}-orders-per-user", "{:04}" * 15, "x" * 56 + "{:04}"])
def test_a_thousand_misspelt_names_take_no_time(shape: str) -> None:
    ids = [shape.format(*[number] * 15) for number in range(2000)]
    rules = [{"id": rule_id, "quota": "1/s"} for rule_id in ids]
    overrides = {f"{rule_id}Q": {"limit": 1} for rule_id in ids[:1000]}
    started = time.process_time()
    with pytest.raises(InvalidRules) as caught:
        from_data({"version": 1, "rules": rules, "users": {"ada": {"overrides": overrides}}})
    assert time.process_time() - started < 5
    assert len(caught.value.problems) == 1000
    suggested = [bool(problem.hint) for problem in caught.value.problems]
    assert suggested == sorted(suggested, reverse=True)
    assert 0 < sum(suggested) < 20


def test_in_a_file_of_usual_size_all_misspelt_names_get_a_suggestion() -> None:
    rules = [{"id": f"rule-{number}", "quota": "1/s", "endpont": "/"} for number in range(100)]
    with pytest.raises(InvalidRules) as caught:
        from_data({"version": 1, "rules": rules, "tiers": {"t": {f"rul-{number}": {} for number in range(50)}}})
    assert len(caught.value.problems) == 150
    assert all(problem.hint for problem in caught.value.problems)


def test_a_file_that_cannot_be_read_is_a_problem_too(tmp_path: Path) -> None:
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


def test_a_mark_at_the_beginning_and_windows_lines_do_not_matter(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "1:2 : not JSON: Expecting property name"),
        ('{"version": NaN}', "NaN is not a number"),
        ('{"version": 1, "version": 1, "rules": [{"id": "a", "id": "b"}]}', "the key 'version' is given twice"),
        ("[" * 100_000, "not JSON"),
        ('{"version": ' + "9" * 5000 + "}", "not JSON"),
        (b'{"version": "\xff"}', "not JSON"),
        (
            '{"version": 1, "rules": [{"id": "a", "limit": 1.5, "window": "1m"}]}',
            r"rules\[0\].limit: 1.5 is not a whole",
        ),
        ('{"version": 1, "allow": [{"ip": null}]}', r"allow\[0\].ip: has no value"),
    ],
)
def test_json_that_is_wrong(text: str | bytes, told: str) -> None:
    with pytest.raises(InvalidRules, match=told.removeprefix("1:2 : ")):
        loads_json(text)


@pytest.mark.parametrize(
    "data",
    [
        None,
        5,
        [],
        {1: 2},
        {"version": 1, 5: 6},
        {"version": {1}},
        {"rules": [{"id": 10**5000}]},
        {"version": 1, "rules": ()},
    ],
)
def test_data_that_is_no_json(data: Any) -> None:
    with pytest.raises(InvalidRules):
        from_data(data)


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("dimension: api_keys, quota: 1/s", "rules[0].dimension: counts by the attribute 'api_keys'"),
        ("methods: [GTE], quota: 1/s", "rules[0].methods: GTE is an unusual method"),
    ],
)
def test_what_is_odd_is_a_warning(text: str, warning: str) -> None:
    loaded = read(f"version: 1\nrules: [{{id: a, {text}}}]", name="f")
    assert [f"{odd.path}: {odd.message}" for odd in loaded.warnings] == [warning]
    assert loaded.warnings[0].hint.startswith("Did you mean")


def test_usual_things_are_no_warnings() -> None:
    for path in GOOD:
        assert path.stem in {"seed", "design"} or not read_file(path).warnings


def test_the_lines_of_a_document_are_those_of_yaml() -> None:
    document = Document("version: 1\r\n# \x85rules: 5\nrules: 5", "f")
    assert document.locate(("rules",), at_key=True) == (3, 1) or document.source(4) == "rules: 5"
    assert document.source(0) == document.source(99) == ""
    assert decoded("é".encode(), "f") == "é"


def test_one_fault_is_told_once() -> None:
    with pytest.raises(InvalidRules) as caught:
        load("{version: 1, rules: [{id: a, limit: 1, window: 1m, when: {x: [1]}}]}")
    assert [problem.message for problem in caught.value.problems] == ["a list is not text"]


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
