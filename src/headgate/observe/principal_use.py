"""A sample of principals' usage by rule and window, to predict the effect of other limits.

A hash of the principal decides about the sample, alike in every worker of every service, so workers' counts of one
principal add up. Few principals are all counted; when a worker has more than its share, it continues with the half of
them with the lower hashes. A sample at *level* n is one principal in 2 ** n, and part of every sample at a lower level.
Each window has its own sample, so chance averages out over a day of windows.

Windows are fixed windows: aligned to multiples of their length since the epoch, in whole seconds. Of windows shorter
than a minute, one in each minute is measured, the same one everywhere.

Results contain digests of principals, different in each window.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from hashlib import blake2b
from typing import TypeAlias
from zlib import crc32

import msgspec

from headgate.core.key import Principal
from headgate.core.plan import Plan
from headgate.core.quota import Quota
from headgate.policy.prepared import rule_id_of

MOST_PRINCIPALS = 1000
"""Largest sample of one window of one worker."""
IN_ALL = 20_000
"""Largest sample of all windows together; each has an equal share, and at least `LEAST_PRINCIPALS`."""
LEAST_PRINCIPALS = 20
MOST_SERIES = 1000
"""Windows that a worker measures concurrently; later rules are not measured."""
MOST_LIMITS = 8
"""Distinct limits of one window of a rule: its own, and those of tiers and overrides."""
LONGEST_WINDOW_US = 31 * 86_400_000_000
"""Longer windows are not measured."""
MINUTE_US, SECOND_US = 60_000_000, 1_000_000
POSITIONS = 1 << 32
"""Bound of the hash of a principal."""
_DIGESTS_PER_SECOND = 1000
_Ended: TypeAlias = "tuple[WindowUse, int, dict[Principal, int]]"
"""A window without its principals, the seed of their digests, and their units."""


class WindowUse(msgspec.Struct, frozen=True, array_like=True):
    """What the sampled principals requested of a rule in a recent window."""

    rule: str
    window_us: int
    """Length of the measured window, in whole seconds."""
    limit: int
    """The limit of these principals."""
    at: int
    """Start of the window, in microseconds since the epoch."""
    level: int
    """One principal in 2 ** level is in the sample."""
    principals: dict[int, int]
    """Requested units, admitted or not, by principal: its hash, and 31 bits of a digest."""


def measured_window(quota: Quota) -> int:
    """Return the length of the windows in which to measure a quota; 0: none."""
    whole = -(-quota.window_us // SECOND_US) * SECOND_US
    return whole if quota.limit and whole <= LONGEST_WINDOW_US else 0


def passed_over(window_us: int) -> int:
    """Return how many windows of a length one measured window represents."""
    return -(-MINUTE_US // window_us)


class PrincipalUse:
    """Counts what principals request, in the process that decides.

    `most` is described at `MOST_PRINCIPALS`; `now` is in microseconds since the epoch, by default the system's time.
    """

    def __init__(self, *, most: int = MOST_PRINCIPALS, now: int | None = None) -> None:
        self._most = most
        self._now = time.time_ns() // 1000 if now is None else now
        self._series: dict[str, _Series] = {}  # by space, the last used
        self._all: dict[tuple[str, int], _Series] = {}  # by space and limit
        self._limits: Counter[str] = Counter()  # by space
        self._ended: deque[_Ended] = deque()
        self._ready: list[WindowUse] = []

    def record(self, plan: Plan, cost: int) -> None:
        """Count the cost of a request to these limits, on the path of every decision."""
        series = self._series
        for limit in plan:
            space, principal, quota = limit.space, limit.principal, limit.quota
            one = series.get(space)
            if one is None or one.quota is not quota:
                one = self._found(space, quota)
            bound = one.bound
            if bound is not None:
                if not bound:
                    continue
                data = principal if isinstance(principal, bytes) else principal.encode()  # `encoded`, inlined
                if crc32(data, one.seed) >= bound:
                    continue
            one.counts[principal] += cost

    def second(self, now: int | None = None) -> None:
        """End windows, and prepare the counts to be taken. Call it every second."""
        self._now = time.time_ns() // 1000 if now is None else now
        share = max(LEAST_PRINCIPALS, IN_ALL // max(1, len(self._all)))
        for key, one in list(self._all.items()):
            if self._now >= min(one.ends, one.flushed_at + MINUTE_US):
                self._end(one)
            if self._now >= one.ends:
                if one.is_idle and one.is_looked_at:
                    del self._all[key]
                    self._limits -= Counter({key[0]: 1})
                    self._series.pop(key[0], None)
                else:
                    one.begin(self._now)
            one.most = min(self._most, share)
            one.thin()
        self._digest(_DIGESTS_PER_SECOND)

    def take(self, *, everything: bool = False) -> list[WindowUse]:
        """Return the counts prepared since the last call; with `everything`, all counts, at the end."""
        if everything:
            for one in self._all.values():
                self._end(one)
            self._digest(None)
        ready, self._ready = self._ready, []
        return ready

    def _end(self, one: _Series) -> None:
        one.flushed_at = self._now
        ended = one.hand_on()
        if ended is not None:
            self._ended.append(ended)

    def _digest(self, most: int | None) -> None:
        done = 0
        while self._ended and (most is None or done < most):
            use, seed, counts = self._ended.popleft()
            self._ready.append(msgspec.structs.replace(use, principals=_digests(seed, counts)))
            done += len(counts)

    def _found(self, space: str, quota: Quota) -> _Series:
        """Return the series of a limit other than the last used of its space: another tier, or new rules."""
        known = self._all.get((space, quota.limit))
        if known is None:
            is_full = len(self._all) >= MOST_SERIES or self._limits[space] >= MOST_LIMITS
            if is_full or not measured_window(quota) or "@" not in space:  # not a rule's space
                return _NOT_COUNTED
            known = self._all[space, quota.limit] = _Series(space, quota, self._most, self._now)
            self._limits[space] += 1
        known.quota = quota
        self._series[space] = known
        return known


def _digests(seed: int, counts: dict[Principal, int]) -> dict[int, int]:
    """Return the counts by digests of the principals."""
    key = seed.to_bytes(4, "little")
    found: dict[int, int] = {}
    for principal, units in counts.items():
        if units:
            digest = blake2b(encoded(principal), digest_size=4, key=key).digest()
            name = crc32(encoded(principal), seed) << 31 | int.from_bytes(digest, "little") >> 1
            found[name] = found.get(name, 0) + units
    return found


class _Series:
    """The consecutive windows of one limit of a rule."""

    __slots__ = (
        *("_at", "_level", "_space", "_window_us", "bound", "counts", "ends", "is_idle", "is_looked_at", "most"),
        *("quota", "seed", "flushed_at"),
    )

    def __init__(self, space: str, quota: Quota, most: int, now: int) -> None:
        self._space, self.quota, self.most = space, quota, most
        self._window_us, self._level = measured_window(quota), 0
        self.counts: defaultdict[Principal, int] = defaultdict(int)
        """Units by sampled principal; for up to a second there may be more than `most`."""
        self.bound: int | None = 0
        """Bound of the hashes in the sample; None: all are."""
        self._at = self.seed = self.ends = self.flushed_at = 0
        self.is_looked_at = self.is_idle = True
        """Whether to measure this window, and whether it had no requests."""
        if self._window_us:
            self.begin(now)

    def begin(self, now: int) -> None:
        index = now // self._window_us
        one_of = passed_over(self._window_us)
        if self.is_looked_at and self._level and len(self.counts) < self.most // 4:
            self._level -= 1
        self.is_looked_at = _hash(f"{self._space}|{index // one_of}") % one_of == index % one_of
        self._at = index * self._window_us
        self.ends, self.flushed_at = self._at + self._window_us, now
        self.seed = _hash(f"{self._space}|{self.quota.limit}|{self._at}")
        self.counts, self.is_idle = defaultdict(int), True
        self.bound = 0 if not self.is_looked_at else POSITIONS >> self._level if self._level else None

    def thin(self) -> None:
        """Halve the sample until it is small enough."""
        while len(self.counts) > self.most:
            self._level += 1
            self.bound = bound = POSITIONS >> self._level
            passed = [each for each in self.counts if crc32(encoded(each), self.seed) >= bound]
            for each in passed:
                del self.counts[each]

    def hand_on(self) -> _Ended | None:
        """Return the counts since the last call, and keep the sample; None if there are none.

        An empty sample is returned too: other workers may have seen principals outside it.
        """
        self.thin()
        counts, self.counts = self.counts, defaultdict(int, dict.fromkeys(self.counts, 0))
        if any(counts.values()):
            self.is_idle = False
        elif not self._level:
            return None
        if not self.is_looked_at:
            return None
        use = WindowUse(rule_id_of(self._space), self._window_us, self.quota.limit, self._at, self._level, {})
        return use, self.seed, counts


_NOT_COUNTED = _Series("", Quota(1, LONGEST_WINDOW_US + SECOND_US), 0, 0)
"""Stands for limits that are not measured."""


def encoded(principal: Principal) -> bytes:
    return principal if isinstance(principal, bytes) else principal.encode()


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "little")
