"""All metrics there are: their names, what they mean, and how the workers' numbers become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType

import msgspec

from headgate.clock import BUCKETS

NANO = 1_000_000_000
OUTCOMES = ("allowed", "denied", "error", "shed", "cancelled")
"""How a call of an API may end."""


class MetricKind(StrEnum):
    """What a metric is, in the words of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Merge(StrEnum):
    """How the numbers of several workers become one."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


class Metric(msgspec.Struct, frozen=True):
    """A metric with all its labels.

    Counters and histograms are summed over all workers, those that ended included. Gauges are merged as told, over the
    workers that live.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    scale: int = 1
    """Cells hold whole numbers; the metric is in units of so many."""
    merge: Merge = Merge.SUM

    @property
    def cells(self) -> int:
        """How many cells one series has: a histogram has its buckets, then the sum."""
        return BUCKETS + 1 if self.kind is MetricKind.HISTOGRAM else 1

    def merged(self, one: int, other: int) -> int:
        """Return what two numbers are together."""
        if self.merge is Merge.SUM:
            return one + other
        return max(one, other) if self.merge is Merge.MAX else min(one, other)

    @property
    def shown_name(self) -> str:
        """The name in the text format, where counters end with ``_total``."""
        return f"{self.name}_total" if self.kind is MetricKind.COUNTER else self.name


def _counter(name: str, text: str, *labels: str, scale: int = 1) -> Metric:
    return Metric(f"headgate_{name}", MetricKind.COUNTER, text, labels, scale)


def _gauge(name: str, text: str, *labels: str, scale: int = 1, merge: Merge = Merge.SUM) -> Metric:
    return Metric(f"headgate_{name}", MetricKind.GAUGE, text, labels, scale, merge)


def _histogram(name: str, text: str, *labels: str) -> Metric:
    return Metric(f"headgate_{name}_seconds", MetricKind.HISTOGRAM, text, labels, NANO)


CHECKS = _counter("checks", f"Calls of an API, by how they ended: {', '.join(OUTCOMES)}.", "api", "outcome")
CHECK_DURATION = _histogram("check_duration", "From a request to its answer, by API.", "api")
DECISION_DURATION = _histogram(
    "decision_duration",
    "A decision, store included, by the rule that decided it; the first 100 rules, then other.",
    "rule",
)
RULE_DECISIONS = _counter(
    "rule_decisions",
    "What each rule said: allowed, denied, shadow_allowed, shadow_denied. A request counts for every rule it met.",
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
RULE_DEGRADED = _counter("rule_degraded", "What each rule said without the store.", "rule", "domain")
UNLIMITED = _counter(
    "unlimited_decisions", "Requests no limit was asked about: unlimited, or on the list allowed or denied.", "verdict"
)
UNMATCHED_PRINCIPALS = _counter(
    "unmatched_principals", "Principals that no rule and no list knows: user, ip, apikey, or other names.", "principal"
)
UNKNOWN_DOMAINS = _counter(
    "unknown_domain_requests", "Requests of Envoy that passed because no descriptor file has their domain."
)
PEEKS = _counter("peeks", "Questions that took nothing.")
REFUNDS = _counter("refunds", "Costs given back.")
RESETS = _counter("resets", "Limits reset.")
DENIALS_UNLOGGED = _counter("denials_unlogged", "Denials left out of the log, which is sampled.")

STORE_CALLS = _counter("store_calls", "Questions to the store, also while its circuit is open.")
STORE_FAILURES = _counter("store_failures", "Questions that the store did not answer.", "reason")
STORE_DEGRADED = _counter("store_degraded", "Decisions that the store did not make, by mode.", "mode", "reason")
STORE_LATE = _counter("store_late_answers", "Answers after their deadline: too late for a decision, known to the next.")
STORE_BATCHES = _counter("store_batches", "Round trips to Redis.")
STORE_QUESTIONS = _counter("store_questions", "Questions on those round trips: divided, how many travel together.")
STORE_DURATION = _histogram("store_batch_duration", "From sending a batch of questions to Redis to its last answer.")
STORE_CACHED = _counter("store_cached", "Refusals and peeks that were repeated without asking the store.", "verb")
NODES = _gauge(
    "nodes", "Processes that share the limits, as counted or set: the share in the mode local.", merge=Merge.MAX
)
CIRCUIT_STATE = _gauge(
    "store_circuit_state",
    "The circuit of a server: 0 closed or gone, 1 half-open, 2 open; the worst.",
    "shard",
    merge=Merge.MAX,
)
CIRCUIT_OPENINGS = _counter("store_circuit_openings", "Outages: how often a circuit opened.")
CIRCUIT_RECOVERIES = _counter("store_circuit_recoveries", "How often a circuit closed again.")

RULES = _gauge("rules", "Rules in force.", merge=Merge.MAX)
RULES_LOADS = _counter("rules_loads", "Sets of rules that came into force; every worker loads them.")
RULES_FAILURES = _counter("rules_load_failures", "Changes that were not acceptable, or could not be read.")
RULES_BROKEN = _gauge("rules_broken", "1 while the last change was not acceptable.", merge=Merge.MAX)
RULES_LOADED_AT = _gauge(
    "rules_loaded_timestamp_seconds", "When the rules in force were loaded; the earliest.", scale=NANO, merge=Merge.MIN
)

RULES_REVISION = _gauge("rules_revision", "The revision of the database's rules in force; the least.", merge=Merge.MIN)
RULES_CONTACT = _gauge(
    "rules_contact_timestamp_seconds",
    "When the database last said which rules are in force; 0: never yet.",
    scale=NANO,
    merge=Merge.MAX,
)
RULES_STALE = _gauge(
    "rules_stale", "1 while the database cannot be followed, and the last good rules are in force.", merge=Merge.MAX
)
RULES_FOLLOW_FAILURES = _counter("rules_follow_failures", "How often following the database failed.")

CONFIG_LOADS = _counter(
    "config_loads", "Files that came into force: rules, descriptors, identity, caller_keys, certificates.", "config"
)
CONFIG_FAILURES = _counter("config_load_failures", "Changes that were not acceptable, or could not be read.", "config")
CONFIG_BROKEN = _gauge(
    "config_broken",
    "1 while the last change was not acceptable, and the one before is in force.",
    "config",
    merge=Merge.MAX,
)
CONFIG_LOADED_AT = _gauge(
    "config_loaded_timestamp_seconds",
    "When what is in force was loaded; the earliest.",
    "config",
    scale=NANO,
    merge=Merge.MIN,
)

CALLER_ASKED_AT = _gauge(
    "caller_last_request_timestamp_seconds",
    "When a caller with a key last asked, to the second; by its name in the file, or the id of its key.",
    "caller",
    scale=NANO,
    merge=Merge.MAX,
)
ENFORCEMENT = _gauge("enforcement", "1 while limits refuse, 0 while they are only counted; the least.", merge=Merge.MIN)
CONNECTIONS = _gauge("connections", "Connections open now.")
WORKERS = _gauge("workers", "Worker processes that live.")
WORKER_STARTS = _counter("worker_starts", "Worker processes started, the first ones included.")
CPU = _counter("process_cpu_seconds", "Processor time used, user and system.", "worker", scale=NANO)
RESIDENT = _gauge("process_resident_memory_bytes", "Resident memory.", "worker")
OPEN_FILES = _gauge("process_open_fds", "Open file descriptors.", "worker")
STARTED_AT = _gauge("process_start_time_seconds", "When the worker started.", "worker", scale=NANO)
BUILD = _gauge("build_info", "Always 1; the labels say what runs.", "version", "python", merge=Merge.MAX)


def observations(cells: Sequence[int]) -> int:
    """Return how many observations the cells of a histogram have counted."""
    return sum(cells[:BUCKETS])


METRICS: Mapping[str, Metric] = MappingProxyType(
    {metric.name: metric for metric in tuple(globals().values()) if isinstance(metric, Metric)}
)
"""All of them by name, in the order they are shown."""
