"""The last refusals of each caller: who, by which rule, when and how often, for operators who ask.

Refusing is the path that attackers choose. So a refusal costs a look into a table and an addition once its caller has
been refused `EACH` times by its rule: those are kept singly, the last of them with the number of all that followed. The
table is bounded, and is emptied whenever what it has is taken, every `TAKEN_EVERY` seconds: a caller who is refused all
the time has at most `EACH` places, and no place for longer than that.

Callers are kept as logs show them, by default as digests. With digests goes the pattern of the rule's endpoint in place
of the path, since paths name people, too.
"""

from __future__ import annotations

import time
from hashlib import blake2b

import msgspec

from headgate.core.errors import UsageError
from headgate.core.key import LITERAL
from headgate.core.numbers import printable
from headgate.engine import AsyncEngine, Engine
from headgate.observe.logs import Principals
from headgate.policy.addresses import counted_by
from headgate.policy.envoy.matching import Match
from headgate.policy.facts import facts_of
from headgate.policy.request import APIKEY, IP, USER, Request, principal_name

MOST_CALLERS = 500
"""Callers, each by a rule, that are kept until the next time; others are only in the metrics."""
EACH = 3
"""Refusals of a caller by a rule that are kept singly until the next time."""
TAKEN_EVERY = 5
"""Seconds."""
LONGEST, LONGEST_PRINCIPAL = 200, 512
"""Characters of a path or the name of a rule, and of a principal."""


class Refusal(msgspec.Struct, frozen=True, array_like=True):
    """A refusal, and how many like it followed it."""

    at: int
    """When it was, in microseconds since the epoch."""
    rule_id: str
    """Empty: no rule, but a deny list, or nobody who could decide."""
    principal: str
    """Whom the rule counts, as logs show it."""
    user: str
    apikey: str
    ip: str
    """The principals of the request, as logs show them; an IPv6 address is its /64 network. Empty: it has none."""
    endpoint: str
    """The path, or the pattern of the rule; see this module. Empty for limits of Envoy's files."""
    method: str
    api: str
    used: int | None
    """Of the limit; None where no limit refused."""
    limit: int | None
    retry_after_us: int | None
    reason: str
    """Empty: the limit. Else that it was the deny list, or why the store did not decide."""
    count: int = 1
    """How many it stands for: itself, and those of the caller by the rule within `TAKEN_EVERY` seconds after it."""


class Refusals:
    """Keeps the refusals of one process until they are taken.

    Args:
        principals: what is shown of callers.

    Attributes:
        engine: what has the rules, if there is one.
    """

    def __init__(self, principals: Principals) -> None:
        self.engine: AsyncEngine | None = None
        self._principals = principals
        self._kept: dict[tuple[str | tuple[str, str], ...], _Kept] = {}

    def note(
        self, rule_id: str, who: Request | Match, api: str, numbers: tuple[int, int, int] | None, reason: str
    ) -> None:
        """Note a refusal.

        Args:
            rule_id: the rule that refused, or its name if it is one of Envoy's files.
            who: the request, or what a descriptor matched.
            api: which it came by.
            numbers: the limit, what is left of it, and microseconds until it would admit; None: it was no limit.
            reason: see `Refusal.reason`.
        """
        pairs = who.principal.items() if isinstance(who, Request) else who.entries
        key = (rule_id, *pairs)
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= MOST_CALLERS:
                return
            kept = self._kept[key] = _Kept()
        elif len(kept.refusals) == EACH:
            kept.others += 1
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
        kept.refusals.append(refusal)

    def take(self) -> list[Refusal]:
        """Return what was kept since the last time."""
        kept, self._kept = self._kept, {}
        found: list[Refusal] = []
        for each in kept.values():
            *first, last = each.refusals
            found += [*first, msgspec.structs.replace(last, count=1 + each.others)]
        return found

    def _endpoint(self, request: Request, rule_id: str) -> str:
        if self._principals.plain:
            return request.endpoint.partition("?")[0]
        known = None if self.engine is None else self.engine.policy.rules.get(rule_id)
        return known.rule.endpoint if known is not None else ""

    def _shown(self, name: str, value: str) -> str:
        return _text(self._principals.shown(counted_value(name, value)), LONGEST_PRINCIPAL) if value else ""


class _Kept:
    """The refusals of one caller by one rule."""

    __slots__ = ("others", "refusals")

    def __init__(self) -> None:
        self.refusals: list[Refusal] = []
        self.others = 0


def shown_as(name: str, value: str) -> set[str]:
    """Return what a principal may be shown as: plain, as a digest, or, if it is a digest, that."""
    counted = counted_value(name, value)
    return {value, _text(counted, LONGEST_PRINCIPAL), Principals().shown(counted)}


def _text(value: str, longest: int = LONGEST) -> str:
    """Return a text as a database takes it: not every character can be stored, and clients choose them."""
    return printable(value)[:longest]


def counted_value(name: str, value: str) -> str:
    """Return the value of a principal as it is counted and kept."""
    if name == IP:
        try:
            return counted_by(value)
        except UsageError:
            pass
    return bounded_text(value)


def value_of(who: Request | Match, rule_id: str, engine: AsyncEngine | Engine | None) -> str:
    """Return what the rule counts a request by; where that is not known any more, what the request has.

    Of a descriptor, that is all its entries.
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
            except UsageError:  # it was decided all the same, by rules that have changed since
                facts = {}
            found = rule.value(facts)
            if found is not None:
                return bounded_text(found)
    return bounded_text(",".join([f"{name}={value}" for name, value in who.principal.items()]))


def bounded_text(value: str) -> str:
    """Return a text that is short enough to be kept; a long one as its beginning and its digest."""
    if len(value) <= LITERAL:
        return value
    digest = blake2b(value.encode(errors="surrogatepass"), digest_size=8).hexdigest()
    return f"{value[: LITERAL - 20]}...#{digest}"
