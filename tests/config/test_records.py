"""Records whose fields are declared once: their forms, their values, and what callers in Python may give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import pytest

from headgate.config.problems import Findings
from headgate.config.records import check_types, declared, fields_of, needed, values_of
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


def test_read_values_make_a_record() -> None:
    findings = Findings()
    form = Record("this", fields_of(Outer, mode=TEXT, when=TEXT, inner=Record("inner", fields_of(Inner))))
    read = form.read({"name": "a", "hosts": ["x", "y"], "fast": "yes"}, (), findings)
    findings.check()
    outer = Outer(**values_of(Outer, read), **values_of(Outer, {"most": 5}, "limits"))
    assert outer == Outer("a", ("x", "y"), is_fast=True, most=5)
    form.read({"inner": {"port": 10}}, (), findings)
    messages = [str(each) for each in findings.problems()]
    assert messages == ["inner.port: 10 is not a whole number from 1 to 9", "this needs 'name'. The name."]


def test_a_secret_is_not_shown() -> None:
    assert "redis://" not in repr(Outer("a", hidden="redis://"))


def test_unambiguous_values_are_converted() -> None:
    given: dict[str, Any] = {"hosts": ["x"], "tags": {"y"}, "mode": "deny"}
    assert Outer("a", **given) == Outer("a", ("x",), frozenset({"y"}), mode=Mode.DENY)


def test_other_types_are_refused_by_the_name_of_the_field() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"name": 5}, "this: name must be text, not 5"),
        ({"hosts": "x"}, "this: hosts must be a tuple or a list, not 'x'"),
        ({"tags": (5,)}, "this: tags: an item must be text, not 5"),
        ({"is_fast": 1}, "this: is_fast must be True or False, not 1"),
        ({"most": 6}, "this: most must be a whole number from 0 to 5, not 6"),
        ({"most": True}, "this: most must be a whole number from 0 to 5, not True"),
        ({"mode": "raise"}, "this: mode must be one of local, allow, deny, not 'raise'"),
        ({"when": []}, "this: when must be a mapping, not []"),
        ({"when": {5: "x"}}, "this: when: a key must be text, not 5"),
        ({"when": {"x": 5}}, "this: when: 'x' must be text, not 5"),
        ({"inner": 5}, "this: inner must be an Inner, not 5"),
        ({"own": None}, "this: own must be text, not None"),
    ]
    for given, message in cases:
        with pytest.raises(InvalidRule) as refused:
            Outer(**{"name": "a", **given})
        assert str(refused.value) == message, given
        assert refused.value.fields == (*given,)
        assert {*given} <= {each.name for each in fields(Outer)}
