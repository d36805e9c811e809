"""A log line for a refusal; not for every one, since those who are refused are often those who do not stop."""

from __future__ import annotations

import logging
from heapq import nlargest

from headgate.core.errors import UsageError
from headgate.core.quota import SECOND
from headgate.observe.logs import fields
from headgate.observe.principals import Principals

PER_RULE = 10
IN_ALL = 100
_NAMED = 5
_LOG = logging.getLogger("headgate.denials")


class Denials:
    """Logs refusals: so many in a second for each rule, and how many were left out.

    Args:
        principals: what is shown of those who asked.
        per_rule: the most lines in a second about one rule; 0: none at all.
        in_all: the most lines in a second.
    """

    def __init__(self, principals: Principals, *, per_rule: int = PER_RULE, in_all: int = IN_ALL) -> None:
        if per_rule < 0 or in_all < 0:
            raise UsageError(f"denials logged per second are 0 or more, not {min(per_rule, in_all)}")
        self._principals, self._per_rule, self._in_all = principals, per_rule, in_all
        self._lines = 0
        self._seen: dict[str, int] = {}
        self._left_out: dict[str, int] = {}

    @property
    def is_on(self) -> bool:
        """Whether any refusal is logged."""
        return self._per_rule > 0 and self._in_all > 0

    def wants(self, rule: str) -> bool:
        """Whether there is a line left for a refusal by this rule; if not, it is counted as left out."""
        seen = self._seen[rule] = self._seen.get(rule, 0) + 1
        if seen <= self._per_rule and self._lines < self._in_all:
            self._lines += 1
            return True
        self._left_out[rule] = self._left_out.get(rule, 0) + 1
        return False

    def log(self, rule: str, who: str, *, api: str, retry_after_us: int | None, reason: str = "") -> None:
        """Write the line for a refusal that is wanted; `reason` is why, where that is not the limit."""
        shown = self._principals.shown(who) if who else None
        retry_after = retry_after_us / SECOND if retry_after_us is not None else None
        extra = fields(
            rule=rule or None, principal=shown, retry_after=retry_after, api=api or None, reason=reason or None
        )
        _LOG.info("denied", extra=extra)

    def second(self) -> int:
        """Let a second pass: say how many were left out, and return that."""
        left_out, count = self._left_out, sum(self._left_out.values())
        if count:
            most = nlargest(_NAMED, left_out.items(), key=lambda item: item[1])
            first = ", ".join(f"{rule or 'deny list'}: {each}" for rule, each in most)
            _LOG.info("denials not logged", extra=fields(count=count, of_rules=len(left_out), first=first))
        self._lines = 0
        self._seen.clear()
        self._left_out.clear()
        return count
