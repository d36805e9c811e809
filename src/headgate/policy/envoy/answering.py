"""Answers from decisions: the overall code, and the status of each descriptor.

As in envoyproxy/ratelimit: a descriptor over its limit has 0 remaining, with the code OK in shadow mode. The request is
over the limit if any descriptor outside quota mode is, or if all in quota mode are.

Differences:

- A refused request takes nothing. There, it is counted, so that a raised limit does not help before the window ends.
- A ban is over the limit even for a peek (0 hits).
- The time until the reset is that of the algorithm: for a fixed window its end; for others, when the same request would
  pass, or, after an admission, when all usage has expired. It is rounded up to whole seconds, as there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from headgate.core.algorithms import Algorithm
from headgate.core.decision import Decision
from headgate.core.errors import UsageError
from headgate.core.quota import SECOND
from headgate.policy.envoy.matching import Match, Matching, MatchOutcome
from headgate.policy.envoy.request import MAX_UINT32
from headgate.policy.envoy.tree import DescriptorRule, RateLimit


class Code(IntEnum):
    """The code of an answer, with the numbers of the protocol."""

    OK = 1
    OVER_LIMIT = 2


class Status(msgspec.Struct, frozen=True, gc=False):
    """The answer for one descriptor."""

    code: Code
    current_limit: RateLimit | None = None
    """The limit that refuses or, of several, the most restrictive one; None without limits."""
    limit_remaining: int = 0
    """At most 2^32 - 1, which also means unlimited."""
    duration_until_reset: int = 0
    """Seconds, rounded up."""
    over: bool = False
    """Whether the limit is exceeded, also in shadow mode."""


class EnvoyAnswer(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request."""

    code: Code
    statuses: tuple[Status, ...]
    """One for each descriptor, in order."""
    shadowed: bool = False
    """Whether the code is OK only because everything is in shadow mode."""
    degraded: str = ""
    """Why the store did not decide some descriptors; empty if it decided all."""


_OK = Status(Code.OK)
_UNLIMITED = Status(Code.OK, None, MAX_UINT32)
_INVALID = Status(Code.OVER_LIMIT, over=True)
_REFUSED = (MatchOutcome.BANNED, MatchOutcome.TOO_MANY)
_PASSES, _OVER_LIMIT = Code.OK, Code.OVER_LIMIT
_IS_UNLIMITED, _IS_INVALID = MatchOutcome.UNLIMITED, MatchOutcome.INVALID
"""A lookup in the class takes longer than most uses of its members."""


def envoy_answer(
    matching: Matching,
    decisions: Sequence[Decision | None],
    now: int,
    *,
    shadow_mode: bool = False,
    quota_mode: bool = False,
) -> EnvoyAnswer:
    """Return the answer to a request, from the store's decision about each descriptor (None: it has no limits).

    In `shadow_mode`, the code is OK and statuses stay as they are. In `quota_mode`, a descriptor without a match is a
    quota that is kept. `now` is in microseconds since the epoch.
    """
    statuses = []
    degraded = ""
    refused = False
    quotas = exceeded = 0
    for match, decision in zip(matching.matches, decisions, strict=True):
        if decision is not None and decision.degraded:
            degraded = degraded or decision.degraded
        status = _status(match, decision, now)
        statuses.append(status)
        is_over = status.code is _OVER_LIMIT
        if status is _UNLIMITED:
            continue
        if (quota_mode or match.quota_mode) and match.outcome is not _IS_INVALID:
            quotas += 1
            exceeded += is_over
        elif is_over:
            refused = True
    is_over = refused or 0 < quotas == exceeded
    code = _OVER_LIMIT if is_over and not shadow_mode else _PASSES
    return EnvoyAnswer(code, tuple(statuses), is_over and shadow_mode, degraded)


def passed_metadata(matching: Matching, answer: EnvoyAnswer) -> dict[str, Any]:
    """Return the merged metadata of all rules whose descriptors passed; the first of two values wins."""
    merged: dict[str, Any] = {}
    for match, status in zip(matching.matches, answer.statuses, strict=True):
        if status.code is _PASSES and match.outcome is not _IS_UNLIMITED and match.metadata:
            _merge(merged, match.metadata)
    return merged


def _status(match: Match, decision: Decision | None, now: int) -> Status:
    rule = match.rule
    if match.limits and rule is not None:
        if decision is None:
            raise UsageError(f"there is no decision for {', '.join(map(str, match.limits))}")
        return _status_of_decision(match, rule, decision, now)
    if match.outcome in _REFUSED and rule is not None:
        limit = rule.banned or next(limit for limit in rule.limits if limit.quota and limit.quota.capacity < match.hits)
        is_over = not match.refund
        code = _OVER_LIMIT if is_over and not rule.shadow_mode else _PASSES
        return Status(code, limit, 0, _seconds(limit.window_us - now % limit.window_us), is_over)
    if match.outcome is _IS_UNLIMITED:
        return _UNLIMITED
    return _INVALID if match.outcome is _IS_INVALID else _OK


def _status_of_decision(match: Match, rule: DescriptorRule, decision: Decision, now: int) -> Status:
    limit = _behind(decision, rule)
    is_over = not decision.allowed and not match.refund
    left = decision.retry_after_us if is_over else decision.reset_after_us
    if not left and limit.algorithm is Algorithm.FIXED_WINDOW:
        left = limit.window_us - now % limit.window_us  # the window ends, even if nothing is used
    code = _OVER_LIMIT if is_over and not rule.shadow_mode else _PASSES
    return Status(code, limit, 0 if is_over else min(decision.remaining, MAX_UINT32), _seconds(left), is_over)


def _behind(decision: Decision, rule: DescriptorRule) -> RateLimit:
    """Return the limit that the decision describes."""
    for limit in rule.limits:
        if limit.quota is decision.quota:
            return limit
    return next((limit for limit in rule.limits if limit.quota == decision.quota), rule.limits[0])


def _seconds(microseconds: int) -> int:
    return -(-microseconds // SECOND)


def _merge(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, Mapping):
            known = into.setdefault(key, {})
            if isinstance(known, dict):
                _merge(known, value)
        else:
            into.setdefault(key, value)
