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

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, field, fields
from enum import StrEnum
from functools import cache, partial
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from headgate.config.schema import Field, Form, Meaningless, Scalar, Values
from headgate.core.errors import InvalidRule
from headgate.core.numbers import short

_DECLARED = "declared"
_Check = Callable[[Any], Any]
"""Returns a value as a record has it. Raises Meaningless with the end of a message that begins with its name."""


def declared(
    form: Form | None,
    about: str,
    default: Any = MISSING,
    *,
    factory: Any = MISSING,
    key: str = "",
    is_secret: bool = False,
) -> Any:
    """Declare a field of a dataclass that has a default.

    Args:
        form: of its values; None: it is not known yet, and comes from `fields_of`.
        about: what it means.
        default: what it is where it is not given.
        factory: makes that.
        key: its name in data, if that is another one; after a part of the data and a dot, it is in there.
        is_secret: whether it is not shown.
    """
    metadata = {_DECLARED: (key, form, about, False)}
    return field(default=default, default_factory=factory, repr=not is_secret, metadata=metadata)


def needed(form: Form, about: str) -> Mapping[str, Any]:
    """Declare a field that has no default, as the metadata of `dataclasses.field`."""
    return {_DECLARED: ("", form, about, True)}


def fields_of(kind: type, part: str = "", **forms: Form) -> dict[str, Field]:
    """Return the fields that a dataclass declares, by their names in data or in a part of it.

    Args:
        kind: the dataclass.
        part: the name of the part; empty: what is in none.
        forms: those that the dataclass does not know itself.
    """
    return {
        key: Field(forms.get(key) or form, about, required)
        for key, _, (form, about, required) in _declarations(kind, part)
    }


def values_of(kind: type, read: Values, part: str = "") -> Values:
    """Return the arguments of a dataclass that have been read, by their names there; lists become tuples."""
    found = {name: read[key] for key, name, _ in _declarations(kind, part) if key in read}
    return {name: tuple(value) if type(value) is list else value for name, value in found.items()}


def _declarations(kind: type, part: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the name of each field in data, that in the dataclass, and what is declared of it."""
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
    for name, default, check in _checks(type(record)):  # type: ignore[arg-type]  # classes are hashable
        given = getattr(record, name)
        if given is default:
            continue
        try:
            right = check(given)
        except Meaningless as error:
            raise InvalidRule(f"{what}: {name}{error.message}", fields=(name,)) from None
        if right is not given:
            object.__setattr__(record, name, right)  # the record is frozen; this is a part of its construction


def check_mapping(what: str, values: Any, kind: type) -> None:
    """Refuse what is not a mapping of text to values of one type. Raises InvalidRule."""
    try:
        _mapping(kind, values)
    except Meaningless as error:
        raise InvalidRule(f"{what}{error.message}") from None


@cache
def _checks(kind: type) -> list[tuple[str, Any, _Check]]:
    hints = get_type_hints(kind)
    return [
        (each.name, each.default, _check_of(hints[each.name], each.metadata.get(_DECLARED, ("", None))[1]))
        for each in fields(kind)
        if each.init
    ]


def _check_of(hint: Any, form: Form | None) -> _Check:
    wanted = [each for each in get_args(hint) if each is not NoneType]
    origin = get_origin(hint)
    if origin in {tuple, frozenset}:
        return partial(_several, origin, wanted[0])
    if origin is Mapping:
        return partial(_mapping, get_origin(wanted[1]) or wanted[1])
    if NoneType in get_args(hint):
        return partial(_optional, _check_of(wanted[0] if len(wanted) == 1 else hint, form))
    if issubclass(hint, StrEnum):
        return partial(_word, hint)
    bounds = form.json if isinstance(form, Scalar) else {}
    return partial(_whole, bounds) if hint is int else partial(_single, hint)


def _optional(check: _Check, value: Any) -> Any:
    return value if value is None else check(value)


def _single(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        name = kind.__name__
        wanted = _NAMES.get(kind) or f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
        raise Meaningless(f" is {wanted}, not {short(value)}")
    return value


def _whole(bounds: Mapping[str, int], value: Any) -> int:
    low, high = bounds.get("minimum"), bounds.get("maximum")
    if type(value) is int and (low is None or high is None or low <= value <= high):
        return value
    between = "" if low is None else f" from {low} to {high}"
    raise Meaningless(f" is a whole number{between}, not {short(value)}")


def _word(kind: type[StrEnum], value: Any) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise Meaningless(f" is one of {', '.join(kind)}, not {short(value)}") from None


def _several(made: type, kind: type, values: Any) -> Any:
    """Text is not several texts, and one value not several."""
    name = _NAMES.get(kind, kind.__name__)
    if not isinstance(values, tuple | list | frozenset | set):
        raise Meaningless(f" is several of {name}, in a tuple or a list, not {short(values)}")
    for value in values:
        if not isinstance(value, kind):
            raise Meaningless(f" has {name} only, not {short(value)}")
    return values if type(values) is made else made(values)


def _mapping(kind: type, values: Any) -> Any:
    name = _NAMES.get(kind, kind.__name__)
    if not isinstance(values, Mapping):
        raise Meaningless(f" is a mapping of text to {name}, not {short(values)}")
    for key, value in values.items():
        if not isinstance(key, str):
            raise Meaningless(f" has text as names, not {short(key)}")
        if not isinstance(value, kind):
            raise Meaningless(f": {short(key)} has {name}, not {short(value)}")
    return values


_NAMES: dict[type, str] = {str: "text", bool: "True or False", Mapping: "a mapping"}
