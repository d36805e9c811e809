"""``headgate rules validate``: files of rules, each on its own, and those of envoyproxy/ratelimit together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headgate.cli.rule_files import checked_text, expanded, is_for_envoy, shown, text
from headgate.policy import envoy
from headgate.policy.loading import InvalidRules, Problem

Found = list[tuple[str, Sequence[Problem]]]
"""What there is, a line for each that stands alone, and what is odd about each."""
_LISTED = 3


def validated(files: Iterable[str], *, merge_domains: bool) -> Found:
    """Return what is in the files. Raises InvalidRules, with the problems of all of them."""
    found: Found = []
    problems: list[Problem] = []
    for_envoy: dict[str, str] = {}
    for file in expanded(files):
        name = shown(file)
        try:
            written = text(file)
            if is_for_envoy(written):
                for_envoy[name] = written
                continue
            loaded = checked_text(written, name)
        except InvalidRules as error:
            problems += error.problems
            continue
        count = len(loaded.ruleset.rules)
        found.append((f"{name}: {count} rule{'s' * (count != 1)}", loaded.warnings))
    if for_envoy:
        try:
            policy = envoy.load(for_envoy, merge_domains=merge_domains)
            found.append((f"{_names(for_envoy)}: descriptors of {', '.join(policy.domains)}", policy.warnings))
        except InvalidRules as error:
            problems += error.problems
    if problems:
        raise InvalidRules(problems)
    return found


def _names(files: Iterable[str]) -> str:
    names = [*files]
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
