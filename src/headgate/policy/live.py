"""The policy in force, renewed when its source has new rules: see `headgate.live`."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from headgate.live import EVERY, FileSource, Live, Source
from headgate.policy.compiled import Policy
from headgate.policy.loading import read_file
from headgate.policy.model import NO_RULES, Ruleset
from headgate.policy.prepared import space_name

_LOG = logging.getLogger("headgate.policy")
_SPACES = 100
"""Former spaces of a rule that are kept."""


class LivePolicy(Live[Policy]):
    """Keeps the policy of a ruleset up to date; see `Live`. Raises InvalidRule if the first rules are invalid.

    The source, such as `rules_file`, is polled every `every` seconds.
    """

    def __init__(self, source: Source[Ruleset], *, every: float = EVERY, enforcing: bool = True) -> None:
        self._enforcing = enforcing
        self._spaces: dict[str, dict[str, None]] = {}
        """The spaces of rules with `reset_on_change`, former ones first."""
        super().__init__(source, self._policy_of, every=every)

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self.value

    def enforce(self, *, enforcing: bool) -> None:
        """Make limits refuse, or every rule a shadow, from the next request on, also for later rules."""
        with self._lock:
            self._enforcing = enforcing
            self.value = self._policy_of(self.value.ruleset, self.value.version)

    def _policy_of(self, ruleset: Ruleset, version: int) -> Policy:
        last: Policy | None = getattr(self, "value", None)  # the first has none before it
        policy = Policy(ruleset, version=version, enforcing=self._enforcing, last=last)
        before = {} if last is None else last.rules
        for each in policy.rules.values():
            if not each.rule.reset_on_change or before.get(each.id) is each:
                continue
            rule = each.rule
            space, spaces = space_name(rule), self._spaces.setdefault(rule.id, {})
            if space in spaces and space != [*spaces][-1]:
                _LOG.warning(
                    "rule %s was changed back, so its earlier usage counts again until it expires: "
                    "to start without usage, change its updated_at",
                    rule.id,
                )
            spaces.pop(space, None)
            spaces[space] = None
            if len(spaces) > _SPACES:
                del spaces[next(iter(spaces))]
        return policy


def rules_file(path: str | os.PathLike[str]) -> FileSource[Ruleset]:
    """Return a file of rules as a source, whose warnings are logged."""

    def loaded(file: Path) -> Ruleset:
        read = read_file(file)
        for warning in read.warnings:
            _LOG.warning("%s", warning)
        return read.ruleset

    return FileSource(path, loaded)


class NoRules:
    """A source without rules, for a service with descriptor files only."""

    name = "no rules"

    def read(self) -> Ruleset:
        return NO_RULES

    def changed(self) -> Ruleset | None:
        return None
