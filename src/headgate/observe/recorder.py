"""Counts and times what a node decides.

This is on the way of every decision, so what most decisions need is done here in few steps, by admissions and refusals
alike, and all else is left to others.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TypeAlias

from headgate.cache import BoundedCache
from headgate.clock import BUCKETS, FINEST_NS
from headgate.core.decision import Decision
from headgate.core.pressure import Pressure
from headgate.core.quota import SECOND
from headgate.engine import AsyncEngine, Reset, Ruling
from headgate.observe import metrics
from headgate.observe.hot_keys import HotKeys, stride
from headgate.observe.logs import Denials, Principals, fields
from headgate.observe.principal_use import PrincipalUse, WindowUse
from headgate.observe.readings import Copies, Source, Watched, of_engine, of_process
from headgate.observe.refusals import TAKEN_EVERY, Refusal, Refusals, bounded_text, value_of
from headgate.observe.table import CounterTable
from headgate.observe.workers import NodeCounters, Slice, Slots
from headgate.policy.envoy.answering import Code, EnvoyAnswer, Status
from headgate.policy.envoy.matching import Match, Matching, MatchOutcome
from headgate.policy.envoy.tree import DescriptorRule
from headgate.policy.request import PRINCIPALS, Request, principal_name
from headgate.policy.selection import Selection, Verdict

MOST_SERIES = 40_000
"""The most series of a table; rules that come later are counted together, as `OTHER`."""
MOST_BY_VALUE = 1000
"""The most names of rules that have values of requests in them; clients could make any number of them."""
MOST_TIMED = 100
"""The most rules whose decisions are timed each on its own; others are timed together, as `OTHER`."""
DOMAIN_EVERY = 60
"""Seconds between two log lines about domains that no descriptor file has."""
OTHER = "other"
ALLOWED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED = "allowed", "denied", "shadow_allowed", "shadow_denied"
DEGRADED, NEAR_LIMIT = "degraded", "near_limit"
Refusing: TypeAlias = str | tuple[tuple[str, ...], tuple[bool, ...]]
"""Who refuses: the rule of a single limit; or the rules of several, and whether each limit would admit."""
_LEAVE_EVERY = 30
"""Seconds after which what principals asked for is left for the process that supervises."""
_UNASKED = Verdict.UNLIMITED, Verdict.ALLOWED, Verdict.DENIED
_PASSING, _OVER_LIMIT = (MatchOutcome.UNLIMITED, MatchOutcome.REPLACED), Code.OVER_LIMIT
"""To look members up in their class takes longer than all else that is done with them here."""
_NORMAL = Pressure.NORMAL
_NEAR = 5
"""A descriptor's limit is near when less than one in so many is left, as in envoyproxy/ratelimit."""
_is_allowed = attrgetter("allowed")
_ACCESS = logging.getLogger("headgate.access")
_RESETS = logging.getLogger("headgate.resets")
_DOMAINS = logging.getLogger("headgate.rls")


class Recorder:
    """Takes note of every decision.

    Args:
        slots: where the workers of the node keep their counters; without it, this process is alone.
        slot: which of them is this process's.
        principals: what is shown of those who asked; default: digests.
        denials_per_second: the most log lines in a second about refusals by one rule; 0: none.
        access_log: whether every call is logged.
        principal_use: whether it is counted how much single principals ask for, for somebody who takes that.
        refusals: whether the last refusals are kept, for somebody who takes them.
    """

    def __init__(
        self,
        slots: Slots | None = None,
        slot: int = 0,
        *,
        principals: Principals | None = None,
        denials_per_second: int = 10,
        access_log: bool = False,
        principal_use: bool = False,
        refusals: bool = False,
    ) -> None:
        self._principals = principals = principals or Principals()
        self._node = NodeCounters(slots, slot)
        table = self._table = self._node.table
        self._copies = Copies(table)
        self._copies.add(of_process(str(slot)))
        self._hot = HotKeys(principals)
        self._denials = Denials(principals, per_rule=denials_per_second)
        self._engine: AsyncEngine | None = None
        self._watched: list[Watched] = []
        self._series, self._names = RuleSeries(table), DescriptorNames()
        self._cells, self._known_cells = table.cells, self._series.known
        self._calls: dict[str, tuple[int, dict[str, int]]] = {}
        self._took: dict[str, int] = {}
        self._until_domain = 0
        self._until_sample = stride()
        self._until_denial = self._denial_stride = 1
        self._until_shadow = self._shadow_stride = 1
        self._unlogged = table.cell_of(metrics.DENIALS_UNLOGGED)
        self._peeks, self._unknown_domains = table.cell_of(metrics.PEEKS), table.cell_of(metrics.UNKNOWN_DOMAINS)
        self._refunds, self._resets = table.cell_of(metrics.REFUNDS), table.cell_of(metrics.RESETS)
        self._verdicts = {str(verdict): table.cell_of(metrics.UNLIMITED, verdict) for verdict in _UNASKED}
        self._unmatched = {
            name: table.cell_of(metrics.UNMATCHED_PRINCIPALS, name) for name in (*sorted(PRINCIPALS), OTHER)
        }
        self._logs_calls = access_log
        self._use = PrincipalUse() if principal_use else None
        self._last_refusals = Refusals(principals) if refusals else None
        self._until_left, self._until_taken = _LEAVE_EVERY, TAKEN_EVERY

    def watch(self, engine: Watched) -> None:
        """Show also what an engine knows of its rules and its store."""
        if engine not in self._watched:
            self._watched.append(engine)
            self._copies.add(of_engine(engine))
        if isinstance(engine, AsyncEngine):
            self._engine = engine
            if self._last_refusals is not None:
                self._last_refusals.engine = engine

    def add(self, source: Source) -> None:
        """Show also what another part of the process counts."""
        self._copies.add(source)

    def ruled(self, api: str, ruling: Ruling, request: Request, elapsed_ns: int) -> None:
        """Note a decision by rules, asked for through an API."""
        cells, rule_id = self._cells, ruling.rule_id
        took = self._took.get(rule_id) or self._timed(rule_id)
        cells[took + (elapsed_ns // FINEST_NS).bit_length()] += 1
        cells[took + BUCKETS] += elapsed_ns
        if not request.cost:
            cells[self._peeks] += 1
            return
        decision = ruling.decision
        if ruling.unmatched_principals:
            self._count_unmatched(ruling.unmatched_principals)
        if self._use is not None and type(selection := ruling.selection) is Selection:
            _count_use(self._use, selection, request.cost)
        if decision is None or decision.degraded:
            self._count_unusual(ruling, request, api)
        elif decision.allowed:
            for cell in self._known_cells.get(ruling.rules) or self._series.admitting(ruling.rules):
                cells[cell] += 1
            if decision.state is not _NORMAL:
                self._series.near(ruling.rules, decision.limits)
        else:
            self._count_refusal(ruling, decision, request, api)
        if ruling.shadow_rules:
            self._would_refuse(self._series.tried(ruling.shadow_rules, ruling.shadow_decisions), request)
        self._until_sample -= 1
        if not self._until_sample:
            self._until_sample = stride()
            self._hot.asked(rule_id, value_of(request, rule_id, self._engine))

    def answered(self, matching: Matching, answer: EnvoyAnswer, elapsed_ns: int, api: str = "rls") -> None:
        """Note a decision by an Envoy descriptor tree."""
        timed = ""
        for match, status in zip(matching.matches, answer.statuses, strict=True):
            rule = match.rule
            if rule is None or match.outcome in _PASSING:
                if match.outcome is not MatchOutcome.INVALID:
                    self._unlimited(Verdict.UNLIMITED)
                continue
            if match.refund:
                self.refunded()
                continue
            if not match.hits:
                self._cells[self._peeks] += 1
                continue
            name = self._names.of(rule, match)
            timed = timed or name
            self._count_status(name, match, status, answer, api)
            if self._is_sampled():
                self._hot.asked(name, value_of(match, name, None))
        self._time(timed, elapsed_ns)

    def _count_status(self, name: str, match: Match, status: Status, answer: EnvoyAnswer, api: str) -> None:
        """Count what the limits of one descriptor say."""
        series, rule, limit = self._series, match.rule, status.current_limit
        domain, is_shadow = ("", False) if rule is None else (rule.domain, rule.shadow_mode or answer.shadowed)
        if not status.over:
            series.count(name, SHADOW_ALLOWED if is_shadow else ALLOWED, domain)
            if limit is not None and status.limit_remaining * _NEAR < limit.requests_per_unit:
                series.count(name, NEAR_LIMIT, domain)
        else:
            series.count(name, SHADOW_DENIED if is_shadow else DENIED, domain)
            if is_shadow:
                self._would_refuse((name,), match)
            elif answer.code is _OVER_LIMIT:
                size = 0 if limit is None else limit.requests_per_unit
                numbers = size, status.limit_remaining, status.duration_until_reset * SECOND
                self._refused(name, match, api, numbers, answer.degraded)
        if answer.degraded:
            series.count(name, DEGRADED, domain)

    def unknown_domain(self, domain: str) -> None:
        """Note a request of Envoy that passed because no descriptor file has its domain; once a minute in the log."""
        self._cells[self._unknown_domains] += 1
        if not self._until_domain:
            self._until_domain = DOMAIN_EVERY
            _DOMAINS.warning(
                "no descriptor file has this domain: its requests pass. Check `domain` in Envoy's configuration",
                extra=fields(domain=bounded_text(domain)),
            )

    def called(self, api: str, outcome: str, elapsed_ns: int) -> None:
        """Note a call of an API, from the request to the answer.

        Args:
            api: which: check, batch, forward_auth, json, rls, grpc_check and so on. A name of ours, never a client's.
            outcome: allowed, denied, error (the caller's or ours), cancelled (nobody waited any more); see also `shed`.
            elapsed_ns: how long it took, in nanoseconds.
        """
        known = self._calls.get(api)
        took, outcomes = self._known(api) if known is None else known
        cells = self._cells
        cells[outcomes[outcome]] += 1
        cells[took + (elapsed_ns // FINEST_NS).bit_length()] += 1
        cells[took + BUCKETS] += elapsed_ns
        if self._logs_calls:
            _ACCESS.info("called", extra=fields(api=api, outcome=outcome, microseconds=elapsed_ns // 1000))

    def shed(self, api: str = "other") -> None:
        """Note a call that was refused before anything was done about it, to protect the node."""
        known = self._calls.get(api)
        _, outcomes = self._known(api) if known is None else known
        self._cells[outcomes["shed"]] += 1

    def looked(self, elapsed_ns: int) -> None:
        """Note that somebody asked without taking anything."""
        self._time("", elapsed_ns)
        self._cells[self._peeks] += 1

    def refunded(self) -> None:
        """Note that a cost was given back."""
        self._cells[self._refunds] += 1

    def was_reset(self, request: Request, reset: Reset, api: str = "") -> None:
        """Note that limits were reset; who lifts limits leaves a trace in the log."""
        self._cells[self._resets] += 1
        who = ", ".join(f"{name} {self._principals.shown(value)}" for name, value in request.principal.items())
        _RESETS.info("reset", extra=fields(rules=", ".join(reset.rules), principal=who or None, api=api or None))

    def publish(self) -> None:
        """Let a second pass: show the others what is not counted call by call. To be called every second."""
        self._copies.refresh()
        self._cells[self._unlogged] += self._denials.second()
        self._hot.second()
        self._until_domain -= self._until_domain > 0
        self._node.show(self._hot.top())
        if self._use is not None:
            self._use.second()
            self._until_left -= 1
            if not self._until_left and self._node.has_siblings:
                self._until_left = _LEAVE_EVERY
                self._node.leave(self._use.take())
        self._until_taken -= 1
        if not self._until_taken:
            self._until_taken = TAKEN_EVERY
            self._leave_refusals()

    def taken_use(self, *, everything: bool = False) -> list[WindowUse]:
        """Return what principals asked for since the last time, if this process is alone; see `PrincipalUse.take`."""
        return self._use.take(everything=everything) if self._use is not None else []

    def taken_refusals(self) -> list[Refusal]:
        """Return the last refusals since the last time, if this process is alone."""
        return self._last_refusals.take() if self._last_refusals is not None else []

    def metrics(self, accept: bytes | None = None) -> tuple[bytes, bytes]:
        """Return the content type and the body of ``/metrics``, for all workers together.

        It may run in a thread, after `refresh` in the one that decides.
        """
        return self._node.metrics(accept)

    def refresh(self) -> None:
        """Show now what is shown every second."""
        self._copies.refresh()

    def hot_keys(self) -> bytes:
        """Return the JSON of ``/hotkeys``, for all workers together: as of the last second."""
        return self._node.hot_keys(self._hot.top())

    def slices(self) -> list[Slice]:
        """Return what each worker of the node has counted; a thread may ask."""
        return self._node.slices()

    def close(self) -> None:
        """Let go of the shared files; what was counted stays in them."""
        self._copies.refresh()
        if self._use is not None and self._node.has_siblings:
            self._node.leave(self._use.take(everything=True))
        self._leave_refusals()
        self._node.close()

    def _leave_refusals(self) -> None:
        if self._last_refusals is not None and self._node.has_siblings:
            self._node.leave_refusals(self._last_refusals.take())

    def _time(self, rule: str, elapsed_ns: int) -> None:
        cells, took = self._cells, self._took.get(rule) or self._timed(rule)
        cells[took + (elapsed_ns // FINEST_NS).bit_length()] += 1
        cells[took + BUCKETS] += elapsed_ns

    def _timed(self, rule: str) -> int:
        """Return the first cell of the histogram of a rule that was not timed yet; of too many, that of all others."""
        timed = rule if len(self._took) < MOST_TIMED else OTHER
        took = self._table.cell_of(metrics.DECISION_DURATION, timed)
        if timed == rule:
            self._took[rule] = took
        return took

    def _is_sampled(self) -> bool:
        self._until_sample -= 1
        if self._until_sample:
            return False
        self._until_sample = stride()
        return True

    def _known(self, api: str) -> tuple[int, dict[str, int]]:
        table = self._table
        outcomes = {outcome: table.cell_of(metrics.CHECKS, api, outcome) for outcome in metrics.OUTCOMES}
        known = self._calls[api] = table.cell_of(metrics.CHECK_DURATION, api), outcomes
        return known

    def _count_unusual(self, ruling: Ruling, request: Request, api: str) -> None:
        """Count what no limit decided, or what was decided without the store."""
        decision, series = ruling.decision, self._series
        if decision is None:
            self._unlimited(ruling.verdict)
            if not ruling.allowed:
                reason = "deny list" if ruling.verdict is Verdict.DENIED else ruling.degraded
                self._refused("", request, api, None, reason)
            return
        for rule in dict.fromkeys(ruling.rules):
            series.count(rule, DEGRADED)
            if decision.allowed:
                series.count(rule, ALLOWED)
        if not decision.allowed:
            self._count_refusal(ruling, decision, request, api)

    def _count_refusal(self, ruling: Ruling, decision: Decision, request: Request, api: str) -> None:
        cells, rules = self._cells, ruling.rules
        # Of one limit, a text says it all, and it is found faster than a tuple.
        key = (rules, tuple(map(_is_allowed, decision.parts))) if decision.made_of else ruling.rule_id
        for cell in self._known_cells.get(key) or self._series.refusing(key):
            cells[cell] += 1
        numbers = decision.limit, decision.remaining, decision.retry_after_us
        self._refused(ruling.rule_id, request, api, numbers, decision.degraded)

    def _count_unmatched(self, names: Iterable[str]) -> None:
        for name in names:
            known = principal_name(name)
            self._cells[self._unmatched[known if known in PRINCIPALS else OTHER]] += 1

    def _unlimited(self, verdict: str) -> None:
        self._cells[self._verdicts[verdict]] += 1

    def _refused(
        self, rule: str, who: Request | Match, api: str, numbers: tuple[int, int, int] | None, reason: str
    ) -> None:
        """Note a refusal; `numbers` are the limit, what is left of it, and microseconds until it would admit."""
        if self._last_refusals is not None:
            self._last_refusals.note(rule, who, api, numbers, reason)
        self._until_denial -= 1
        is_logged = self._denials.wants(rule)
        if self._until_denial and not is_logged:
            return
        value = value_of(who, rule, self._engine)
        if not self._until_denial:
            self._hot.denied(rule, value, self._denial_stride)
            self._until_denial = self._denial_stride = self._hot.denial_stride()
        if is_logged:
            retry_after_us = None if numbers is None else numbers[2]
            self._denials.log(rule, value, api=api, retry_after_us=retry_after_us, reason=reason)

    def _would_refuse(self, rules: Iterable[str], who: Request | Match) -> None:
        """Note what shadow rules would have refused."""
        for rule in rules:
            self._until_shadow -= 1
            if not self._until_shadow:
                self._hot.would_refuse(rule, value_of(who, rule, self._engine), self._shadow_stride)
                self._until_shadow = self._shadow_stride = self._hot.denial_stride()


def _count_use(use: PrincipalUse, selection: Selection, cost: int) -> None:
    """Count what principals ask of the limits of a selection, of shadows as well."""
    use.asked(selection.enforced.plan, cost)
    for limits in selection.shadow:
        use.asked(limits.plan, cost)


_METRIC_OF = {DEGRADED: metrics.RULE_DEGRADED, NEAR_LIMIT: metrics.RULE_NEAR_LIMIT}
"""Of outcomes that have a metric of their own."""


class RuleSeries:
    """Counts what rules say.

    Args:
        table: where.
        most: see `MOST_SERIES`.
    """

    __slots__ = ("_cells_of", "_most", "_table", "known")

    def __init__(self, table: CounterTable, *, most: int = MOST_SERIES) -> None:
        self._table, self._most = table, most
        outcomes = ALLOWED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED, DEGRADED, NEAR_LIMIT
        self._cells_of: dict[str, dict[str, int]] = {outcome: {} for outcome in outcomes}
        self.known: BoundedCache[tuple[str, ...] | Refusing, tuple[int, ...]] = BoundedCache(most)
        """What `admitting` and `refusing` have returned."""

    def admitting(self, rules: tuple[str, ...]) -> tuple[int, ...]:
        """Return the cells that count an admission by the rules of some limits; they are remembered."""
        return self.known.keep(rules, tuple([self._found(rule, ALLOWED) for rule in dict.fromkeys(rules)]))

    def refusing(self, limits: Refusing) -> tuple[int, ...]:
        """Return the cells that count a refusal; they are remembered."""
        rules = (
            [limits] if isinstance(limits, str) else [rule for rule, passes in zip(*limits, strict=True) if not passes]
        )
        return self.known.keep(limits, tuple([self._found(rule, DENIED) for rule in dict.fromkeys(rules)]))

    def tried(self, rules: Sequence[str], decisions: Iterable[Decision]) -> list[str]:
        """Count what shadow rules say, by their limits side by side, and return those that would refuse.

        A rule would refuse if one of its limits does.
        """
        refusing: list[str] = []
        rule, is_allowed = rules[0], True
        for place, decision in enumerate(decisions):
            if rules[place] != rule:
                self._try(rule, refusing, is_allowed=is_allowed)
                rule, is_allowed = rules[place], True
            is_allowed = is_allowed and decision.allowed
        self._try(rule, refusing, is_allowed=is_allowed)
        return refusing

    def _try(self, rule: str, refusing: list[str], *, is_allowed: bool) -> None:
        self.count(rule, SHADOW_ALLOWED if is_allowed else SHADOW_DENIED)
        if not is_allowed:
            refusing.append(rule)

    def near(self, rules: Sequence[str], decisions: Sequence[Decision]) -> None:
        """Count each rule once of whose limits one is above its warning threshold, by limits side by side."""
        for rule in {rules[place] for place, decision in enumerate(decisions) if decision.state is not _NORMAL}:
            self.count(rule, NEAR_LIMIT)

    def count(self, rule: str, outcome: str, domain: str = "") -> None:
        """Count one more decision of a rule; of a descriptor file, with its domain."""
        cell = self._cells_of[outcome].get(rule)
        self._table.cells[self._found(rule, outcome, domain) if cell is None else cell] += 1

    def _found(self, rule: str, outcome: str, domain: str = "") -> int:
        metric = _METRIC_OF.get(outcome, metrics.RULE_DECISIONS)
        labels = (*((outcome,) if metric is metrics.RULE_DECISIONS else ()), *((domain,) if domain else ()))
        if len(self._table) >= self._most and not self._table.has(metric, rule, *labels):
            return self._table.cell_of(metric, OTHER, *([outcome] if metric is metrics.RULE_DECISIONS else []))
        cell = self._cells_of[outcome][rule] = self._table.cell_of(metric, rule, *labels)
        return cell


class DescriptorNames:
    """Names rules as envoyproxy/ratelimit does: the domain and the descriptors, with dots between them.

    Rules that ask for it (`detailed_metric`, `value_to_metric`) have values of the request in their names, and so have
    limits that come with the request. When there are too many of those, the names go without the values.
    """

    __slots__ = ("_by_rule", "_by_value")

    def __init__(self) -> None:
        self._by_rule: dict[str, str] = {}
        self._by_value: set[str] = set()

    def of(self, rule: DescriptorRule, match: Match) -> str:
        """Return the name."""
        name = self._by_rule.get(rule.id)
        if name is not None:
            return name
        if rule.stat is not None:
            name = self._by_rule[rule.id] = ".".join(rule.stat)
            return name
        name = ".".join(match.stat)
        if name in self._by_value:
            return name
        if len(self._by_value) < MOST_BY_VALUE:
            self._by_value.add(name)
            return name
        return ".".join([rule.domain, *(level.name for level in rule.path)]) if rule.path else f"{rule.domain}.override"
