"""A client's estimate of what one limit of a server still allows: the last response, and the requests sent since.

Time is an argument, in microseconds of a monotonic clock. Nothing here does I/O.

*The server's count decides.* A response says what remained after its request. Take the latest-sent request that has a
response, and all responses since it was sent: the last request that the server saw is among these. So the least
remainder among them, minus the requests in flight, is certainly left, whatever algorithm the server uses and however
responses overtake each other.

*When nothing remains*, there is more at the reset that the server announced. With a known window it may be earlier: if
all usage is ours, the oldest expires one window after its response arrived (never too early: the server saw it before
that). After a reset, one request is sent as a probe, and its response says what is available.

A *bucket* refills gradually, so the time until its reset is proportional to what was used. Each unit is then used as it
is refilled.

*Other clients of the same limit* make it fall faster than our requests explain. The price of a request is the units
that the limit falls by for each of ours. That covers token limits too.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.core.algorithms import Algorithm
from headgate.core.quota import MAX_WINDOW_US, SECOND, Quota
from headgate.pacing.fields import Announced

PROBE_TIMEOUT_US = SECOND
"""How long other requests wait for the response to a probe."""
MAX_REMEMBERED = 10_000
"""Responses whose times are kept for one limit."""
_TOLERANCE_US = SECOND // 20
"""Variation of network latency."""
_SHORT_US = 4 * SECOND
"""For shorter windows, a reset in whole seconds is too coarse to be useful."""
_LARGEST_SHARED = 1 << 40
_LONGEST_KEPT_US = 31 * 24 * 3600 * SECOND


class Sent(NamedTuple):
    """The state of an allowance when a request was sent."""

    number: int = 0
    """Sequence number among the requests under this limit."""
    at: int = 0
    answered: int = 0
    """Requests answered before."""
    is_probe: bool = False
    """Sent first after a reset."""
    counted_in: str | None = None
    """The window in which processes that share the limit count it; None if they do not."""
    shared: int = 0
    """What the shared count had left."""


_NONE = Sent()


@dataclass(slots=True, eq=False)
class Allowance:
    """One limit. Not thread-safe: the caller holds a lock."""

    name: str
    longest_hold_us: int
    """A probe is sent this long after the last request, whatever the server announced."""
    limit: int | None = None
    """Capacity in units; None if unknown."""
    window_us: int | None = None
    """Time for the whole capacity to return; None if unknown."""
    held_until: int = 0
    """Send nothing before: the server refused until then."""
    price: float = 1.0
    """Units that the limit falls by for each of our requests."""
    _sent: int = 0
    _answered: int = 0
    _sent_at: int = -PROBE_TIMEOUT_US
    _known: Sent = _NONE
    """The request whose response counts."""
    _remaining: int | None = None
    _seen: deque[tuple[int, int | None]] = field(default_factory=lambda: deque(maxlen=MAX_REMEMBERED))
    """Responses since that request was sent: their sequence numbers, and the remainder that they announce."""
    _reset: int | None = None
    _late_us: int = 0
    """Delay of the server's resets compared with its announcements."""
    _window: str = ""
    """Name of the server's current window."""
    _answers: deque[int] = field(default_factory=lambda: deque(maxlen=MAX_REMEMBERED))
    _first: tuple[int, int] = (0, 0)
    """Requests that the server had certainly seen when estimation of the price began, and the remainder then."""
    _updated_at: int = 0
    _bucket_since: int | None = None
    """Time to refill according to the first of the responses that fit a bucket."""
    _is_bucket: bool = False
    _is_rolling: bool = False
    _is_fixed: bool = False
    _has_others: bool = False
    _is_window_announced: bool = False

    def ready_at(self, now: int, *, is_shared: bool = False) -> int:
        """Return when the next request may be sent; `now` or earlier means immediately.

        With `is_shared`, the shared count decides, unless other clients use the limit too.
        """
        return min(self._estimated_ready_at(now, is_shared=is_shared), self._sent_at + self.longest_hold_us)

    def _estimated_ready_at(self, now: int, *, is_shared: bool) -> int:
        if now < self.held_until:
            return self.held_until
        if is_shared and self._slides and not self._has_others:
            return now
        missing = max(1, round(self.price)) - self._left()
        if self._remaining is None or missing <= 0:
            return now
        if is_shared and (self._is_bucket or not self._is_window_announced):  # every process would claim the refill
            return self._probe_at(now, self._reset)
        return self._more_at(now, missing)

    def sent(self, now: int, counted_in: str | None = None, shared: int = 0) -> Sent:
        self._sent, self._sent_at = self._sent + 1, now
        return Sent(self._sent, now, self._answered, self._is_over(now), counted_in, shared)

    def answered(self, now: int, sent: Sent, *, took: bool) -> None:
        """Record a response, or that none will arrive; `took` is whether the server counted the request."""
        if sent.number:
            self._answered += 1
            if took:
                self._seen.append((self._answered, None))
        if took:
            self._answers.append(now)

    def update(self, now: int, announced: Announced, reset: tuple[int, int] | None, sent: Sent) -> None:
        """Apply the response to `sent`; `reset` is the time of the reset, on our clock and since 1970."""
        self.limit = announced.limit if announced.limit is not None else self.limit
        if announced.window_us and announced.window_us <= MAX_WINDOW_US:
            self.window_us, self._is_window_announced = announced.window_us, True
        if announced.remaining is None:
            return
        is_new = self._is_over(now) or self._is_renewed(announced, reset)
        if self._seen and self._seen[-1][0] == self._answered:
            self._seen[-1] = self._answered, announced.remaining
        if sent.number < self._known.number and not is_new:
            return  # a later request was answered first
        if self.limit is not None:
            self.limit = max(self.limit, announced.remaining)
        is_probe = is_new and sent.is_probe and sent.counted_in is None
        if is_probe and self._reset is not None and self.limit and not self._is_rolling:
            self._learn_kind(announced.remaining, self.limit)
        self._learn_price(announced.remaining, sent, is_new=is_new)
        self._learn_reset(now, announced, reset, is_new=is_new)
        self._remaining, self._known, self._updated_at = announced.remaining, sent, now
        while self._seen and (is_new or self._seen[0][0] <= sent.answered):
            self._seen.popleft()
        if sent.counted_in is not None:
            more = sent.shared - announced.remaining
            self._has_others = more > (0 if self._has_others else self._slack)

    def exhausted(self, now: int, until: int, sent: Sent) -> None:
        """Record a refusal, which lasts until a time of our clock."""
        if sent.is_probe and self._reset is not None:  # sent when the limit should have been reset
            self._late_us = min(SECOND, max(_TOLERANCE_US, 2 * self._late_us))
        self._remaining, self._has_others, self.held_until = 0, True, max(self.held_until, until)
        self._updated_at = max(self._updated_at, until)
        if self._is_over(now):
            self._reset = until

    def shared_quota(self, now: int) -> tuple[str, Quota] | None:
        """Return the name of the current window and the quota with which several processes count their shared usage.

        A known window is counted as sliding: that stays within any window of the server. A window that is unknown or
        fixed is counted separately. Tokens are not counted, since their number per request varies.
        """
        if not self.limit or self.limit > _LARGEST_SHARED or "token" in self.name:
            return None
        if self._slides:
            window = self.window_us or 0
            window += min(window // 50, SECOND // 4)  # latencies differ
            exact = self.limit <= MAX_REMEMBERED
            algorithm = Algorithm.SLIDING_WINDOW_LOG if exact else Algorithm.SLIDING_WINDOW_COUNTER
            return "", Quota(self.limit, min(window, MAX_WINDOW_US), algorithm=algorithm)
        if self._reset is None or self._is_over(now):  # the name of the next window is unknown
            return None
        left = min(self._reset - now, _LONGEST_KEPT_US) + SECOND
        step = max(SECOND, 1 << left.bit_length() - 4)  # few distinct quotas, each not much longer than its window
        return self._window, Quota.one_off(self.limit, keep_us=-(-left // step) * step)

    def shared_ready_at(self, now: int, retry_after_us: int) -> int:
        """Return when to try again after the shared count refused a request.

        `now` means immediately and without the shared count: the server has announced that there is more by now.
        """
        at = min(now + retry_after_us, max(now, self._sent_at + self.longest_hold_us))
        if self._reset is None:
            return at
        if self._slides:
            window = self.window_us or 0
            if self._is_rolling or window < _SHORT_US or at - self._reset < window // 10:
                return at
        if self._is_over(now) and self._sent > self._answered:  # a probe is in flight
            return min(at, max(now + 1, self._sent_at + PROBE_TIMEOUT_US))
        return min(at, max(self._reset, now))

    def used_by_others(self, sent: Sent) -> int:
        """Return the units that the server counts and the shared count lacks."""
        if sent is not self._known or sent.counted_in is None or not self._is_rolling:
            return 0
        return max(0, sent.shared - (self._remaining or 0) - self._slack)

    @property
    def _slides(self) -> bool:
        return self._is_window_announced and not self._is_fixed

    @property
    def _slack(self) -> int:
        """Units by which counts may differ just because requests overtake each other."""
        return max(2, (self.limit or 0) // 10)

    def _left(self) -> int:
        """Return the units that certainly remain, if other clients do not use more than before."""
        announced = [remaining for _, remaining in self._seen if remaining is not None]
        unseen = self._sent - self._answered + len(self._seen) - len(announced)
        return min([self._remaining or 0, *announced]) - round(unseen * self.price)

    def _more_at(self, now: int, missing: int) -> int:
        """Return when the missing units will be available, or when to send a probe."""
        if self._is_bucket and self.limit and self.window_us:
            return self._updated_at + -(-missing * self.window_us // self.limit)
        ours = self._oldest_expires_at()
        if ours is not None and (self._reset is None or ours <= self._reset):
            return ours
        if self._is_rolling and self._is_window_announced and self.window_us:  # some units return before all do
            soon = self._known.at + self.window_us // 4
            return self._probe_at(now, soon if self._reset is None else min(soon, self._reset))
        return self._probe_at(now, self._reset)

    def _probe_at(self, now: int, at: int | None) -> int:
        """Return when to send the next probe: at the given time, or when the one in flight times out."""
        timeout_at = self._sent_at + PROBE_TIMEOUT_US
        if at is None or (at <= now and self._sent != self._answered):
            return timeout_at
        return at

    def _is_over(self, now: int) -> bool:
        return self._reset is None or now >= self._reset

    def _is_renewed(self, announced: Announced, reset: tuple[int, int] | None) -> bool:
        """Return whether a new window began earlier than its reset in whole seconds suggested."""
        if self._is_rolling or (announced.remaining or 0) <= (self._remaining or 0):
            return False
        return self._reset is not None and reset is not None and reset[0] > self._reset + _tolerance_us(announced)

    def _oldest_expires_at(self) -> int | None:
        """Return when the oldest of our requests expires, if the server counts no others; else None."""
        if not self.limit or not self.window_us:
            return None
        place = self.limit - (self._sent - self._answered)
        if not 0 < place <= len(self._answers):
            return None
        at = self._answers[-place] + self.window_us
        return at if at > self._known.at else None  # it had expired before the last response

    def _learn_price(self, remaining: int, sent: Sent, *, is_new: bool) -> None:
        """Estimate by how much the limit falls per request, at least: any request in flight may count already."""
        since, first = self._first
        if is_new or self._remaining is None or remaining > self._remaining:
            self._first = sent.answered, remaining
            return
        price = max(1.0, (first - remaining) / max(1, self._sent - since))
        self.price += (price - self.price) / 4

    def _learn_reset(self, now: int, announced: Announced, reset: tuple[int, int] | None, *, is_new: bool) -> None:
        """Estimate the reset. Whole seconds are rounded up, so the earliest of several is the most exact."""
        if reset is None or announced.reset is None:
            self._reset = None if is_new else self._reset
            return
        at, since_1970 = reset[0] + self._late_us, reset[1]
        if is_new or self._reset is None:
            self._reset, self._window = at, f"@{round(since_1970 / SECOND)}"
        elif at > self._reset + _tolerance_us(announced):
            self._is_rolling, self._is_fixed = True, False
            self._reset = at
        else:
            self._reset = min(self._reset, at)
        used = (self.limit or 0) - (announced.remaining or 0)
        if self._is_rolling and not self._is_window_announced and self.limit and 10 * used >= 9 * self.limit:
            # Some units may have returned already, so this is never shorter than the window.
            window = min((reset[0] - now) * self.limit // max(1, used - 1), MAX_WINDOW_US)
            self.window_us = max(1, min(window, self.window_us or window))
        self._learn_bucket(reset[0] - now, used, _tolerance_us(announced))

    def _learn_kind(self, remaining: int, limit: int) -> None:
        """Infer from a probe's response whether the whole limit returns at once."""
        is_much = 4 * remaining > limit  # other processes may have been faster
        if is_much and (self.window_us is None or self.window_us >= _SHORT_US):
            self._is_fixed = True
        elif not is_much and not self._is_fixed:
            self._is_rolling = True

    def _learn_bucket(self, after_us: int, used: int, tolerance_us: int) -> None:
        """Infer a bucket from times until the reset that are proportional to usage, over more than chance explains."""
        if not self.limit or not self.window_us:
            return
        expected = used * self.window_us // self.limit
        if abs(after_us - expected) > tolerance_us:
            self._bucket_since, self._is_bucket = None, False
            return
        if self._bucket_since is None:
            self._bucket_since = expected
        if abs(expected - self._bucket_since) > 5 * tolerance_us // 2:
            self._is_bucket = self._is_rolling = True


def _tolerance_us(announced: Announced) -> int:
    """Return by how much an unchanged reset may differ between two responses."""
    return _TOLERANCE_US + (SECOND if announced.reset and announced.reset.is_coarse else 0)
