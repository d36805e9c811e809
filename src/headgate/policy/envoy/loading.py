"""The configuration files of envoyproxy/ratelimit, from YAML to the compiled policy.

All of its 16 keys mean what they mean there::

    domain: edge                       # one for each file, unless merging is asked for
    descriptors:
      - key: remote_address
        value: 10.0.*                  # optional; * stands for any characters
        rate_limit:
          unit: minute                 # second minute hour day week month (30 days) year (365 days)
          requests_per_unit: 100       # 0 refuses everything
          unlimited: false             # or true, and no unit
          name: internal
          replaces: [{name: other}]
        shadow_mode: false             # count, but never refuse
        quota_mode: false              # refuse only if all descriptors of this kind are over their limits
        share_threshold: false         # all values that match the pattern count together
        detailed_metric: false
        value_to_metric: false
        metadata: {}
        descriptors: []                # nested ones, for the next entry of the request's descriptor

What its users ask for in vain is possible besides::

    rate_limits:                       # instead of rate_limit: several limits on one descriptor
      - {unit: second, requests_per_unit: 10, algorithm: token_bucket, burst: 20}
      - {unit: minute, unit_multiplier: 15, requests_per_unit: 250}

- ``unit_multiplier``: the window is so many units, from the epoch on.
- ``rate_limits``: all of them must admit; one that refuses takes nothing from the others.
- ``algorithm``: token_bucket, leaky_bucket, fixed_window (the default), sliding_window_log,
  sliding_window_counter or gcra; ``burst``: what a bucket or GCRA admits at once beyond its limit.

Problems are told all at once, each with file, line and field. What is refused here and not there: a key given twice in
one mapping, a fraction or an exponent where a whole number is expected, any unit with `unlimited`, and files that are
nested more than 20 deep (8 levels of descriptors).
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path as FolderPath
from typing import Any

from headgate.core.errors import InvalidQuota, InvalidRule
from headgate.core.quota import MAX_WINDOW_US, SECOND
from headgate.live import EVERY, FileSource, Live, yaml_files
from headgate.policy.envoy.fields import Fields
from headgate.policy.envoy.matching import DescriptorPolicy
from headgate.policy.envoy.tree import Level, Node, RateLimit, Rule, Trail, Wildcard, made_once
from headgate.policy.loading import text_of
from headgate.policy.problems import InvalidRules, Kind, Path, Problem, in_order, render, shown
from headgate.policy.yaml_nodes import Document

_MEANING = Kind.MEANING
_BUCKETS = ("unit_multiplier", "algorithm", "burst")


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
    problems: list[Problem] = []
    warnings: list[Problem] = []
    for name, text in texts.items():
        try:
            document = Document(text, name)
        except InvalidRules as error:
            problems += error.problems
            continue
        fields = Fields(document)
        _File(name, fields).add_to(domains, document.data, merge_domains=merge_domains)
        problems += in_order([*document.problems, *fields.findings.located(document)])
        warnings += in_order(fields.warnings.located(document))
    if problems:
        raise InvalidRules(problems)
    trees = {domain: siblings.under(Level(domain), None) for domain, siblings in domains.items()}
    return DescriptorPolicy(trees, warnings)


class _Siblings:
    """The descriptors of one list, or of several lists that are merged."""

    def __init__(self, file: str) -> None:
        self.file = file
        """Where the first of them are."""
        self.nodes: dict[str, Node] = {}
        self.origins: dict[str, tuple[str, str, str]] = {}
        """Of each, by name: its place, its key and its value."""

    def under(self, level: Level, rule: Rule | None) -> Node:
        wildcards = tuple([Wildcard.of(node) for name, node in self.nodes.items() if "*" in name])
        return Node(level, rule, self.nodes, wildcards)


class _File:
    """Reads the descriptors of one file."""

    def __init__(self, name: str, fields: Fields) -> None:
        self._name = name
        self._fields = fields
        self._findings = fields.findings

    def add_to(self, domains: dict[str, _Siblings], data: object, *, merge_domains: bool) -> None:
        root = self._fields.mapping({} if data is None else data, (), "a file")
        if root is None:
            return
        domain = self._fields.text(root, "domain", ())
        siblings = domains.get(domain)
        if not domain:
            where: Path = ("domain",) if "domain" in root else ()
            if root.get("domain") in (None, ""):  # otherwise it is told already what is wrong with it
                self._findings.add(where, "a file needs a domain", "a name that no other file has")
        elif siblings is None:
            siblings = domains[domain] = _Siblings(self._name)
        elif not merge_domains:
            message = f"the domain {shown(domain)} is that of {siblings.file}, too"
            self._findings.add(("domain",), message, kind=_MEANING, hint="Give it another name, or merge the domains.")
            siblings = None  # what is wrong inside the file is told all the same
        self._descriptors(root, (), Trail(domain), siblings or _Siblings(self._name))

    def _descriptors(self, holder: dict[str, Any], path: Path, trail: Trail, siblings: _Siblings) -> None:
        for place, descriptor in self._fields.items(holder.get("descriptors"), (*path, "descriptors"), "a descriptor"):
            self._descriptor(descriptor, place, trail, siblings)

    def _descriptor(self, descriptor: dict[str, Any], path: Path, parent: Trail, siblings: _Siblings) -> None:
        fields = self._fields
        key, value = fields.text(descriptor, "key", path), fields.text(descriptor, "value", path)
        name = f"{key}_{value}" if value else key
        if not key and descriptor.get("key") is None:
            self._findings.add(path, "a descriptor needs a key")
        elif descriptor.get("key") == "":
            self._findings.add((*path, "key"), "a key cannot be empty")
        shared = fields.flag(descriptor, "share_threshold", path)
        if shared and "*" not in name:
            self._findings.add(
                (*path, "share_threshold"),
                f"only a value with * can share its threshold, not {shown(name)}",
                kind=_MEANING,
            )
        level = Level(name, shared, fields.flag(descriptor, "value_to_metric", path))
        trail = parent.to(level)
        rule = self._rule(descriptor, path, trail)
        nested = _Siblings(self._name)
        self._descriptors(descriptor, path, trail, nested)
        if name in siblings.origins:
            self._duplicate(key, value, path, trail, siblings)
        elif key:
            siblings.origins[name] = f"{self._name}: {render(path)}", key, value
            siblings.nodes[name] = nested.under(level, rule)

    def _duplicate(self, key: str, value: str, path: Path, trail: Trail, siblings: _Siblings) -> None:
        name = ".".join(level.name for level in trail.levels)
        first, *same = siblings.origins[trail.levels[-1].name]
        hint = ""
        if same != [key, value]:
            hint = f"Key and value are joined with _: ({key}, {value}) is the same as ({', '.join(same)})."
        self._findings.add(
            path, f"the descriptor {shown(name)} is there twice, first in {first}", hint=hint, kind=_MEANING
        )

    def _rule(self, descriptor: dict[str, Any], path: Path, trail: Trail) -> Rule | None:
        fields = self._fields
        modes = {mode: fields.flag(descriptor, mode, path) for mode in ("shadow_mode", "quota_mode", "detailed_metric")}
        metadata = fields.metadata(descriptor, path)
        blocks = self._blocks(descriptor, path)
        limits = []
        replaces: frozenset[str] = frozenset()
        unlimited: str | None = None
        for place, block in blocks:
            name, replaced = self._names(block, place)
            replaces |= replaced
            if fields.flag(block, "unlimited", place):
                self._check_unlimited(block, place, alone=len(blocks) == 1)
                unlimited = name
            else:
                limit = self._limit(block, place, name, replaced)
                if limit is not None:
                    limits.append(limit)
        if not limits and unlimited is None:
            return None
        try:
            return Rule(
                trail.id,
                trail.domain,
                trail.levels,
                tuple(limits),
                unlimited or "",
                replaces,
                metadata=metadata,
                **modes,
            )
        except InvalidQuota as error:
            self._findings.add((*path, "rate_limits"), str(error), kind=_MEANING)
            return None

    def _blocks(self, descriptor: dict[str, Any], path: Path) -> list[tuple[Path, dict[str, Any]]]:
        one, many = descriptor.get("rate_limit"), descriptor.get("rate_limits")
        if one is not None and many is not None:
            self._findings.add(
                (*path, "rate_limits"), "there is a rate_limit, too: put it into the list", kind=_MEANING
            )
        if one is not None:
            place = (*path, "rate_limit")
            block = self._fields.mapping(one, place, "a rate limit")
            return [] if block is None else [(place, block)]
        return self._fields.items(many, (*path, "rate_limits"), "a rate limit")

    def _names(self, block: dict[str, Any], path: Path) -> tuple[str, frozenset[str]]:
        name = self._fields.text(block, "name", path)
        names = []
        for place, entry in self._fields.items(block.get("replaces"), (*path, "replaces"), "an entry of replaces"):
            replaced = self._fields.text(entry, "name", place)
            if not replaced:
                self._findings.add(place, "an entry of replaces needs the name of a limit")
            elif replaced == name:
                self._findings.add(place, f"the limit {shown(name)} cannot replace itself", kind=_MEANING)
            names.append(replaced)
        return name, frozenset(names)

    def _check_unlimited(self, block: dict[str, Any], path: Path, *, alone: bool) -> None:
        if not alone:
            self._findings.add(path, "an unlimited rate limit cannot be one of several", kind=_MEANING)
        for field in ("unit", *_BUCKETS):
            if block.get(field) not in (None, ""):
                self._findings.add((*path, field), f"what is unlimited has no {field}", kind=_MEANING)
        if block.get("requests_per_unit") is not None:
            message = "'requests_per_unit' has no effect in what is unlimited"
            self._fields.warnings.add((*path, "requests_per_unit"), message, at_key=True)

    def _limit(self, block: dict[str, Any], path: Path, name: str, replaces: frozenset[str]) -> RateLimit | None:
        fields, before = self._fields, self._findings.count
        unit = fields.unit(block, path)
        requests = fields.count(block, "requests_per_unit", path)
        multiplier = fields.count(block, "unit_multiplier", path, 1)
        algorithm = fields.algorithm(block, path)
        burst = fields.count(block, "burst", path)
        if block.get("requests_per_unit") is None:
            fields.warnings.add(
                path, "without requests_per_unit, everything is refused", hint="Write it, even if it is 0."
            )
        if unit is None or self._findings.count > before:
            return None
        if unit.seconds * multiplier * SECOND > MAX_WINDOW_US:
            self._findings.add(
                (*path, "unit_multiplier"),
                f"a window of {multiplier} {unit.name.lower()}s is longer than {MAX_WINDOW_US // SECOND // 86400} days",
                kind=_MEANING,
            )
            return None
        try:
            return made_once(requests, unit, multiplier, name, replaces, algorithm, burst)
        except InvalidQuota as error:
            at_burst = burst and (not algorithm.is_bucket or not requests)
            self._findings.add((*path, "burst") if at_burst else path, str(error), kind=_MEANING)
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
