"""The configuration files of envoyproxy/ratelimit, from YAML to the compiled policy.

All 16 keys of envoyproxy/ratelimit mean what they mean there. Besides these there are ``rate_limits`` (several limits
on one descriptor, all of which must admit; one that refuses takes nothing from the others), ``unit_multiplier``,
``algorithm`` and ``burst``.

Values mean what they mean to envoyproxy/ratelimit, which is written in Go: nothing is the same as "" or 0 or false; any
word or whole number is text where text is expected; ``yes`` and ``on`` are true. A key that is known but has no effect
where it stands is let pass there; here too, with a warning.

Problems are told all at once, each with file, line and field. What is refused here and not there: a key given twice in
one mapping, a fraction or an exponent where a whole number is expected, any unit with `unlimited`, and files that are
nested more than 20 deep (8 levels of descriptors).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path as FolderPath
from types import MappingProxyType
from typing import Any, NamedTuple

from headgate.config.problems import Finding, Findings, InvalidRules, Path, ProblemKind, render, shown
from headgate.config.schema import Field, ListOf, Meaningless, Record, Scalar, Schema, Values
from headgate.config.yaml_text import Document, text_of
from headgate.core.algorithms import Algorithm
from headgate.core.errors import InvalidQuota, InvalidRule
from headgate.core.quota import MAX_WINDOW_US, SECOND
from headgate.live import EVERY, FileSource, Live, yaml_files
from headgate.policy.envoy.matching import DescriptorPolicy
from headgate.policy.envoy.request import MAX_UINT32, Unit
from headgate.policy.envoy.tree import DescriptorNode, DescriptorRule, Level, RateLimit, Trail, made_once
from headgate.policy.lists import Pattern
from headgate.policy.quotas import ALGORITHMS

_MEANING = ProblemKind.MEANING
_UNITS = {unit.name.lower(): unit for unit in sorted(Unit, key=lambda unit: unit.seconds)}
_FLAGS = {
    **dict.fromkeys(("y", "yes", "on", "true"), True),
    **dict.fromkeys(("n", "no", "off", "false", ""), False),
}
_BUCKET_FIELDS = ("unit_multiplier", "algorithm", "burst")
_OF_LIMITED = {"unit", "requests_per_unit", *_BUCKET_FIELDS}
_EXTENSIONS = {"rate_limits", *_BUCKET_FIELDS}


class GoText:
    """Text as it is written: true and false, too."""

    def read(self, value: object, path: Path, findings: Findings) -> str | None:
        if (type(value) is str and is_unicode(value)) or value is None:
            return value
        if type(value) is int:
            return str(value)
        if type(value) is bool:
            line, column = findings.where.locate(path, at_key=False)
            word = re.match("true|false", findings.where.source(line)[column - 1 :], re.IGNORECASE)
            if word:
                return word.group()
        hint = "Put it in quotes." if isinstance(value, bool | float) else ""
        findings.add(path, f"{shown(value)} is not text", hint=hint)
        return None

    def schema(self) -> Schema:
        return {"type": ["string", "integer", "boolean", "null"]}


def is_unicode(text: str) -> bool:
    """Whether text has no lone surrogates, which an escape in quoted YAML can make."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _frozen(value: Any) -> Any:
    """Return data that cannot be changed any more."""
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(inner) for key, inner in value.items()})
    return tuple([_frozen(inner) for inner in value]) if isinstance(value, list) else value


def _count(least: int = 0) -> Scalar:
    """A whole number of 32 bits."""
    wrong = f"is not a whole number from {least} to {MAX_UINT32}"

    def means(value: int | str | None) -> int | None:
        number = int(value, 0) if isinstance(value, str) else value
        if number is not None and not least <= number <= MAX_UINT32:
            raise Meaningless(f"{shown(value)} {wrong}")
        return number

    digits = "^(?:(?=.{1,40}$)[1-9][0-9]*(_[0-9]+)+|0x[0-9A-Fa-f]{1,40})$"
    bounds = {"minimum": least, "maximum": MAX_UINT32}
    return Scalar({"type": ["integer", "string", "null"], **bounds, "pattern": digits}, wrong, means=means)


def _in_any_case(words: Iterable[str]) -> str:
    """Return a pattern of these words, in capitals or not."""
    return "^(?:{})$".format("|".join("".join(f"[{letter.upper()}{letter}]" for letter in word) for word in words))


_FLAG = Scalar(
    {"type": ["boolean", "string", "null"], "pattern": _in_any_case(_FLAGS)},
    "is not true or false",
    means=lambda value: _FLAGS[value.lower()] if isinstance(value, str) else value,
)
_UNIT = Scalar(
    {"type": ["string", "null"], "pattern": _in_any_case([*_UNITS, ""])},
    "is not a unit",
    f"one of {', '.join(_UNITS)}",
    lambda value: _UNITS[value.lower()] if value else None,
    lambda value, findings: findings.near(value, _UNITS),
)
_ALGORITHM = Scalar(
    {"enum": [*ALGORITHMS, "", None]},
    "is unknown",
    f"one of {', '.join(Algorithm)}",
    ALGORITHMS.get,
    lambda value, findings: findings.near(value, ALGORITHMS),
)


class _Block(NamedTuple):
    """One rate limit as written."""

    name: str
    replaces: frozenset[str]
    limit: RateLimit | None
    """None if it is unlimited, or wrong."""
    is_unlimited: bool


@dataclass(frozen=True, slots=True)
class RateLimitForm:
    """One rate limit."""

    or_nothing: bool = False
    """Whether the key may stand there without a value."""

    def read(self, value: object, path: Path, findings: Findings) -> _Block | None:
        if value is None and self.or_nothing:
            return None
        is_unlimited = type(value) is dict and _FLAG.read(value.get("unlimited"), path, Findings()) is True
        if is_unlimited and isinstance(value, dict):
            for field in ("unit", *_BUCKET_FIELDS):
                if value.get(field) not in (None, ""):
                    findings.add((*path, field), f"what is unlimited has no {field}", kind=_MEANING)
            if value.get("requests_per_unit") is not None:
                message = "'requests_per_unit' has no effect in what is unlimited"
                findings.warn((*path, "requests_per_unit"), message, at_key=True)
            value = {key: inner for key, inner in value.items() if key not in _OF_LIMITED}
        before = findings.count
        read = RATE_LIMIT.read(value, path, findings)
        if read is None or not isinstance(value, dict):
            return None
        name = read.get("name", "")
        replaces = self._replaces(read.get("replaces", ()), name, path, findings)
        limit = None if is_unlimited else self._limit(value, {**read, "replaces": replaces}, before, path, findings)
        return _Block(name, replaces, limit, is_unlimited)

    def _replaces(self, read: list[Values | None], name: str, path: Path, findings: Findings) -> frozenset[str]:
        names = [entry.get("name", "") for entry in read if entry is not None]
        for index, entry in enumerate(read):
            place = (*path, "replaces", index)
            if entry is not None and not entry.get("name"):
                findings.add(place, "an entry of replaces needs the name of a limit")
            elif entry is not None and entry["name"] == name:
                findings.add(place, f"the limit {shown(name)} cannot replace itself", kind=_MEANING)
        return frozenset(names)

    def _limit(self, value: Values, read: Values, before: int, path: Path, findings: Findings) -> RateLimit | None:
        unit = read.get("unit")
        if unit is None and value.get("unit") in (None, ""):
            where = (*path, "unit") if "unit" in value else path
            findings.add(where, "a rate limit needs a unit", f"one of {', '.join(_UNITS)}")
        if value.get("requests_per_unit") is None:
            findings.warn(path, "without requests_per_unit, everything is refused", hint="Write it, even if it is 0.")
        if unit is None or findings.count > before:
            return None
        multiplier, burst = read.get("unit_multiplier", 1), read.get("burst", 0)
        if unit.seconds * multiplier * SECOND > MAX_WINDOW_US:
            days = MAX_WINDOW_US // SECOND // 86400
            message = f"a window of {multiplier} {unit.name.lower()}s is longer than {days} days"
            findings.add((*path, "unit_multiplier"), message, kind=_MEANING)
            return None
        try:
            return made_once(
                read.get("requests_per_unit", 0),
                unit,
                multiplier,
                read.get("name", ""),
                read["replaces"],
                read.get("algorithm", Algorithm.FIXED_WINDOW),
                burst,
            )
        except InvalidQuota as error:
            at_burst = burst and "burst" in error.fields
            findings.add((*path, "burst") if at_burst else path, str(error), kind=_MEANING)
            return None

    def schema(self) -> Schema:
        return RATE_LIMIT.schema() | ({"type": ["object", "null"]} if self.or_nothing else {})


class _Written(NamedTuple):
    """One descriptor as written."""

    path: Path
    key: str
    value: str
    level: Level
    read: Values
    blocks: list[_Block]


class DescriptorForm:
    """A descriptor, with those nested in it."""

    def read(self, value: object, path: Path, findings: Findings) -> _Written | None:
        read = DESCRIPTOR.read(value, path, findings)
        if read is None or not isinstance(value, dict):
            return None
        if value.get("key") is None:
            findings.add(path, "a descriptor needs a key")
        elif value["key"] == "":
            findings.add((*path, "key"), "a key cannot be empty")
        key, inner = read.get("key", ""), read.get("value", "")
        name = f"{key}_{inner}" if inner else key
        is_shared = read.get("share_threshold", False)
        if is_shared and "*" not in name:
            message = f"only a value with * can share its threshold, not {shown(name)}"
            findings.add((*path, "share_threshold"), message, kind=_MEANING)
        if value.get("rate_limit") is not None and value.get("rate_limits") is not None:
            message = "there is a rate_limit, too: put it into the list"
            findings.add((*path, "rate_limits"), message, kind=_MEANING)
        blocks = [block for block in (read.get("rate_limit"), *read.get("rate_limits", ())) if block is not None]
        if len(blocks) > 1:
            for index, block in enumerate(read.get("rate_limits", ())):
                if block is not None and block.is_unlimited:
                    message = "an unlimited rate limit cannot be one of several"
                    findings.add((*path, "rate_limits", index), message, kind=_MEANING)
        return _Written(path, key, inner, Level(name, is_shared, read.get("value_to_metric", False)), read, blocks)

    def schema(self) -> Schema:
        return {"$ref": "#/$defs/descriptor"}


def _misplaced(record: Record, key: str, path: Path, findings: Findings) -> bool:
    """Say of a key that it belongs elsewhere, if it does. Is it no more than odd, or else is nothing known of it?"""
    owner = next((other.what for other in (FILE, DESCRIPTOR, RATE_LIMIT, _REPLACED) if key in other.fields), "")
    if owner and key not in _EXTENSIONS:
        findings.warn(path, f"{key!r} has no effect in {record.what}", hint=f"It belongs to {owner}.", at_key=True)
    elif owner:
        findings.add(path, f"{record.what} has no {shown(key)}", hint=f"It belongs to {owner}.", at_key=True)
    return bool(owner)


def _several(of: Any, what: str) -> ListOf:
    return ListOf(of, f"a list, each of its entries {what}", or_nothing=True)


_REPLACED = Record(
    "an entry of replaces",
    {"name": Field(GoText(), "The name of a limit that does not apply when this one does.")},
    unknown=_misplaced,
)
RATE_LIMIT = Record(
    "a rate limit",
    {
        "unit": Field(_UNIT, "The unit of time."),
        "requests_per_unit": Field(_count(), "How many requests may pass in it; 0 refuses everything."),
        "unlimited": Field(_FLAG, "Whether there is no limit at all."),
        "name": Field(GoText(), "For `replaces`."),
        "replaces": Field(_several(_REPLACED, _REPLACED.what), "Limits that do not apply when this one does."),
        "unit_multiplier": Field(_count(1), "The window is so many units, from the epoch on."),
        "algorithm": Field(_ALGORITHM, "How it counts; default: fixed_window."),
        "burst": Field(_count(), "What a bucket or GCRA admits at once beyond its limit."),
    },
    unknown=_misplaced,
)
DESCRIPTOR = Record(
    "a descriptor",
    {
        "key": Field(GoText(), "The key of an entry."),
        "value": Field(GoText(), "Its value, in which * stands for any characters; default: any."),
        "rate_limit": Field(RateLimitForm(or_nothing=True), "The limit."),
        "rate_limits": Field(_several(RateLimitForm(), RATE_LIMIT.what), "Instead: several, all of which must admit."),
        "descriptors": Field(_several(DescriptorForm(), "a descriptor"), "Nested ones, for the next entry."),
        "shadow_mode": Field(_FLAG, "Count, but never refuse."),
        "quota_mode": Field(_FLAG, "Refuse only if all descriptors of this kind are over their limits."),
        "detailed_metric": Field(_FLAG, "Whether metrics have the values of the request."),
        "value_to_metric": Field(_FLAG, "Whether metrics have the value of this entry."),
        "share_threshold": Field(_FLAG, "Whether all values that match the pattern count together."),
        "metadata": Field(
            Scalar({"type": ["object", "null"]}, "is not a mapping", means=_frozen),
            "Whatever is to be told with the answer.",
        ),
    },
    unknown=_misplaced,
)
FILE = Record(
    "a file",
    {
        "domain": Field(GoText(), "A name that no other file has."),
        "descriptors": Field(_several(DescriptorForm(), DESCRIPTOR.what), "The descriptors."),
    },
    unknown=_misplaced,
)


def load(texts: Mapping[str, str], *, merge_domains: bool = False) -> DescriptorPolicy:
    """Compile configuration files.

    Args:
        texts: YAML by the name of the file.
        merge_domains: whether files may add descriptors to the domain of another file. Of those at the top; what is
            nested in one descriptor comes from one file.

    Raises:
        InvalidRules: with all problems of all files.
    """
    domains: dict[str, _Siblings] = {}
    problems: list[Finding] = []
    warnings: list[Finding] = []
    for name, text in texts.items():
        try:
            document = Document(text, name)
        except InvalidRules as error:
            problems += error.problems
            continue
        findings = Findings(document)
        _add_file(name, document.data, domains, findings, merge_domains=merge_domains)
        problems += findings.problems()
        warnings += findings.warnings()
    if problems:
        raise InvalidRules(problems)
    trees = {domain: siblings.under(Level(domain), None) for domain, siblings in domains.items()}
    return DescriptorPolicy(trees, warnings)


def _add_file(
    name: str, data: object, domains: dict[str, _Siblings], findings: Findings, *, merge_domains: bool
) -> None:
    data = {} if data is None else data
    read = FILE.read(data, (), findings)
    if read is None or not isinstance(data, dict):
        return
    domain = read.get("domain", "")
    siblings = domains.get(domain)
    if not domain:
        where: Path = ("domain",) if "domain" in data else ()
        if data.get("domain") in (None, ""):  # otherwise it is told already what is wrong with it
            findings.add(where, "a file needs a domain", "a name that no other file has")
    elif siblings is None:
        siblings = domains[domain] = _Siblings(name)
    elif not merge_domains:
        message = f"the domain {shown(domain)} is that of {siblings.file}, too"
        findings.add(("domain",), message, hint="Give it another name, or merge the domains.", kind=_MEANING)
        siblings = None  # what is wrong inside the file is told all the same
    (siblings or _Siblings(name)).add(read.get("descriptors", ()), Trail(domain), name, findings)


class _Siblings:
    """The descriptors of one list, or of several lists that are merged."""

    def __init__(self, file: str) -> None:
        self.file = file
        """Where the first of them are."""
        self.nodes: dict[str, DescriptorNode] = {}
        self.origins: dict[str, tuple[str, str, str]] = {}
        """Of each, by name: its place, its key and its value."""

    def under(self, level: Level, rule: DescriptorRule | None) -> DescriptorNode:
        """Return the node that they are nested in."""
        wildcards = tuple([(Pattern(name), node) for name, node in self.nodes.items() if "*" in name])
        return DescriptorNode(level, rule, self.nodes, wildcards)

    def add(self, descriptors: Iterable[_Written | None], parent: Trail, file: str, findings: Findings) -> None:
        """Add descriptors, and all that are nested in them, that a file has under the names of `parent`."""
        for written in descriptors:
            if written is None:
                continue
            name = written.level.name
            trail = parent.to(written.level)
            rule = _rule(written, trail, findings)
            nested = _Siblings(file)
            nested.add(written.read.get("descriptors", ()), trail, file, findings)
            if name in self.origins:
                self._duplicate(written, trail, findings)
            elif written.key:
                self.origins[name] = f"{file}: {render(written.path)}", written.key, written.value
                self.nodes[name] = nested.under(written.level, rule)

    def _duplicate(self, written: _Written, trail: Trail, findings: Findings) -> None:
        name = ".".join(level.name for level in trail.levels)
        key, value = written.key, written.value
        first, *same = self.origins[written.level.name]
        hint = ""
        if same != [key, value]:
            hint = f"Key and value are joined with _: ({key}, {value}) is the same as ({', '.join(same)})."
        message = f"the descriptor {shown(name)} is there twice, first in {first}"
        findings.add(written.path, message, hint=hint, kind=_MEANING)


def _rule(written: _Written, trail: Trail, findings: Findings) -> DescriptorRule | None:
    limits = tuple([block.limit for block in written.blocks if block.limit is not None])
    unlimited = [block.name for block in written.blocks if block.is_unlimited]
    if not limits and not unlimited:
        return None
    read = written.read
    try:
        return DescriptorRule(
            trail.id,
            trail.domain,
            trail.levels,
            limits,
            unlimited[-1] if unlimited else "",
            frozenset().union(*(block.replaces for block in written.blocks)),
            read.get("shadow_mode", False),
            read.get("quota_mode", False),
            read.get("detailed_metric", False),
            read.get("metadata", _frozen({})),
        )
    except InvalidQuota as error:
        findings.add((*written.path, "rate_limits"), str(error), kind=_MEANING)
        return None


class LiveDescriptors(Live[DescriptorPolicy]):
    """Keeps descriptor trees up to date; see `Live`. A folder that is empty, or gone, changes nothing.

    Args:
        folder: where the files are: all that end in .yaml or .yml make one configuration.
        merge_domains: whether several files may have the same domain.
        every: seconds between two looks at them.
    """

    def __init__(self, folder: str | PathLike[str], *, merge_domains: bool = False, every: float = EVERY) -> None:
        def loaded(path: FolderPath) -> DescriptorPolicy:
            texts = {str(file): text_of(file) for file in yaml_files(path)}
            if not texts:
                raise InvalidRule(f"{path}: no file there ends in .yaml or .yml")
            return load(texts, merge_domains=merge_domains)

        source = FileSource(folder, loaded, yaml_files)
        super().__init__(source, lambda policy, _: policy, what="descriptors", every=every)

    @property
    def policy(self) -> DescriptorPolicy:
        """The trees in force."""
        return self.value
