"""The configuration files of envoyproxy/ratelimit, from YAML to the compiled policy.

All 16 keys of envoyproxy/ratelimit have the same meaning. In addition, there are ``rate_limits`` (several limits
on one descriptor, all of which must admit; one that refuses takes nothing from the others), ``unit_multiplier``,
``algorithm`` and ``burst``.

Values have the meaning that they have in envoyproxy/ratelimit, which is written in Go: nothing is the same as "" or 0
or false; any word or whole number is text where text is expected; ``yes`` and ``on`` are true. A known key in the wrong
place has no effect there; here it is a warning as well.

All problems are reported at once, each with file, line and field. Refused here and not there: a key given twice in one
mapping, a fraction or an exponent where a whole number is expected, any unit with `unlimited`, and files nested more
than 20 deep (8 levels of descriptors).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path as FolderPath
from types import MappingProxyType
from typing import Any, NamedTuple

from headgate.config.problems import Finding, Findings, InvalidRules, Path, render, shown
from headgate.config.schema import Field, Form, ListOf, Meaningless, Record, Scalar, Values
from headgate.config.yaml_text import Document, text_of
from headgate.core.algorithms import Algorithm
from headgate.core.errors import InvalidQuota, InvalidRule
from headgate.live import EVERY, FileSource, Live, yaml_files
from headgate.policy.envoy.matching import DescriptorPolicy
from headgate.policy.envoy.request import MAX_UINT32, Unit
from headgate.policy.envoy.tree import DescriptorNode, DescriptorRule, Level, RateLimit, cached_limit, rule_id
from headgate.policy.lists import Pattern
from headgate.policy.quotas import ALGORITHMS

_UNITS = {unit.name.lower(): unit for unit in sorted(Unit, key=lambda unit: unit.seconds)}
_FLAGS = dict.fromkeys((True, "y", "yes", "on", "true"), True) | dict.fromkeys(
    (False, "n", "no", "off", "false", ""), False
)
_BUCKET_FIELDS = ("unit_multiplier", "algorithm", "burst")
_SURROGATE = re.compile("[\ud800-\udfff]")
"""What an escape in quoted YAML can make, and is not Unicode text."""
_EXTENSIONS = {"rate_limits", *_BUCKET_FIELDS}


class GoText(Form):
    """Text as it is written: true and false, too. If it is needed, it must not be empty."""

    def __init__(self, *, is_needed: bool = False) -> None:
        self._is_needed = is_needed

    def read(self, value: object, path: Path, findings: Findings) -> str | None:
        if self._is_needed and value in (None, ""):
            findings.add(path, "cannot be empty")
            return None
        if value is None or (type(value) is str and not _SURROGATE.search(value)):
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


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return MappingProxyType({key: _frozen(inner) for key, inner in value.items()})
    return tuple([_frozen(inner) for inner in value]) if isinstance(value, list) else value


def _count(least: int = 0) -> Scalar:
    """A whole number of 32 bits, also with underscores or in hexadecimal."""
    wrong = f"is not a whole number from {least} to {MAX_UINT32}"

    def means(value: int | str | None) -> int | None:
        number = int(value, 0) if isinstance(value, str) else value
        if number is not None and not least <= number <= MAX_UINT32:
            raise Meaningless(f"{shown(value)} {wrong}")
        return number

    digits = "^(?:(?=.{1,40}$)[1-9][0-9]*(_[0-9]+)+|0x[0-9A-Fa-f]{1,40})$"
    bounds = {"minimum": least, "maximum": MAX_UINT32}
    return Scalar({"type": ["integer", "string", "null"], **bounds, "pattern": digits}, wrong, means=means)


class Words(Form):
    """One of a few words in any case, or nothing."""

    def __init__(self, words: Mapping[Any, Any], wrong: str, names: Iterable[str] = ()) -> None:
        self._words, self._wrong, self._names = words, wrong, tuple(map(str, names))

    def read(self, value: object, path: Path, findings: Findings) -> Any:
        word = value.lower() if isinstance(value, str) else value
        if value is None or (isinstance(word, str | bool) and word in self._words):
            return self._words.get(word)
        accepted = f"one of {', '.join(self._names)}" if self._names else ""
        findings.add(path, f"{shown(value)} {self._wrong}", accepted, findings.near(value, self._names))
        return None


_FLAG = Words(_FLAGS, "is not true or false")
_UNIT = Words({"": None, **_UNITS}, "is not a unit", _UNITS)
_ALGORITHM = Words({"": None, **ALGORITHMS}, "is unknown", Algorithm)


_Unlimited = tuple[str, frozenset[str]]
"""The name of a rate limit that is written as unlimited, and the names of those that it replaces."""


class RateLimitForm(Form):
    def read(self, value: object, path: Path, findings: Findings) -> RateLimit | _Unlimited | None:
        if value is None and path[-1] == "rate_limit":
            return None
        before = findings.count
        read = RATE_LIMIT.read(value, path, findings)
        if read is None or not isinstance(value, dict):
            return None
        names = [entry["name"] if entry else None for entry in read.get("replaces", ())]
        for index, name in enumerate(names):
            if name is not None and name == read.get("name"):
                place = (*path, "replaces", index)
                findings.reject(place, f"the limit {shown(name)} cannot replace itself")
        read["replaces"] = frozenset(names)
        if read.pop("unlimited", False):
            return self._unlimited(read, path, findings)
        if value.get("unit") in (None, ""):
            where = (*path, "unit") if "unit" in value else path
            findings.add(where, "a rate limit needs a unit", f"one of {', '.join(_UNITS)}")
        if value.get("requests_per_unit") is None:
            findings.warn(path, "without requests_per_unit, everything is refused", hint="Write it, even if it is 0.")
        if findings.count > before:
            return None
        try:
            return cached_limit(**{"requests_per_unit": 0, **read})
        except InvalidQuota as error:
            field = next((name for name in error.fields if read.get(name)), "")
            findings.reject((*path, field) if field else path, str(error))
            return None

    def _unlimited(self, read: Values, path: Path, findings: Findings) -> _Unlimited:
        for field in ("unit", *_BUCKET_FIELDS):
            if field in read:
                findings.reject((*path, field), f"an unlimited rate limit has no {field}")
        if "requests_per_unit" in read:
            message = "'requests_per_unit' has no effect in an unlimited rate limit"
            findings.warn((*path, "requests_per_unit"), message, at_key=True)
        return read.get("name", ""), read["replaces"]


class _Written(NamedTuple):
    path: Path
    key: str
    value: str
    level: Level
    read: Values


def _descriptor(read: Values, path: Path, findings: Findings) -> _Written:
    key, value = read["key"], read.get("value", "")
    name = f"{key}_{value}" if value else key
    is_shared = read.get("share_threshold", False)
    if is_shared and "*" not in name:
        message = f"only a value with * can share its threshold, not {shown(name)}"
        findings.reject((*path, "share_threshold"), message)
    limit, limits = read.get("rate_limit"), read.get("rate_limits", [])
    if limit is not None and limits:
        findings.reject((*path, "rate_limits"), "cannot be combined with rate_limit: put that limit into the list")
    if len(limits) > 1:
        for index, each in enumerate(limits):
            if isinstance(each, tuple):
                message = "an unlimited rate limit cannot be one of several"
                findings.reject((*path, "rate_limits", index), message)
    read["limits"] = [each for each in (limit, *limits) if each is not None]
    return _Written(path, key, value, Level(name, is_shared, read.get("value_to_metric", False)), read)


def _report_misplaced(record: Record, key: str, path: Path, findings: Findings) -> bool:
    """Report a key that belongs to another record; return whether it does."""
    owner = next((other.what for other in (FILE, DESCRIPTOR, RATE_LIMIT, _REPLACED) if key in other.fields), "")
    if owner and key not in _EXTENSIONS:
        findings.warn(path, f"{key!r} has no effect in {record.what}", hint=f"It belongs to {owner}.", at_key=True)
    elif owner:
        findings.add(path, f"{record.what} has no {shown(key)}", hint=f"It belongs to {owner}.", at_key=True)
    return bool(owner)


def _several(of: Form, what: str) -> ListOf:
    return ListOf(of, f"a list, each of its entries {what}", or_nothing=True)


_REPLACED = Record(
    "an entry of replaces",
    {"name": Field(GoText(is_needed=True), "The name of a limit that does not apply when this one does.", True)},
    unknown=_report_misplaced,
)
RATE_LIMIT = Record(
    "a rate limit",
    {
        "unit": Field(_UNIT, "The unit of time."),
        "requests_per_unit": Field(_count(), "How many requests may pass in it; 0 refuses everything."),
        "unlimited": Field(_FLAG, "Whether there is no limit at all."),
        "name": Field(GoText(), "For `replaces`."),
        "replaces": Field(_several(_REPLACED, _REPLACED.what), "Limits that do not apply when this one does."),
        "unit_multiplier": Field(_count(1), "The number of units in the window, counted from the epoch."),
        "algorithm": Field(_ALGORITHM, "How it counts; default: fixed_window."),
        "burst": Field(_count(), "What a bucket or GCRA admits at once beyond its limit."),
    },
    unknown=_report_misplaced,
)
_DESCRIPTOR_FIELDS = {
    "key": Field(GoText(is_needed=True), "The key of an entry.", True),
    "value": Field(GoText(), "Its value, in which * matches any characters; default: any."),
    "rate_limit": Field(RateLimitForm(), "The limit."),
    "rate_limits": Field(_several(RateLimitForm(), RATE_LIMIT.what), "Instead: several, all of which must admit."),
    "shadow_mode": Field(_FLAG, "Count, but never refuse."),
    "quota_mode": Field(_FLAG, "Refuse only if all descriptors of this kind are over their limits."),
    "detailed_metric": Field(_FLAG, "Whether metrics have the values of the request."),
    "value_to_metric": Field(_FLAG, "Whether metrics have the value of this entry."),
    "share_threshold": Field(_FLAG, "Whether all values that match the pattern count together."),
    "metadata": Field(
        Scalar({"type": ["object", "null"]}, "is not a mapping", means=_frozen), "Data for the response."
    ),
}
DESCRIPTOR = Record("a descriptor", _DESCRIPTOR_FIELDS, make=_descriptor, unknown=_report_misplaced)
_DESCRIPTOR_FIELDS["descriptors"] = Field(_several(DESCRIPTOR, DESCRIPTOR.what), "Nested ones, for the next entry.")
FILE = Record(
    "a file",
    {
        "domain": Field(GoText(is_needed=True), "A name that no other file has.", True),
        "descriptors": Field(_several(DESCRIPTOR, DESCRIPTOR.what), "The descriptors."),
    },
    unknown=_report_misplaced,
)


def load(texts: Mapping[str, str], *, merge_domains: bool = False) -> DescriptorPolicy:
    """Compile configuration files, as YAML by name. Raises InvalidRules, with all problems of all files.

    With `merge_domains`, files may add descriptors to the top of another file's domain.
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
        read = FILE.read({} if document.data is None else document.data, (), findings)
        if read is not None:
            _add_file(name, read, domains, findings, merge_domains=merge_domains)
        problems += findings.problems()
        warnings += findings.warnings()
    if problems:
        raise InvalidRules(problems)
    trees = {domain: siblings.under(Level(domain), None) for domain, siblings in domains.items()}
    return DescriptorPolicy(trees, warnings)


def _add_file(
    name: str, read: Values, domains: dict[str, _Siblings], findings: Findings, *, merge_domains: bool
) -> None:
    domain = read.get("domain", "")
    siblings = domains.setdefault(domain, _Siblings(name)) if domain else _Siblings(name)
    if siblings.file != name and not merge_domains:
        message = f"the domain {shown(domain)} is already used by {siblings.file}"
        findings.reject(("domain",), message, "Give it another name, or merge the domains.")
        siblings = _Siblings(name)  # the descriptors are checked all the same
    siblings.add(read.get("descriptors", ()), domain, (), name, findings)


class _Siblings:
    """The descriptors of one list, or of several merged lists."""

    def __init__(self, file: str) -> None:
        self.file = file
        """The file of the first list."""
        self.nodes: dict[str, DescriptorNode] = {}
        self.origins: dict[str, tuple[str, str, str]] = {}
        """The place, the key and the value of each, by name."""

    def under(self, level: Level, rule: DescriptorRule | None) -> DescriptorNode:
        """Return the node that they are nested in."""
        wildcards = tuple([(Pattern(name), node) for name, node in self.nodes.items() if "*" in name])
        return DescriptorNode(level, rule, self.nodes, wildcards)

    def add(
        self,
        descriptors: Iterable[_Written | None],
        domain: str,
        parents: tuple[Level, ...],
        file: str,
        findings: Findings,
    ) -> None:
        """Add descriptors of a file under `parents`, with those nested in them."""
        for written in descriptors:
            if written is None:
                continue
            name, path = written.level.name, (*parents, written.level)
            rule = _rule(written, domain, path, findings)
            nested = _Siblings(file)
            nested.add(written.read.get("descriptors", ()), domain, path, file, findings)
            if name in self.origins:
                first, *same = self.origins[name]
                hint = ""
                if same != [written.key, written.value]:
                    this, other = f"({written.key}, {written.value})", f"({', '.join(same)})"
                    hint = f"Key and value are joined with _: {this} is the same as {other}."
                whole = ".".join(level.name for level in path)
                message = f"the descriptor {shown(whole)} occurs twice, first in {first}"
                findings.reject(written.path, message, hint)
            else:
                self.origins[name] = f"{file}: {render(written.path)}", written.key, written.value
                self.nodes[name] = nested.under(written.level, rule)


def _rule(written: _Written, domain: str, path: tuple[Level, ...], findings: Findings) -> DescriptorRule | None:
    read = written.read
    if not read["limits"]:
        return None
    limits = tuple([each for each in read["limits"] if isinstance(each, RateLimit)])
    name = "" if limits else read["limits"][-1][0]
    replaces = frozenset().union(*[each[1] if isinstance(each, tuple) else each.replaces for each in read["limits"]])
    given = {name: read[name] for name in ("shadow_mode", "quota_mode", "detailed_metric", "metadata") if name in read}
    parts = (rule_id(domain, path), domain, path, limits, name, replaces)
    return findings.attempt((*written.path, "rate_limits"), DescriptorRule, *parts, **given)


class LiveDescriptors(Live[DescriptorPolicy]):
    """Keeps descriptor trees up to date; see `Live`. An empty or missing folder changes nothing.

    The files of the folder that end in .yaml or .yml are one configuration, polled every `every` seconds.
    """

    def __init__(self, folder: str | PathLike[str], *, merge_domains: bool = False, every: float = EVERY) -> None:
        def loaded(path: FolderPath) -> DescriptorPolicy:
            texts = {str(file): text_of(file) for file in yaml_files(path)}
            if not texts:
                raise InvalidRule(f"{path}: no file there ends in .yaml or .yml")
            return load(texts, merge_domains=merge_domains)

        source = FileSource(folder, loaded, yaml_files)
        super().__init__(source, lambda policy, _: policy, what="descriptors", every=every)
