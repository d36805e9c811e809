"""What is written can be read back: data, JSON and YAML."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from headgate.config.times import length_of, length_text
from headgate.policy.dumping import to_data, to_yaml
from headgate.policy.loading import from_data, load, load_file, loads_json
from headgate.policy.model import Ruleset
from tests.policy.written import GOOD, rulesets


@given(rulesets())
def test_rules_survive_data_json_and_yaml(ruleset: Ruleset) -> None:
    data = to_data(ruleset)
    assert from_data(data) == ruleset
    assert json.loads(json.dumps(data)) == data
    assert loads_json(json.dumps(data)) == ruleset
    assert load(to_yaml(ruleset)) == ruleset


def test_the_example_files_survive_too() -> None:
    for path in GOOD:
        ruleset = load_file(path)
        assert load(to_yaml(ruleset)) == loads_json(json.dumps(to_data(ruleset))) == ruleset, path.name


@given(st.integers(1, 10**15))
def test_lengths_are_written_exactly(length_us: int) -> None:
    if length_us <= 3660 * 86_400_000_000:
        assert length_of(length_text(length_us)) == length_us
