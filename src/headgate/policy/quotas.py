"""The ways to write a quota.

===========================  =====================================================================================
``limit`` and ``window``     perhaps with `burst` or `capacity`, `algorithm`, `calendar`, `queue`, `refill_every`
``capacity, refill_rate``    a bucket by its size and units per second; perhaps with `algorithm`, `queue`
``quota``                    all of it as text: ``10/s burst 20``, or several: ``10/s; 5000/day``
``limits``                   a list of any of these, which apply together
===========================  =====================================================================================

A tier or an override may also name only the fields that it changes: limit, burst, capacity, window, algorithm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from headgate.config.problems import Findings, Path
from headgate.config.schema import Field, ListOf, Record, Scalar, Schema, Values
from headgate.config.times import CALENDAR_UNITS, length, length_of, length_text
from headgate.core.algorithms import Algorithm
from headgate.core.calendar import Calendar
from headgate.core.errors import InvalidQuota, UsageError
from headgate.core.grammar import MAX_TEXT
from headgate.core.numbers import EXACT
from headgate.core.plan import Family
from headgate.core.quota import Quota

BURST_OR_CAPACITY = "burst and capacity are alternatives: set one of them"
_PERCENT = Scalar.whole(1, 100)
_TEXT = Scalar.text(
    'a quota such as "100/minute", "10/s burst 20", "10/s; 5000/day gcra"', most=MAX_TEXT, numbers=False
)
_RATE = Scalar(
    {"type": ["number", "string"], "minimum": 0, "pattern": "^[0-9.]{1,40}(/[0-9]{1,40})?$"},
    "is not a rate",
    "a number of tokens per second, such as 10, 0.5 or '1/3'",
)
_ZONE = Scalar(
    {"type": ["boolean", "string"], "pattern": "^[A-Za-z0-9_+/-]{1,64}$"},
    "is not a time zone",
    "a name such as Europe/Berlin, or true for UTC",
)


def _limit_hint(value: object, findings: Findings) -> str:
    """Return a suggestion: the text of a whole quota is often given as the limit."""
    try:
        quotas = Quota.parse(value) if isinstance(value, str) else ()
    except UsageError:
        quotas = ()
    if not quotas:
        hint = Scalar.whole(0).hint
        return hint(value, findings) if hint is not None else ""
    apart = f"limit: {quotas[0].limit}, window: {length_text(quotas[0].window_us)}, or " if len(quotas) == 1 else ""
    return f"Write {apart}quota: {value}."


ALGORITHMS = {**{str(each): each for each in Algorithm}, "sliding_window": Algorithm.SLIDING_WINDOW_COUNTER}
AS_TEXT = ""
"""Marks fields that are text in the file, so that their problems are those of the whole value."""


QUOTA_FIELDS = {
    "limit": Field(
        replace(Scalar.whole(0), hint=_limit_hint), "The number of units that may pass, or come back, in each window."
    ),
    "window": Field(
        length(calendar=True),
        "The window: a duration such as 30s, 1m, 1 hour, 1d, or seconds; with `calendar`: day, week, month or year.",
    ),
    "burst": Field(
        Scalar.whole(-EXACT), "How many units beyond the limit may pass at once. Not for window algorithms."
    ),
    "algorithm": Field(Scalar.choice(ALGORITHMS), "How it counts; default: token_bucket."),
    "calendar": Field(
        _ZONE, "The windows are those of the calendar in this time zone, such as Europe/Berlin; true means UTC."
    ),
    "queue": Field(Scalar.flag(), "Leaky bucket only: admitted requests get a time to wait, for an even flow."),
    "capacity": Field(
        Scalar.whole(1),
        "How many units may pass at once, instead of `burst`: it stays when a tier or an override changes the limit. "
        "With `refill_rate`, the bucket.",
    ),
    "refill_rate": Field(_RATE, "The units that come back per second, such as 10, 0.5 or '1/3'; with `capacity`."),
    "min_refill_interval_ms": Field(
        Scalar.whole(0, EXACT // 1000), "The bucket is refilled in steps this many milliseconds apart."
    ),
    "refill_every": Field(length(), "Token bucket only: the interval between refills, such as 10ms."),
    "warn_percent": Field(_PERCENT, "Usage, in percent, above which a key is in the warning state; default: 80."),
    "calm_percent": Field(_PERCENT, "Usage, in percent, below which it leaves the warning state; default: 70."),
    "quota": Field(_TEXT, 'The whole quota as text, such as "10/s burst 20; 5000/day".'),
}


@dataclass(frozen=True, slots=True, eq=False)
class Way:
    """One of the ways to write a quota: its required fields, and its optional ones."""

    needs: tuple[str, ...]
    may: tuple[str, ...]

    @property
    def sign(self) -> str:
        """The field that identifies it."""
        return self.needs[-1]

    @property
    def fields(self) -> tuple[str, ...]:
        return (*self.needs, *self.may)


_THRESHOLDS = ("warn_percent", "calm_percent")
BY_WINDOW = Way(
    ("limit", "window"), ("burst", "capacity", "algorithm", "calendar", "queue", "refill_every", *_THRESHOLDS)
)
BY_BUCKET = Way(("capacity", "refill_rate"), ("min_refill_interval_ms", "algorithm", "queue", *_THRESHOLDS))
BY_TEXT = Way(("quota",), _THRESHOLDS)
SEVERAL = Way(("limits",), ())
IN_PART = Way((), ("limit", "burst", "capacity", "window", "algorithm"))
"""What a tier or an override may change of a rule's only limit."""


@dataclass(frozen=True, slots=True, eq=False)
class QuotaForm:
    """A record with the fields of a quota, in one of several ways."""

    record: Record
    """Its `make` is called when the fields of the quota are valid, even if others are not."""
    ways: tuple[Way, ...]
    as_text: bool = False
    """Whether the value may be the text of a quota."""
    name: str = ""
    """The name of its definition in the JSON Schema."""

    def read(self, value: object, path: Path, findings: Findings) -> Any:
        make: Callable[..., Any] = self.record.make or quotas_of
        if self.as_text and isinstance(value, str):
            text = _TEXT.read(value, path, findings)
            return None if text is None else make({"quota": text, AS_TEXT: True}, path, findings)
        read = self.record.read_fields(value, path, findings)
        if type(value) is not dict or read is None:
            return None
        value = self.record.named(value)
        if not self._is_one_way(value, path, findings):
            return None
        is_right = len(value) == len(read) or all(key in read for key in value if key in ALL_OF_QUOTA)
        return make(read, path, findings) if is_right else None

    def _is_one_way(self, value: Values, path: Path, findings: Findings) -> bool:
        before = findings.count
        way = way_of(value, self.ways)
        given = [key for key in value if key in ALL_OF_QUOTA and key in self.record.fields]
        for key in given:
            if key not in way.fields:
                others = ", ".join(name for name in way.fields if name != way.sign)
                accepted = f"besides {way.sign!r}: {others or 'no other field of a quota'}"
                findings.add((*path, key), f"{key!r} cannot be combined with {way.sign!r}", accepted, at_key=True)
        misspelt = self.record.misspelt(value, findings) & ALL_OF_QUOTA
        missing = [name for name in way.needs if name not in value and name not in misspelt]
        if not given:
            if way.needs and not misspelt:
                ways = "limit and window, capacity and refill_rate, or quota" + ", or limits" * (SEVERAL in self.ways)
                findings.add(path, f"{self.record.what} needs a quota", ways)
        elif missing:
            missed = " and ".join(repr(name) for name in missing)
            findings.add(path, f"{missed} missing", f"{' and '.join(way.needs)} together")
        return findings.count == before and not misspelt

    def schema(self) -> Schema:
        return {"$ref": f"#/$defs/{self.name}"} if self.name else self.definition()

    def definition(self) -> Schema:
        """Return the schema itself, not a reference."""
        quota_fields = [name for name in self.record.fields if name in ALL_OF_QUOTA]
        ways = []
        for way in self.ways:
            others = {name: False for name in quota_fields if name not in way.fields}
            others |= {other: False for other, name in self.record.spellings.items() if name in others}
            ways.append({"properties": others} | self.record.needing(way.needs))
        schema = self.record.schema() | {"anyOf": ways}
        return {"anyOf": [_TEXT.schema() | {"type": "string"}, schema]} if self.as_text else schema


SECONDS = {"window_seconds": "window"}
ONE_LIMIT = (BY_WINDOW, BY_BUCKET, BY_TEXT)
ALL_WAYS = (*ONE_LIMIT, SEVERAL)
LIMIT = QuotaForm(Record("a limit", QUOTA_FIELDS, spellings=SECONDS), ONE_LIMIT, as_text=True, name="limit")
LIMITS_FIELD = {
    "limits": Field(
        ListOf(LIMIT, "a list such as [{limit: 10, window: 1s}, {limit: 250, window: 1d}]"),
        "Several limits that apply together, instead of one; each with its own fields.",
    ),
}
ALL_OF_QUOTA = {**QUOTA_FIELDS, **LIMITS_FIELD}.keys()


def way_of(given: Values, ways: tuple[Way, ...] = ALL_WAYS) -> Way:
    """Return the way that the given fields indicate."""
    for way in (SEVERAL, BY_TEXT, BY_BUCKET):
        if way.sign in given and way in ways:
            return way
    if IN_PART in ways and not (given.keys() & ALL_OF_QUOTA) - set(IN_PART.may):
        return IN_PART
    if "capacity" in given and not given.keys() & {"limit", "window"}:
        return BY_BUCKET
    return BY_WINDOW


def quotas_of(read: Values, path: Path, findings: Findings) -> tuple[Quota, ...] | None:
    """Return the quotas that the fields of a rule, a change or a limit describe."""
    way = way_of(read)
    if way is SEVERAL:
        parts = read["limits"]
        if None in parts:
            return None
        return _apart(tuple(quota for part in parts for quota in part), (*path, "limits"), findings)
    given = {name: read[name] for name in way.fields if name in read}
    try:
        quotas = _make(way, **given)
        return _apart(quotas, path if AS_TEXT in read else (*path, way.sign), findings)
    except InvalidQuota as error:
        place = path if AS_TEXT in read else (*path, culprit(error, read, way.needs[0]))
        findings.reject(place, str(error))
        return None


def culprit(error: UsageError, read: Values, otherwise: str) -> str:
    """Return the written field that an error is about."""
    return next((name for known in error.fields for name in _WRITTEN.get(known, (known,)) if name in read), otherwise)


_WRITTEN = {
    "window_us": ("window",),
    "refill_every_us": ("refill_every",),
    "burst": ("burst", "capacity"),
}
"""The fields for arguments of a `Quota`, if their names differ."""


def _apart(quotas: tuple[Quota, ...], path: Path, findings: Findings) -> tuple[Quota, ...] | None:
    is_apart = len(quotas) == 1 or findings.attempt(path, Family, "limits", quotas) is not None
    return quotas if is_apart else None


@lru_cache(maxsize=10_000)  # thousands of rules have a few quotas among them
def _make(way: Way, **given: Any) -> tuple[Quota, ...]:
    percents = {name: given.pop(name) for name in _THRESHOLDS if name in given}
    if way is BY_TEXT:
        quotas = Quota.parse(given["quota"])
    elif way is BY_BUCKET:
        quotas = (Quota.from_bucket(given.pop("capacity"), given.pop("refill_rate"), **given),)
    else:
        quotas = (_from_window(**given),)
    return tuple([replace(quota, **percents) for quota in quotas]) if percents else tuple(quotas)


def _from_window(
    limit: int,
    window: int | str,
    *,
    burst: int | None = None,
    capacity: int | None = None,
    algorithm: Algorithm | None = None,
    calendar: bool | str = False,
    refill_every: int = 1,
    **options: Any,
) -> Quota:
    if burst is not None and capacity is not None:
        raise InvalidQuota(BURST_OR_CAPACITY, fields=("burst",))
    periods = None
    if calendar:
        if window not in CALENDAR_UNITS:
            message = f"with a calendar, the window must be one of {', '.join(CALENDAR_UNITS)}"
            raise InvalidQuota(message, fields=("window",))
        if capacity is not None:
            raise InvalidQuota("a window of a calendar has a limit, and no capacity", fields=("capacity",))
        periods = Calendar(str(window), "UTC" if calendar is True else calendar)
    return Quota(
        limit,
        window_us(window) if periods is None else periods.window_us,
        burst=capacity - limit if capacity is not None else burst or 0,
        algorithm=algorithm or (Algorithm.TOKEN_BUCKET if periods is None else Algorithm.FIXED_WINDOW),
        refill_every_us=refill_every,
        calendar=periods,
        keeps_capacity=capacity is not None,
        **options,
    )


def window_us(window: int | str) -> int:
    """Return the microseconds of a window that is not one of the calendar. Raises InvalidQuota."""
    if isinstance(window, int) or window in {"day", "week"}:
        return window if isinstance(window, int) else length_of(window)
    days = {"month": 30, "year": 365}[window]
    raise InvalidQuota(
        f"the window {window!r} has no fixed length: add `calendar: UTC`, or another time zone, for those of the "
        f"calendar, or write {days}d",
        fields=("window",),
    )
