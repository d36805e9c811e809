"""Count and time the decisions of a node.

It is on the path of every decision, so common cases take few steps here, for admissions and refusals alike.
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
from headgate.observe.workers import REFUSALS, USES, CounterFiles, NodeCounters, WorkerCounts
from headgate.policy.envoy.answering import Code, EnvoyAnswer, Status
from headgate.policy.envoy.matching import Match, Matching, MatchOutcome
from headgate.policy.envoy.tree import DescriptorRule
from headgate.policy.request import PRINCIPALS, Request, principal_name
from headgate.policy.selection import Selection, Verdict

MOST_SERIES = 40_000
"""Series of a table; later rules are counted together as `OTHER`."""
MOST_BY_VALUE = 1000
"""Names of rules that contain values of requests, of which clients could send any number."""
MOST_TIMED = 100
"""Rules timed separately; others are timed together as `OTHER`."""
DOMAIN_EVERY = 60
"""Seconds between log lines about domains without a descriptor file."""
OTHER = "other"
ALLOWED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED = "allowed", "denied", "shadow_allowed", "shadow_denied"
DEGRADED, NEAR_LIMIT = "degraded", "near_limit"
Refusing: TypeAlias = str | tuple[tuple[str, ...], tuple[bool, ...]]
"""The refusing rule of a single limit; or the rules of several, and whether each limit would admit."""
_LEAVE_EVERY = 30
"""Seconds between hand-overs of usage to the supervising process."""
_UNASKED = Verdict.UNLIMITED, Verdict.ALLOWED, Verdict.DENIED
_PASSING, _OVER_LIMIT = (MatchOutcome.UNLIMITED, MatchOutcome.REPLACED), Code.OVER_LIMIT
"""Looking up members in their class would take longer than all their uses here."""
_NORMAL = Pressure.NORMAL
_NEAR = 5
"""A descriptor's limit is near when less than 1/5 is left, as in envoyproxy/ratelimit."""
_is_allowed = attrgetter("allowed")
_ACCESS = logging.getLogger("headgate.access")
_RESETS = logging.getLogger("headgate.resets")
_DOMAINS = logging.getLogger("headgate.rls")


class Recorder:
    """Records every decision.

    Without `files`, the counters of the node's workers, this process is alone. `denials_per_second` bounds the log
    lines about refusals by one rule. With `principal_use` and `refusals`, the caller takes these records regularly.
    """

    def __init__(
        self,
        files: CounterFiles | None = None,
        worker: int = 0,
        *,
        principals: Principals | None = None,
        denials_per_second: int = 10,
        access_log: bool = False,
        principal_use: bool = False,
        refusals: bool = False,
    ) -> None:
        self._principals = principals = principals or Principals()
        self._node = NodeCounters(files, worker)
        table = self._table = self._node.table
        self._copies = Copies(table)
        self._copies.add(of_process(str(worker)))
        self._hot = HotKeys(principals)
        self._denials = Denials(principals, per_rule=denials_per_second)
        self._engine: AsyncEngine | None = None
        self._watched: list[Watched] = []
        self._series = RuleSeries(table)
        self._rule_names: dict[str, str] = {}
        self._names_by_value: set[str] = set()
        """Names of rules by their ids, and names with values of requests."""
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
        """Include an engine's rules and store in the metrics."""
        if engine not in self._watched:
            self._watched.append(engine)
            self._copies.add(of_engine(engine))
        if isinstance(engine, AsyncEngine):
            self._engine = engine
            if self._last_refusals is not None:
                self._last_refusals.engine = engine

    def add(self, source: Source) -> None:
        """Include the readings of another part of the process."""
        self._copies.add(source)

    def record_ruling(self, api: str, ruling: Ruling, request: Request, elapsed_ns: int) -> None:
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
            self._would_refuse(self._series.count_shadows(ruling.shadow_rules, ruling.shadow_decisions), request)
        self._until_sample -= 1
        if not self._until_sample:
            self._until_sample = stride()
            self._hot.add(rule_id, value_of(request, rule_id, self._engine))

    def record_envoy(self, matching: Matching, answer: EnvoyAnswer, elapsed_ns: int) -> None:
        """Record a decision by an Envoy descriptor tree."""
        timed = ""
        for match, status in zip(matching.matches, answer.statuses, strict=True):
            rule = match.rule
            if rule is None or match.outcome in _PASSING:
                if match.outcome is not MatchOutcome.INVALID:
                    self._unlimited(Verdict.UNLIMITED)
                continue
            if match.refund:
                self.record_refund()
                continue
            if not match.hits:
                self._cells[self._peeks] += 1
                continue
            name = self._name(rule, match)
            timed = timed or name
            self._count_status(name, match, status, answer)
            self._until_sample -= 1
            if not self._until_sample:
                self._until_sample = stride()
                self._hot.add(name, value_of(match, name, None))
        self._time(timed, elapsed_ns)

    def _name(self, rule: DescriptorRule, match: Match) -> str:
        """Return a rule's name as in envoyproxy/ratelimit: the domain and the descriptors, joined by dots.

        Rules with `detailed_metric` or `value_to_metric`, and limits that come with the request, have values of the
        request in their names. When there are too many, names omit the values.
        """
        name = self._rule_names.get(rule.id)
        if name is not None:
            return name
        if rule.stat is not None:
            name = self._rule_names[rule.id] = ".".join(rule.stat)
            return name
        name = ".".join(match.stat)
        if name not in self._names_by_value:
            if len(self._names_by_value) >= MOST_BY_VALUE:
                return ".".join([rule.domain, *([level.name for level in rule.path] or ["override"])])
            self._names_by_value.add(name)
        return name

    def _count_status(self, name: str, match: Match, status: Status, answer: EnvoyAnswer) -> None:
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
                self._refused(name, match, "rls", numbers, answer.degraded)
        if answer.degraded:
            series.count(name, DEGRADED, domain)

    def record_unknown_domain(self, domain: str) -> None:
        """Record a request of Envoy that passed since no descriptor file has its domain; logged once a minute."""
        self._cells[self._unknown_domains] += 1
        if not self._until_domain:
            self._until_domain = DOMAIN_EVERY
            _DOMAINS.warning(
                "no descriptor file has this domain: its requests pass. Check `domain` in Envoy's configuration",
                extra=fields(domain=bounded_text(domain)),
            )

    def record_call(self, api: str, outcome: str, elapsed_ns: int) -> None:
        """Record an API call, from the request to the response; `api` is one of our names, never a client's text.

        The outcome is allowed, denied, error (the caller's or ours) or cancelled (by the caller).
        """
        known = self._calls.get(api)
        took, outcomes = self._known(api) if known is None else known
        cells = self._cells
        cells[outcomes[outcome]] += 1
        cells[took + (elapsed_ns // FINEST_NS).bit_length()] += 1
        cells[took + BUCKETS] += elapsed_ns
        if self._logs_calls:
            _ACCESS.info("called", extra=fields(api=api, outcome=outcome, microseconds=elapsed_ns // 1000))

    def record_shed(self, api: str = "other") -> None:
        """Record a call that was rejected early, to protect the node."""
        known = self._calls.get(api)
        _, outcomes = self._known(api) if known is None else known
        self._cells[outcomes["shed"]] += 1

    def record_peek(self, elapsed_ns: int) -> None:
        self._time("", elapsed_ns)
        self._cells[self._peeks] += 1

    def record_refund(self) -> None:
        self._cells[self._refunds] += 1

    def record_reset(self, request: Request, reset: Reset, api: str = "") -> None:
        self._cells[self._resets] += 1
        who = ", ".join(f"{name} {self._principals.shown(value)}" for name, value in request.principal.items())
        _RESETS.info("reset", extra=fields(rules=", ".join(reset.rules), principal=who or None, api=api or None))

    def publish(self) -> None:
        """Publish what is not counted call by call. Call it every second."""
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
                self._node.hand_over(USES, self._use.take())
        self._until_taken -= 1
        if not self._until_taken:
            self._until_taken = TAKEN_EVERY
            self._leave_refusals()

    def take_use(self, *, everything: bool = False) -> list[WindowUse]:
        """Return the usage since the last call, if this process is alone; see `PrincipalUse.take`."""
        return self._use.take(everything=everything) if self._use is not None else []

    def take_refusals(self) -> list[Refusal]:
        """Return the refusals since the last call, if this process is alone."""
        return self._last_refusals.take() if self._last_refusals is not None else []

    def metrics(self, accept: bytes | None = None) -> tuple[bytes, bytes]:
        """Return the content type and the body of ``/metrics``, for all workers.

        It may run in a thread, after `refresh` in the deciding one.
        """
        return self._node.metrics(accept)

    def refresh(self) -> None:
        """Update the copied metrics now."""
        self._copies.refresh()

    def hot_keys(self) -> bytes:
        """Return the JSON of ``/hotkeys``, for all workers, as of the last second."""
        return self._node.hot_keys(self._hot.top())

    def worker_counts(self) -> list[WorkerCounts]:
        """Return the counters of each worker of the node; thread-safe."""
        return self._node.worker_counts()

    def close(self) -> None:
        """Release the shared files; the counts stay in them."""
        self._copies.refresh()
        if self._use is not None and self._node.has_siblings:
            self._node.hand_over(USES, self._use.take(everything=True))
        self._leave_refusals()
        self._node.close()

    def _leave_refusals(self) -> None:
        if self._last_refusals is not None and self._node.has_siblings:
            self._node.hand_over(REFUSALS, self._last_refusals.take())

    def _time(self, rule: str, elapsed_ns: int) -> None:
        cells, took = self._cells, self._took.get(rule) or self._timed(rule)
        cells[took + (elapsed_ns // FINEST_NS).bit_length()] += 1
        cells[took + BUCKETS] += elapsed_ns

    def _timed(self, rule: str) -> int:
        """Return the first cell of a rule's histogram, or of the shared one."""
        timed = rule if len(self._took) < MOST_TIMED else OTHER
        took = self._table.cell_of(metrics.DECISION_DURATION, timed)
        if timed == rule:
            self._took[rule] = took
        return took

    def _known(self, api: str) -> tuple[int, dict[str, int]]:
        table = self._table
        outcomes = {outcome: table.cell_of(metrics.CHECKS, api, outcome) for outcome in metrics.OUTCOMES}
        known = self._calls[api] = table.cell_of(metrics.CHECK_DURATION, api), outcomes
        return known

    def _count_unusual(self, ruling: Ruling, request: Request, api: str) -> None:
        """Count decisions without a limit or without the store."""
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
        # For one limit, its rule is the whole key, and is found faster than a tuple.
        key = (rules, tuple(map(_is_allowed, decision.parts))) if decision.parts else ruling.rule_id
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
        """Record a refusal; `numbers` are the limit, its remainder, and microseconds until it would admit."""
        if self._last_refusals is not None:
            self._last_refusals.note(rule, who, api, numbers, reason)
        self._until_denial -= 1
        is_logged = self._denials.wants(rule)
        if self._until_denial and not is_logged:
            return
        value = value_of(who, rule, self._engine)
        if not self._until_denial:
            self._hot.add_denial(rule, value, self._denial_stride)
            self._until_denial = self._denial_stride = self._hot.denial_stride()
        if is_logged:
            retry_after_us = None if numbers is None else numbers[2]
            self._denials.log(rule, value, api=api, retry_after_us=retry_after_us, reason=reason)

    def _would_refuse(self, rules: Iterable[str], who: Request | Match) -> None:
        for rule in rules:
            self._until_shadow -= 1
            if not self._until_shadow:
                self._hot.add_shadow_denial(rule, value_of(who, rule, self._engine), self._shadow_stride)
                self._until_shadow = self._shadow_stride = self._hot.denial_stride()


def _count_use(use: PrincipalUse, selection: Selection, cost: int) -> None:
    for limits in (selection.enforced, *selection.shadow):
        use.record(limits.plan, cost)


_METRIC_OF = {DEGRADED: metrics.RULE_DEGRADED, NEAR_LIMIT: metrics.RULE_NEAR_LIMIT}
"""Metrics of outcomes that have their own."""


class RuleSeries:
    __slots__ = ("_cells_of", "_most", "_table", "known")

    def __init__(self, table: CounterTable, *, most: int = MOST_SERIES) -> None:
        self._table, self._most = table, most
        outcomes = ALLOWED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED, DEGRADED, NEAR_LIMIT
        self._cells_of: dict[str, dict[str, int]] = {outcome: {} for outcome in outcomes}
        self.known: BoundedCache[tuple[str, ...] | Refusing, tuple[int, ...]] = BoundedCache(most)
        """The cells returned by `admitting` and `refusing`."""

    def admitting(self, rules: tuple[str, ...]) -> tuple[int, ...]:
        """Return the cells of an admission by the rules of some limits."""
        return self.known.keep(rules, tuple([self._found(rule, ALLOWED) for rule in dict.fromkeys(rules)]))

    def refusing(self, limits: Refusing) -> tuple[int, ...]:
        """Return the cells of a refusal."""
        rules = (
            [limits] if isinstance(limits, str) else [rule for rule, passes in zip(*limits, strict=True) if not passes]
        )
        return self.known.keep(limits, tuple([self._found(rule, DENIED) for rule in dict.fromkeys(rules)]))

    def count_shadows(self, rules: Sequence[str], decisions: Iterable[Decision]) -> list[str]:
        """Count shadow rules by their limits side by side; return those that would refuse, by any of their limits."""
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
        """Count each rule once that has a limit above its warning threshold, by limits side by side."""
        for rule in {rules[place] for place, decision in enumerate(decisions) if decision.state is not _NORMAL}:
            self.count(rule, NEAR_LIMIT)

    def count(self, rule: str, outcome: str, domain: str = "") -> None:
        """Count a decision of a rule; of a descriptor file, with its domain."""
        cell = self._cells_of[outcome].get(rule)
        self._table.cells[self._found(rule, outcome, domain) if cell is None else cell] += 1

    def _found(self, rule: str, outcome: str, domain: str = "") -> int:
        metric = _METRIC_OF.get(outcome, metrics.RULE_DECISIONS)
        labels = (*((outcome,) if metric is metrics.RULE_DECISIONS else ()), *((domain,) if domain else ()))
        if len(self._table) >= self._most and not self._table.has(metric, rule, *labels):
            return self._table.cell_of(metric, OTHER, *([outcome] if metric is metrics.RULE_DECISIONS else []))
        cell = self._cells_of[outcome][rule] = self._table.cell_of(metric, rule, *labels)
        return cell
