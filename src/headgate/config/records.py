"""Records that are dataclasses: each field is declared once, with its form, what it means, its type and its default.

::

    @dataclass(frozen=True, slots=True)
    class User:
        tier: str = declared(Scalar.text("the name of a tier"), "The tier of the user.", "")

        def __post_init__(self) -> None:
            check_types("a user", self)

    USER = Record("a user", fields_of(User), make=lambda read, *_: User(**read))

What is read from data is checked by its form. `check_types` is for callers in Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, field, fields
from enum import StrEnum
from functools import cache
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from headgate.config.schema import Field, Form, Meaningless, Scalar, Values
from headgate.core.errors import InvalidRule
from headgate.core.numbers import short

_DECLARED = "declared"


def declared(
    form: Form | None,
    about: str,
    default: Any = MISSING,
    *,
    factory: Any = MISSING,
    key: str = "",
    is_secret: bool = False,
) -> Any:
    """Declare a field of a dataclass that has a default, and its description.

    The form is None if `fields_of` gets it. `key` is the name in data, if different; "part.name" is in a part of the
    data. `repr` leaves secrets out.
    """
    metadata = {_DECLARED: (key, form, about, False)}
    return field(default=default, default_factory=factory, repr=not is_secret, metadata=metadata)


def needed(form: Form, about: str) -> Mapping[str, Any]:
    """Declare a field that has no default, as the metadata of `dataclasses.field`."""
    return {_DECLARED: ("", form, about, True)}


def fields_of(kind: type, part: str = "", /, **forms: Form) -> dict[str, Field]:
    """Return the fields that a dataclass declares, by their names in data, or in a part of it.

    `forms` are those that the dataclass leaves open.
    """
    return {
        key: Field(forms.get(key) or form, about, required)
        for key, _, (form, about, required) in _declarations(kind, part)
    }


def values_of(kind: type, read: Values, part: str = "") -> Values:
    """Return read values as the arguments of a dataclass; lists become tuples of their valid items."""
    found = {name: read[key] for key, name, _ in _declarations(kind, part) if key in read}
    return {
        name: tuple([item for item in value if item is not None]) if type(value) is list else value
        for name, value in found.items()
    }


def data_of(record: Any) -> Values:
    """Return the declared fields that differ from their defaults, by their names in data."""
    found = {}
    for each in fields(record):
        value = getattr(record, each.name)
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if _DECLARED in each.metadata and value != default:
            found[each.metadata[_DECLARED][0] or each.name] = value
    return found


def _declarations(kind: type, part: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the name of each field in data, its name in the dataclass, and its declaration."""
    for each in fields(kind):
        if _DECLARED in each.metadata:
            given, *others = each.metadata[_DECLARED]
            of, _, key = (given or each.name).rpartition(".")
            if of == part:
                yield key, each.name, others


def check_types(what: str, record: Any) -> None:
    """Refuse values of other types than a record declares, and numbers beyond its bounds; raises InvalidRule.

    Lists become tuples, sets become frozen, and the words of enumerations their members.
    """
    for name, default, hint, bounds in _types(type(record)):  # type: ignore[arg-type]  # classes are hashable
        given = getattr(record, name)
        if given is default:
            continue
        try:
            right = _checked(given, hint, bounds)
        except Meaningless as error:
            raise InvalidRule(f"{what}: {name}{error.message}", fields=(name,)) from None
        if right is not given:
            object.__setattr__(record, name, right)  # the record is frozen; this is a part of its construction


@cache
def _types(kind: type) -> list[tuple[str, Any, Any, Mapping[str, int]]]:
    """Return the name, the default, the type and the bounds of each field."""
    hints = get_type_hints(kind)
    found: list[tuple[str, Any, Any, Mapping[str, int]]] = []
    for each in fields(kind):
        if each.init:
            form = each.metadata.get(_DECLARED, ("", None))[1]
            found.append((each.name, each.default, hints[each.name], form.json if isinstance(form, Scalar) else {}))
    return found


def _checked(value: Any, hint: Any, bounds: Mapping[str, int]) -> Any:
    """Return a value in the type of its field. Raises Meaningless with a message that begins after the name."""
    origin, (kind, *others) = get_origin(hint), get_args(hint) or (hint,)
    if NoneType in others:
        return value if value is None else _checked(value, kind, bounds)
    if origin in {tuple, frozenset}:
        if not isinstance(value, tuple | list | frozenset | set):  # text is not several texts
            raise Meaningless(f" must be a tuple or a list, not {short(value)}")
        for each in value:
            _check_inner("an item", each, kind)
        return value if type(value) is origin else origin(value)
    if origin is Mapping:
        if not isinstance(value, Mapping):
            raise Meaningless(f" must be a mapping, not {short(value)}")
        for key, each in value.items():
            _check_inner("a key", key, kind)
            _check_inner(short(key), each, others[0])
        return value
    return _checked_single(value, kind, bounds)


def _check_inner(place: str, value: Any, hint: Any) -> None:
    if type(value) is not hint:
        try:
            _checked(value, hint, {})
        except Meaningless as error:
            raise Meaningless(f": {place}{error.message}") from None


def _checked_single(value: Any, kind: type, bounds: Mapping[str, int]) -> Any:
    if kind is int:
        low, high = bounds.get("minimum"), bounds.get("maximum")
        if type(value) is not int or not (low is None or high is None or low <= value <= high):
            between = "" if low is None else f" from {low} to {high}"
            raise Meaningless(f" must be a whole number{between}, not {short(value)}")
    elif issubclass(kind, StrEnum):
        try:
            return kind(value)
        except ValueError:
            raise Meaningless(f" must be one of {', '.join(kind)}, not {short(value)}") from None
    elif not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIO" else "a"
        raise Meaningless(f" must be {_NAMES.get(kind, f'{article} {kind.__name__}')}, not {short(value)}")
    return value


_NAMES: dict[type, str] = {str: "text", bool: "True or False"}
