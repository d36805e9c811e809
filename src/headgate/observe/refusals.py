"""The last refusals of each caller: principal, rule, time and count, for operators.

Attackers choose refusals. So once a rule has refused a caller `EACH` times, another refusal costs a lookup and an
addition: the last of those kept has the count of the following ones. The table is bounded and emptied every
`TAKEN_EVERY` seconds.

Callers are kept as logs show them, by default as digests. With digests, the endpoint is the rule's pattern instead of
the path, since paths identify people too.
"""

from __future__ import annotations

import time
from collections import Counter
from hashlib import blake2b
from itertools import chain
from typing import TypeAlias

import msgspec

from headgate.core.errors import UsageError
from headgate.core.key import LITERAL
from headgate.engine import AsyncEngine, Engine
from headgate.messages import printable
from headgate.observe.logs import Principals
from headgate.policy.addresses import counted_by
from headgate.policy.envoy.matching import Match
from headgate.policy.request import APIKEY, IP, USER, Request, principal_name
from headgate.policy.request_facts import facts_of

MOST_CALLERS = 500
"""Callers, by rule, kept until the next hand-over; others are only in the metrics."""
EACH = 3
"""Refusals of a caller by a rule kept individually until the next hand-over."""
TAKEN_EVERY = 5
"""Seconds."""
LONGEST, LONGEST_PRINCIPAL = 200, 512
"""Longest path or name of a rule, and longest principal, in characters."""
_Caller: TypeAlias = tuple[str | tuple[str, str], ...]
"""A rule, and the principals or entries of a request."""


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """A refusal, and the number of similar ones that followed."""

    at: int
    """Microseconds since the epoch."""
    rule_id: str
    """Empty: a deny list refused, or nothing could decide."""
    principal: str
    """The principal that the rule counts, as logs show it."""
    user: str
    apikey: str
    ip: str
    """The request's principals as logs show them; an IPv6 address is its /64 network. Empty: it has none."""
    endpoint: str
    """The path, or the pattern of the rule. Empty for limits of Envoy's files."""
    method: str
    api: str
    used: int | None
    """Usage of the limit; None if no limit refused."""
    limit: int | None
    retry_after_us: int | None
    reason: str
    """Empty: the limit. Else the deny list, or why the store did not decide."""
    count: int = 1
    """The number of refusals of the caller by the rule that it represents, within `TAKEN_EVERY` seconds."""


class Refusals:
    """Keeps the refusals of a process until they are taken; `engine` provides the rules, if there is one."""

    def __init__(self, principals: Principals) -> None:
        self.engine: AsyncEngine | None = None
        self._principals = principals
        self._kept: dict[_Caller, list[Refusal]] = {}
        self._others: Counter[_Caller] = Counter()
        """Refusals that followed the kept ones."""

    def note(
        self, rule_id: str, who: Request | Match, api: str, numbers: tuple[int, int, int] | None, reason: str
    ) -> None:
        """Record a refusal.

        `numbers` are the limit, its remainder, and microseconds until it would admit; None: it was no limit. `reason`
        is described in `Refusal`.
        """
        pairs = who.principal.items() if isinstance(who, Request) else who.entries
        key = (rule_id, *pairs)
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= MOST_CALLERS:
                return
            kept = self._kept[key] = []
        elif len(kept) == EACH:
            self._others[key] += 1
            return
        request = who if isinstance(who, Request) else None
        limit, left, retry_after_us = numbers or (None, 0, None)
        named = {principal_name(name): value for name, value in pairs}
        refusal = Refusal(
            at=time.time_ns() // 1000,
            rule_id=_text(rule_id),
            principal=self._shown("", value_of(who, rule_id, self.engine)),
            user=self._shown(USER, named.get(USER, "")),
            apikey=self._shown(APIKEY, named.get(APIKEY, "")),
            ip=self._shown(IP, named.get(IP, "")),
            endpoint="" if request is None else _text(self._endpoint(request, rule_id)),
            method="" if request is None else _text(request.method, 32),
            api=api,
            used=None if limit is None else limit - left,
            limit=limit,
            retry_after_us=retry_after_us,
            reason=_text(reason, 64),
        )
        kept.append(refusal)

    def take(self) -> list[Refusal]:
        """Return the refusals since the last call."""
        for key, others in self._others.items():
            kept = self._kept[key]
            kept[-1] = msgspec.structs.replace(kept[-1], count=1 + others)
        found = [*chain.from_iterable(self._kept.values())]
        self._kept.clear()
        self._others.clear()
        return found

    def _endpoint(self, request: Request, rule_id: str) -> str:
        if self._principals.plain:
            return request.endpoint.partition("?")[0]
        known = None if self.engine is None else self.engine.policy.rules.get(rule_id)
        return known.rule.endpoint if known is not None else ""

    def _shown(self, name: str, value: str) -> str:
        return _text(self._principals.shown(counted_value(name, value)), LONGEST_PRINCIPAL) if value else ""


def shown_as(name: str, value: str) -> set[str]:
    """Return the texts that a principal may be shown as: plain, or as a digest."""
    counted = counted_value(name, value)
    return {value, _text(counted, LONGEST_PRINCIPAL), Principals().shown(counted)}


def _text(value: str, longest: int = LONGEST) -> str:
    """Return text that a database can store, since clients choose it."""
    return printable(value)[:longest]


def counted_value(name: str, value: str) -> str:
    if name == IP:
        try:
            return counted_by(value)
        except UsageError:
            pass
    return bounded_text(value)


def value_of(who: Request | Match, rule_id: str, engine: AsyncEngine | Engine | None) -> str:
    """Return the value that the rule counts a request by, or all principals if the rule is gone.

    For a descriptor, that is all its entries.
    """
    if not isinstance(who, Request):
        return bounded_text(",".join([f"{key}={value}" if value else key for key, value in who.entries]))
    if engine is not None and rule_id:
        policy = engine.policy
        rule = policy.rules.get(rule_id)
        if rule is not None:
            value = who.principal.get(rule.dimension)
            if value is not None and rule.dimension != IP:
                return bounded_text(value)
            try:
                facts = facts_of(who, ignore_case=policy.ruleset.ignore_case)
            except UsageError:  # the rules have changed since the decision
                facts = {}
            found = rule.value(facts)
            if found is not None:
                return bounded_text(found)
    return bounded_text(",".join([f"{name}={value}" for name, value in who.principal.items()]))


def bounded_text(value: str) -> str:
    """Return a short text; a long one as its beginning and its digest."""
    if len(value) <= LITERAL:
        return value
    digest = blake2b(value.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{value[: LITERAL - 20]}...#{digest}"
