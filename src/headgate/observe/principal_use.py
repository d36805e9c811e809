"""How much single principals ask of each rule in each of its windows: a sample, for what another limit would refuse.

Who is in the sample is decided by a hash of the principal, which every worker of every service computes alike. So what
workers count of one principal adds up, wherever its requests go. The sample is of all principals as long as there are
few; when a worker knows more than its share, it goes on with half of them, those whose hash is in the lower half: a
sample at *level* n is one principal of 2 ** n, and is a part of every sample at a lower level. Each window has a sample
of its own, so that over a day of windows what chance did to one of them is made up for by the others.

Windows are those of a fixed window: they begin at multiples of their length since the epoch, in whole seconds. Of
windows that are shorter than a minute, one in each minute is looked at, the same one everywhere.

What is handed on has digests in place of principals, other ones in each window.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from hashlib import blake2b
from zlib import crc32

import msgspec

from headgate.core.key import Principal
from headgate.core.plan import Plan
from headgate.core.quota import Quota
from headgate.policy.prepared import rule_id_of

MOST_PRINCIPALS = 1000
"""Principals in the sample of one window, of one worker."""
IN_ALL = 20_000
"""The same, of all windows together; each has an equal share of them, and at least `LEAST_PRINCIPALS`."""
LEAST_PRINCIPALS = 20
MOST_SERIES = 1000
"""Windows that a worker looks at together: those of rules that come later are not looked at."""
MOST_LIMITS = 8
"""Limits of one window of a rule that are told apart: the rule's own, and those of tiers and overrides."""
LONGEST_WINDOW_US = 31 * 86_400_000_000
"""Windows that are longer are not looked at."""
MINUTE_US, SECOND_US = 60_000_000, 1_000_000
POSITIONS = 1 << 32
"""What the hash of a principal is below."""
_DIGESTS_PER_SECOND = 1000


class WindowUse(msgspec.Struct, frozen=True, array_like=True):
    """What was asked of a rule in a window, of late, by the principals in the sample."""

    rule: str
    window_us: int
    """The length of the window that is looked at, in whole seconds."""
    limit: int
    """The limit that was in force for these principals."""
    at: int
    """When the window began, in microseconds since the epoch."""
    level: int
    """One principal of 2 ** level is in the sample."""
    principals: dict[int, int]
    """Units that were asked for, whether they were admitted or not, by principal: its hash, and 31 bits of a digest."""


def measured_window(quota: Quota) -> int:
    """Return the length of the windows in which the use of a quota is looked at; 0: it is not."""
    whole = -(-quota.window_us // SECOND_US) * SECOND_US
    return whole if quota.limit and whole <= LONGEST_WINDOW_US else 0


def passed_over(window_us: int) -> int:
    """Return for how many windows of a length the one stands that is looked at, itself included."""
    return -(-MINUTE_US // window_us)


class PrincipalUse:
    """Counts what principals ask for, in the process that decides.

    Args:
        most: see `MOST_PRINCIPALS`.
        now: what time it is, in microseconds since the epoch; default: the system's.
    """

    def __init__(self, *, most: int = MOST_PRINCIPALS, now: int | None = None) -> None:
        self._most = most
        self._now = time.time_ns() // 1000 if now is None else now
        self._series: dict[str, _Series] = {}  # the one that was used last, by space
        self._all: dict[tuple[str, int], _Series] = {}  # by space and limit
        self._limits: Counter[str] = Counter()  # how many of them there are in a space
        self._ended: deque[_Ended] = deque()
        self._ready: list[WindowUse] = []

    def asked(self, plan: Plan, cost: int) -> None:
        """Note that a request asked these limits for a cost. This is on the way of every decision."""
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
                data = principal if isinstance(principal, bytes) else principal.encode()  # `encoded`, without a call
                if crc32(data, one.seed) >= bound:
                    continue
            one.counts[principal] += cost

    def second(self, now: int | None = None) -> None:
        """Let time pass: windows end, and what was counted is made ready to be taken. To be called every second."""
        self._now = time.time_ns() // 1000 if now is None else now
        share = max(LEAST_PRINCIPALS, IN_ALL // max(1, len(self._all)))
        for key, one in list(self._all.items()):
            if self._now >= min(one.ends, one.told + MINUTE_US):
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
        """Return what was made ready since the last time, or all that was counted: then nothing more will be."""
        if everything:
            for one in self._all.values():
                self._end(one)
            self._digest(None)
        ready, self._ready = self._ready, []
        return ready

    def _end(self, one: _Series) -> None:
        one.told = self._now
        ended = one.hand_on()
        if ended is not None:
            self._ended.append(ended)

    def _digest(self, most: int | None) -> None:
        done = 0
        while self._ended and (most is None or done < most):
            ended = self._ended.popleft()
            self._ready.append(ended.digested())
            done += len(ended.counts)

    def _found(self, space: str, quota: Quota) -> _Series:
        """Return the series of a limit that is not the one used last in its space: another tier, or other rules."""
        known = self._all.get((space, quota.limit))
        if known is None:
            is_full = len(self._all) >= MOST_SERIES or self._limits[space] >= MOST_LIMITS
            if is_full or not measured_window(quota) or "@" not in space:  # that is not a rule's
                return _NOT_COUNTED
            known = self._all[space, quota.limit] = _Series(space, quota, self._most, self._now)
            self._limits[space] += 1
        known.quota = quota
        self._series[space] = known
        return known


class _Ended(msgspec.Struct):
    """What was counted in a window, to be handed on."""

    use: WindowUse
    seed: int
    counts: dict[Principal, int]

    def digested(self) -> WindowUse:
        """Return it with digests in place of principals."""
        key = self.seed.to_bytes(4, "little")
        found: dict[int, int] = {}
        for principal, units in self.counts.items():
            if units:
                digest = blake2b(encoded(principal), digest_size=4, key=key).digest()
                name = crc32(encoded(principal), self.seed) << 31 | int.from_bytes(digest, "little") >> 1
                found[name] = found.get(name, 0) + units
        return msgspec.structs.replace(self.use, principals=found)


class _Series:
    """The windows of one limit of a rule, one after the other."""

    __slots__ = (
        *("_at", "_level", "_space", "_window_us", "bound", "counts", "ends", "is_idle", "is_looked_at", "most"),
        *("quota", "seed", "told"),
    )

    def __init__(self, space: str, quota: Quota, most: int, now: int) -> None:
        self._space, self.quota, self.most = space, quota, most
        self._window_us, self._level = measured_window(quota), 0
        self.counts: defaultdict[Principal, int] = defaultdict(int)
        """Units by principal, of those in the sample; for up to a second there may be more than `most`."""
        self.bound: int | None = 0
        """Below it is the hash of those in the sample; None: all are."""
        self._at = self.seed = self.ends = self.told = 0
        self.is_looked_at = self.is_idle = True
        """Whether this window is one to look at, and whether nobody has asked in it."""
        if self._window_us:
            self.begin(now)

    def begin(self, now: int) -> None:
        """Let a window begin."""
        index = now // self._window_us
        one_of = passed_over(self._window_us)
        if self.is_looked_at and self._level and len(self.counts) < self.most // 4:
            self._level -= 1
        self.is_looked_at = _hash(f"{self._space}|{index // one_of}") % one_of == index % one_of
        self._at = index * self._window_us
        self.ends, self.told = self._at + self._window_us, now
        self.seed = _hash(f"{self._space}|{self.quota.limit}|{self._at}")
        self.counts, self.is_idle = defaultdict(int), True
        self.bound = 0 if not self.is_looked_at else POSITIONS >> self._level if self._level else None

    def thin(self) -> None:
        """Go on with half of the principals, or fewer, until there are few enough."""
        while len(self.counts) > self.most:
            self._level += 1
            self.bound = bound = POSITIONS >> self._level
            passed = [each for each in self.counts if crc32(encoded(each), self.seed) >= bound]
            for each in passed:
                del self.counts[each]

    def hand_on(self) -> _Ended | None:
        """Return what was counted since the last time, and go on with those in the sample; None if there is nothing.

        That nobody of a sample asked is said as well: others may have seen principals that are not in it.
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
        return _Ended(use, self.seed, counts)


_NOT_COUNTED = _Series("", Quota(1, LONGEST_WINDOW_US + SECOND_US), 0, 0)
"""Stands for limits that are not looked at."""


def encoded(principal: Principal) -> bytes:
    """Return a principal as bytes."""
    return principal if isinstance(principal, bytes) else principal.encode()


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=4).digest(), "little")
