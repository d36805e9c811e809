"""All metrics: names, help texts, and how the values of several workers are merged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from operator import add
from types import MappingProxyType

import msgspec

from headgate.clock import BUCKETS

NANO = 1_000_000_000
OUTCOMES = ("allowed", "denied", "error", "shed", "cancelled")
"""Outcomes of an API call."""


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Metric(msgspec.Struct, frozen=True):
    """A metric and its labels.

    Counters and histograms are summed over all workers, including those that ended. Gauges are merged over live
    workers.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    scale: int = 1
    """Cells hold integers; the value of the metric is the cell divided by this."""
    merge: Callable[[int, int], int] = add
    """Merges the values of two workers."""

    @property
    def cells(self) -> int:
        """Cells of one series: a histogram has its buckets, then the sum."""
        return BUCKETS + 1 if self.kind is MetricKind.HISTOGRAM else 1

    @property
    def shown_name(self) -> str:
        """The name in the text format, where counters end with ``_total``."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name


def _counter(name: str, text: str, *labels: str, scale: int = 1) -> Metric:
    return Metric(f"headgate_{name}", MetricKind.COUNTER, text, labels, scale)


def _gauge(name: str, text: str, *labels: str, scale: int = 1, merge: Callable[[int, int], int] = add) -> Metric:
    return Metric(f"headgate_{name}", MetricKind.GAUGE, text, labels, scale, merge)


def _histogram(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"headgate_{name}_seconds", MetricKind.HISTOGRAM, text, labels, NANO)


CHECKS = _counter("checks", f"Calls of an API, by outcome: {', '.join(OUTCOMES)}.", "api", "outcome")
CHECK_DURATION = _histogram("check_duration", "Time from a request to its response, by API.", "api")
DECISION_DURATION = _histogram(
    "decision_duration",
    "Time of a decision, including the store, by the rule that decided; the first 100 rules, then other.",
    "rule",
)
RULE_DECISIONS = _counter(
    "rule_decisions",
    "Decisions by rule: allowed, denied, shadow_allowed, shadow_denied. A request counts for each matching rule.",
    "rule",
    "outcome",
    "domain",
)
RULE_NEAR_LIMIT = _counter(
    "rule_near_limit",
    "Admissions that left a rule above its warning threshold: 80 % used, by default.",
    "rule",
    "domain",
)
RULE_DEGRADED = _counter("rule_degraded", "Decisions by rule without the store.", "rule", "domain")
UNLIMITED = _counter(
    "unlimited_decisions", "Requests decided without a limit: unlimited, or allowed or denied by a list.", "verdict"
)
UNMATCHED_PRINCIPALS = _counter(
    "unmatched_principals", "Principals that no rule and no list uses: user, ip, apikey, or other names.", "principal"
)
UNKNOWN_DOMAINS = _counter(
    "unknown_domain_requests", "Requests of Envoy that passed because no descriptor file has their domain."
)
PEEKS = _counter("peeks", "Peeks, which take nothing.")
REFUNDS = _counter("refunds", "Refunds of costs.")
RESETS = _counter("resets", "Resets of limits.")
DENIALS_UNLOGGED = _counter("denials_unlogged", "Denials that were not logged, because the log is sampled.")

STORE_CALLS = _counter("store_calls", "Calls of the store, including those while its circuit is open.")
STORE_FAILURES = _counter("store_failures", "Calls that the store did not answer.", "reason")
STORE_DEGRADED = _counter("store_degraded", "Decisions that the store did not make, by mode.", "mode", "reason")
STORE_LATE = _counter(
    "store_late_answers", "Responses of the store after their deadline, which the next decision uses."
)
STORE_BATCHES = _counter("store_batches", "Round trips to Redis.")
STORE_QUESTIONS = _counter("store_questions", "Calls in these round trips; divided by their number, the batch size.")
STORE_DURATION = _histogram("store_batch_duration", "Time from sending a batch of calls to Redis to its last response.")
STORE_CACHED = _counter("store_cached", "Refusals and peeks answered by the cache.", "verb")
NODES = _gauge(
    "nodes", "Processes that share the limits, counted or set; the mode local divides limits by it.", merge=max
)
CIRCUIT_STATE = _gauge(
    "store_circuit_state",
    "State of a server's circuit: 0 closed or gone, 1 half-open, 2 open; the worst of all workers.",
    "shard",
    merge=max,
)
CIRCUIT_OPENINGS = _counter("store_circuit_openings", "Outages: how often a circuit opened.")
CIRCUIT_RECOVERIES = _counter("store_circuit_recoveries", "How often a circuit closed again.")

RULES = _gauge("rules", "Rules in force.", merge=max)
RULES_LOADS = _counter("rules_loads", "Sets of rules that came into force; every worker loads them.")
RULES_FAILURES = _counter("rules_load_failures", "Changes that were invalid or could not be read.")
RULES_BROKEN = _gauge("rules_broken", "1 while the last change is invalid.", merge=max)
RULES_LOADED_AT = _gauge(
    "rules_loaded_timestamp_seconds",
    "Time at which the rules in force were loaded; the earliest of all workers.",
    scale=NANO,
    merge=min,
)

RULES_REVISION = _gauge(
    "rules_revision", "Revision of the rules in force, from a database; the lowest of all workers.", merge=min
)
RULES_CONTACT = _gauge(
    "rules_contact_timestamp_seconds",
    "Time at which the database last confirmed the rules in force; 0 for never.",
    scale=NANO,
    merge=max,
)
RULES_STALE = _gauge(
    "rules_stale", "1 while changes cannot be read from the database, and the last valid rules are in force.", merge=max
)
RULES_FOLLOW_FAILURES = _counter("rules_follow_failures", "Failures to read changes from the database.")

CONFIG_LOADS = _counter(
    "config_loads", "Files that came into force: rules, descriptors, identity, caller_keys, certificates.", "config"
)
CONFIG_FAILURES = _counter("config_load_failures", "Changes that were invalid or could not be read.", "config")
CONFIG_BROKEN = _gauge(
    "config_broken", "1 while the last change is invalid, and the previous version is in force.", "config", merge=max
)
CONFIG_LOADED_AT = _gauge(
    "config_loaded_timestamp_seconds",
    "Time at which the configuration in force was loaded; the earliest of all workers.",
    "config",
    scale=NANO,
    merge=min,
)

CALLER_ASKED_AT = _gauge(
    "caller_last_request_timestamp_seconds",
    "Time of the last request of a caller with a key, to the second, by its name in the file or the id of its key.",
    "caller",
    scale=NANO,
    merge=max,
)
ENFORCEMENT = _gauge(
    "enforcement", "1 while limits refuse, 0 while they only count; the lowest of all workers.", merge=min
)
CONNECTIONS = _gauge("connections", "Connections open now.")
WORKERS = _gauge("workers", "Live worker processes.")
WORKER_STARTS = _counter("worker_starts", "Worker processes started, including the first ones.")
CPU = _counter("process_cpu_seconds", "Processor time used, user and system.", "worker", scale=NANO)
RESIDENT = _gauge("process_resident_memory_bytes", "Resident memory.", "worker")
OPEN_FILES = _gauge("process_open_fds", "Open file descriptors.", "worker")
STARTED_AT = _gauge("process_start_time_seconds", "Start time of the worker.", "worker", scale=NANO)
BUILD = _gauge("build_info", "Always 1; the labels are the running versions.", "version", "python", merge=max)


METRICS: Mapping[str, Metric] = MappingProxyType(
    {metric.name: metric for metric in tuple(globals().values()) if isinstance(metric, Metric)}
)
"""By name, in the order of output."""
