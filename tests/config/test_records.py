"""Records whose fields are declared once: their forms, their values, and what callers in Python may give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from headgate.config.problems import Findings
from headgate.config.records import check_mapping, check_types, declared, fields_of, needed, values_of
from headgate.config.schema import ListOf, Record, Scalar
from headgate.core.errors import InvalidRule
from headgate.core.mode import Mode

TEXT = Scalar.text("text")


@dataclass(frozen=True, slots=True)
class Inner:
    port: int = field(metadata=needed(Scalar.whole(1, 9), "The port."))


@dataclass(frozen=True, slots=True)
class Outer:
    name: str = field(metadata=needed(TEXT, "The name."))
    hosts: tuple[str, ...] = declared(ListOf(TEXT, "a list"), "The hosts.", ())
    tags: frozenset[str] = declared(ListOf(TEXT, "a list"), "The tags.", frozenset())
    is_fast: bool = declared(Scalar.choice({"no": False, "yes": True}), "The speed.", False, key="fast")
    most: int = declared(Scalar.whole(0, 5), "The most.", 3, key="limits.most")
    mode: Mode | None = declared(None, "The mode.", None)
    when: Mapping[str, str] = declared(None, "The conditions.", factory=dict)
    inner: Inner | None = declared(None, "The rest.", None)
    hidden: str = declared(TEXT, "The address.", "", is_secret=True)
    own: str = ""

    def __post_init__(self) -> None:
        check_types("this", self)


def test_fields_have_their_forms_and_names_in_data() -> None:
    mode = Scalar.choice(Mode)
    found = fields_of(Outer, mode=mode)
    assert list(found) == ["name", "hosts", "tags", "fast", "mode", "when", "inner", "hidden"]
    assert [name for name, each in found.items() if each.required] == ["name"]
    assert (found["mode"].form, found["fast"].about) == (mode, "The speed.")
    assert list(fields_of(Outer, "limits")) == ["most"]


def test_what_is_read_makes_a_record() -> None:
    findings = Findings()
    form = Record("this", fields_of(Outer, mode=TEXT, when=TEXT, inner=Record("inner", fields_of(Inner))))
    read = form.read({"name": "a", "hosts": ["x", "y"], "fast": "yes"}, (), findings)
    findings.check()
    outer = Outer(**values_of(Outer, read), **values_of(Outer, {"most": 5}, "limits"))
    assert outer == Outer("a", ("x", "y"), is_fast=True, most=5)
    form.read({"inner": {"port": 10}}, (), findings)
    told = [str(each) for each in findings.problems()]
    assert told == ["inner.port: 10 is not a whole number from 1 to 9", "this needs 'name'. The name."]


def test_a_secret_is_not_shown() -> None:
    assert "redis://" not in repr(Outer("a", hidden="redis://"))


def test_what_can_only_mean_one_thing_becomes_that() -> None:
    given: dict[str, Any] = {"hosts": ["x"], "tags": {"y"}, "mode": "deny"}
    assert Outer("a", **given) == Outer("a", ("x",), frozenset({"y"}), mode=Mode.DENY)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": 5}, "this: name is text, not 5"),
        ({"hosts": "x"}, "this: hosts is several of text, in a tuple or a list, not 'x'"),
        ({"tags": (5,)}, "this: tags has text only, not 5"),
        ({"is_fast": 1}, "this: is_fast is True or False, not 1"),
        ({"most": 6}, "this: most is a whole number from 0 to 5, not 6"),
        ({"most": True}, "this: most is a whole number from 0 to 5, not True"),
        ({"mode": "raise"}, "this: mode is one of local, allow, deny, not 'raise'"),
        ({"when": []}, "this: when is a mapping of text to text, not []"),
        ({"when": {5: "x"}}, "this: when has text as names, not 5"),
        ({"when": {"x": 5}}, "this: when: 'x' has text, not 5"),
        ({"inner": 5}, "this: inner is an Inner, not 5"),
        ({"own": None}, "this: own is text, not None"),
    ],
)
def test_other_types_are_refused_by_the_name_of_the_field(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRule) as refused:
        Outer(**{"name": "a", **given})
    assert str(refused.value) == said
    assert refused.value.fields == (*given,)
    assert {*given} <= {each.name for each in fields(Outer)}


def test_a_mapping_is_checked_alone() -> None:
    check_mapping("tier 'pro'", {"a": 5}, int)
    with pytest.raises(InvalidRule, match="tier 'pro': 'a' has text, not 5"):
        check_mapping("tier 'pro'", {"a": 5}, str)
