"""Any text is read as rules, or raises InvalidRules, soon; and written rules can be read back."""

from __future__ import annotations

import io
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.cli.command import Terminal
from headgate.cli.rule_files import write_problems
from headgate.config.problems import InvalidRules
from headgate.config.times import length_of, length_text
from headgate.policy.dumping import to_data, to_yaml
from headgate.policy.loading import (
    change_from_data,
    from_data,
    load,
    load_file,
    loads_json,
    rule_from_data,
    user_from_data,
)
from headgate.policy.model import Ruleset
from tests.policy.test_schema import VALIDATOR
from tests.policy.written import BAD, GOOD, rulesets

TEXTS = [path.read_text(errors="replace") for path in (*GOOD, *BAD)]
PIECES = ["\t", ": ", "- ", "&a ", "*a", "<<: *a\n", "!!str ", "{", "}", "[", "]", '"', "'", "|\n", "? ", "\n", "\x00"]
PIECES += ["limits: ", "rate_limits:\n", "until: ", "calendar: ", "\ud800", "\u2028", "%YAML 9.9\n", "---\n", "#"]


def survives(text: str) -> None:
    for reading in (load, loads_json):
        try:
            reading(text)
        except InvalidRules as error:
            assert error.problems  # noqa: PT017
            assert str(error)  # noqa: PT017
            write_problems(error.problems, Terminal(io.StringIO(), io.StringIO()))


@given(st.one_of(st.text(max_size=200), st.text("{}[]:-,&*!|>'\"%@` \n\tab1", max_size=60)))
def test_any_text(text: str) -> None:
    survives(text)
    survives(f"version: 1\nrules:\n  - {text}")


def test_damaged_files() -> None:
    for seed in range(4):
        chance = random.Random(seed)
        for _ in range(100):
            text = chance.choice(TEXTS)
            for _ in range(chance.randint(1, 6)):
                at = chance.randrange(len(text) + 1)
                until = at + chance.choice([0, 0, 1, 5, 30])
                text = text[:at] + chance.choice([*PIECES, chance.choice(TEXTS)[:40]]) + text[until:]
            survives(text)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{a: " * 100_000,
        "- " * 50_000,
        "? " * 50_000,
        "&a " * 1000,
        "a: *a",
        "version: 1\nrules: " + "&a [" * 30,
        "'" + "\n" * 100_000,
        "version: 1\nrules: [{id: a, quota: '" + "9" * 100_000 + "/s'}]",
        "version: 1\nrules: [{id: a, limit: " + "9" * 100_000 + ", window: 1s}]",
        "version: 1\nrules: [{id: a, window: '" + " " * 100_000 + "', limit: 1}]",
        "version: 1\n" + "".join(f"wrong-{number}: 1\n" for number in range(5000)),
        "version: 1\nrules:\n"
        + "".join(f"  - {{id: a{number}, quota: 1/s, replaces: [b]}}\n" for number in range(3000)),
        "version: 1\nrules:\n" + "".join(f"  - {{id: a{number}, qu{number}ota: 1/s}}\n" for number in range(5000)),
        "version: 1\nrules:\n" + "".join(f"  - {{id: a{number}, algorithm: x{number}}}\n" for number in range(5000)),
        "{" + "a: 1, " * 50_000 + "}",
        "version: 1\nrules: [{id: a, limit: 1, window: '" + " " * 1_000_000 + "'}]",
        "x: &a {" + ", ".join(f"k{number}: 1" for number in range(3000)) + "}\n"
        "y: [" + ", ".join(["{<<: [" + ", ".join(["*a"] * 50) + "]}"] * 50) + "]",
    ],
    ids=range(18),
)
def test_texts_made_to_take_long(text: str) -> None:
    survives(text)


@given(rulesets())
def test_rules_survive_data_json_and_yaml(ruleset: Ruleset) -> None:
    data = to_data(ruleset)
    assert from_data(data) == ruleset
    assert json.loads(json.dumps(data)) == data
    assert loads_json(json.dumps(data)) == ruleset
    assert load(to_yaml(ruleset)) == ruleset
    VALIDATOR.validate(data)
    assert tuple(rule_from_data(to_data(rule)) for rule in ruleset.rules) == ruleset.rules
    assert {name: user_from_data(to_data(user)) for name, user in ruleset.users.items()} == ruleset.users
    changes = [change for changes in ruleset.tiers.values() for change in changes.values()]
    assert [change_from_data(to_data(change)) for change in changes] == changes


def test_the_example_files_survive_too() -> None:
    for path in GOOD:
        ruleset = load_file(path)
        assert load(to_yaml(ruleset)) == loads_json(json.dumps(to_data(ruleset))) == ruleset, path.name


@given(st.integers(1, 10**15))
def test_lengths_are_written_exactly(length_us: int) -> None:
    if length_us <= 3660 * 86_400_000_000:
        assert length_of(length_text(length_us)) == length_us
