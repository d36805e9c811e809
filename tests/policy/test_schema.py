"""The JSON Schema and the loader agree: on the example files, and on random damage to right data."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from headgate.config.problems import Findings, InvalidRules, ProblemKind
from headgate.config.schema import NAME, Scalar
from headgate.config.yaml_text import Document
from headgate.core.errors import InvalidKey
from headgate.core.key import checked_name
from headgate.policy.dumping import to_data
from headgate.policy.forms import CHANGE, FILE, RULE, USER, rules_schema
from headgate.policy.loading import from_data
from headgate.policy.model import Ruleset
from tests.policy.written import BAD, GOOD, rulesets

VALIDATOR = Draft202012Validator(rules_schema())
OTHER_FORM = "seed"  # files of that form begin with this; no editor needs a schema for them
NO_DATA = {"not_utf8", "utf16"}
FIELDS = [*FILE.fields, *RULE.record.fields, *RULE.record.spellings, "until", "overrides", "misspelt", "x-1"]
junk: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 200),
    st.sampled_from([10**17, 10**19, 2**51, 2**51 + 1, 0.5, 1.0, -1.5, 1e300]),
    st.sampled_from(["", "allow", "1m", "10/s", "1/3", "UTC", "true", "2026-12-01T00:00:00Z", "/a", "**", "a b", "é"]),
    st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=5),
    st.lists(st.sampled_from(["a", 1, None, {}]), max_size=2),
    st.dictionaries(st.sampled_from(FIELDS), st.sampled_from([1, "1m", None]), max_size=2),
)


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(rules_schema())


def is_well_formed(data: Any) -> bool:
    """Does the loader find nothing wrong that a schema could find?"""
    try:
        from_data(data)
    except InvalidRules as error:
        return all(problem.kind is ProblemKind.MEANING for problem in error.problems)
    return True


@pytest.mark.parametrize("path", [*GOOD, *BAD], ids=lambda path: path.stem)
def test_a_file_has_the_form_for_both_or_for_neither(path: Any) -> None:
    if path.stem.startswith(OTHER_FORM) or path.stem in NO_DATA:
        return
    try:
        data = Document(path.read_text(), path.name).data
    except InvalidRules:
        return
    assert VALIDATOR.is_valid(data) is is_well_formed(data)


def test_edges_of_every_field_are_the_same_for_both() -> None:
    values: list[Any] = [0, 5.0, -5, 1.5, 10**17, 10**18, -(10**18), 1e300, True, None, "", "0", [], {}]
    for value in values:
        base = {
            "version": 1,
            "rules": [{"id": "a", "limit": 1, "window": "1m"}],
            "tiers": {"t": {"a": {}}},
            "users": {"u": {}},
        }
        for path, fields in (
            ([], FILE.fields),
            (["rules", 0], RULE.record.fields),
            (["tiers", "t", "a"], CHANGE.record.fields),
            (["users", "u"], USER.fields),
        ):
            for field in fields:
                data: Any = copy.deepcopy(base)
                holder = data
                for part in path:
                    holder = holder[part]
                for written in (value, [value], {"a": value}):
                    holder[field] = written
                    assert VALIDATOR.is_valid(data) is is_well_formed(data), (path, field, written)


def places(data: Any) -> list[tuple[Any, Any]]:
    """Return every container with each of its keys."""
    found = []
    for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
        found.append((data, key))
        if isinstance(value, dict | list):
            found += places(value)
    return found


@given(rulesets(), st.data())
def test_damage_is_found_by_both_or_by_neither(ruleset: Ruleset, data: st.DataObject) -> None:
    written = copy.deepcopy(to_data(ruleset))
    for _ in range(data.draw(st.integers(1, 2))):
        holder, key = data.draw(st.sampled_from([*places(written), (written, "rules")]))
        if isinstance(holder, dict) and data.draw(st.booleans()):
            key = data.draw(st.sampled_from(FIELDS))
        holder[key] = data.draw(junk)
    errors = [error.message for error in VALIDATOR.iter_errors(written)]
    assert (not errors) is is_well_formed(written), (written, errors)


@given(st.text(max_size=70))
@example("a" * 65)
@example("a:b/c.d-e_F")
@example("a\n")
def test_keys_and_files_accept_the_same_names(name: str) -> None:
    findings = Findings()
    try:
        checked_name(name)
        right = True
    except InvalidKey:
        right = False
    assert (Scalar.text("a name", NAME, 64).read(name, (), findings) is not None) is right


def test_every_field_is_described() -> None:
    described = rules_schema()
    for properties in (
        described["properties"],
        described["properties"]["rules"]["items"]["properties"],
        *(definition.get("properties", {}) for definition in described["$defs"].values()),
    ):
        for name, field in properties.items():
            assert field["description"], name
