"""What one limit of a server still allows, as a client knows it: the server's last word, and what was sent since.

Time is an argument, in microseconds of a clock that never goes back. Nothing here waits or asks anybody.

*The server's word counts.* An answer says what was left when the server had seen that request. Take the request that
was sent last among those that are answered, and all answers that came since it was sent: the server has seen all
requests that were answered before, and the one that it saw last is among these. So the least that any of them says,
minus the requests that are under way, is surely left, whatever algorithm the server has, and however answers overtake
each other.

*Where nothing is left*, there is more at the reset that the server named. With a window that is known, it may be
earlier: if all that the server counts was ours, the oldest of it is forgotten a window after its answer came. (That is
never too early: the server saw it before.) After a reset one request goes ahead, and its answer says what there is.

A bucket, to which all comes back little by little, shows itself: the time until the reset is in proportion to what was
used. Then each unit is used as it comes.

*Others who use the same limit* make it fall faster than we use it. How fast is the price of a request: units of the
limit for each of ours. That covers tokens too, of which a request takes as many as it takes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.core.algorithms import Algorithm
from headgate.core.quota import MAX_WINDOW_US, SECOND, Quota
from headgate.pacing.fields import Announced

PATIENCE_US = SECOND
"""How long others wait for the answer to the request that goes ahead."""
MOST_REMEMBERED = 10_000
"""Answers whose times are kept, for one limit."""
_TOLERANCE_US = SECOND // 20
"""By how much the times differ that answers take on their way."""
_SHORT_US = 4 * SECOND
"""In a window that is shorter, a reset in whole seconds says nothing of when it ends."""
_LARGEST_SHARED = 1 << 40
_LONGEST_KEPT_US = 31 * 24 * 3600 * SECOND


class Sent(NamedTuple):
    """What was known of an allowance when a request was sent."""

    number: int = 0
    """Of the request, among those that this limit is for."""
    at: int = 0
    answered: int = 0
    """How many had been answered."""
    is_ahead: bool = False
    """Whether it went ahead after a reset."""
    counted_in: str | None = None
    """The window in which processes that share the limit count it; None: they do not."""
    shared: int = 0
    """What they had left then, by their own count."""


_NONE = Sent()


@dataclass(slots=True, eq=False)
class Allowance:
    """One limit. Not safe for use from several threads at once: whoever has it has a lock."""

    name: str
    """Tells it apart from other limits of the server."""
    longest_hold_us: int
    """So long after a request, another is sent to see, whatever the server said."""
    limit: int | None = None
    """The most units that can pass at once; None while that is not known."""
    window_us: int | None = None
    """In which all of them come back; None while that is not known."""
    held_until: int = 0
    """Nothing passes before, whatever is left: the server said so."""
    price: float = 1.0
    """Units that the limit falls by for each request of ours."""
    _sent: int = 0
    _answered: int = 0
    _sent_at: int = -PATIENCE_US
    _known: Sent = _NONE
    """The request whose answer is the server's last word."""
    _remaining: int | None = None
    _seen: deque[tuple[int, int | None]] = field(default_factory=lambda: deque(maxlen=MOST_REMEMBERED))
    """The answers that came since that request was sent: their numbers, and what they say is left."""
    _reset: int | None = None
    _late_us: int = 0
    """By how much the server's resets come later than it says."""
    _window: str = ""
    """The name of the server's present window."""
    _answers: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_REMEMBERED))
    _first: tuple[int, int] = (0, 0)
    """What the server had surely seen when the price began to be learned, and what was left then."""
    _told_at: int = 0
    _bucket_since: int | None = None
    """How long the limit took to come back, by the first of the answers that fit a bucket."""
    _is_bucket: bool = False
    _is_rolling: bool = False
    _is_fixed: bool = False
    _is_others: bool = False
    _is_window_told: bool = False

    def ready_at(self, now: int, *, is_shared: bool = False) -> int:
        """Return when the next request may be sent, as far as is known now: `now` or earlier is at once.

        With `is_shared`, the count of all processes together decides, unless others use the limit as well.
        """
        return min(self._said_ready_at(now, is_shared=is_shared), self._sent_at + self.longest_hold_us)

    def _said_ready_at(self, now: int, *, is_shared: bool) -> int:
        """Return the same by what the server says."""
        if now < self.held_until:
            return self.held_until
        if is_shared and self._slides and not self._is_others:
            return now
        missing = max(1, round(self.price)) - self._left()
        if self._remaining is None or missing <= 0:
            return now
        if is_shared and (self._is_bucket or not self._is_window_told):  # what comes back, all would take for theirs
            return self._ahead_at(now, self._reset)
        return self._more_at(now, missing)

    def sent(self, now: int, counted_in: str | None = None, shared: int = 0) -> Sent:
        """Note that a request is sent."""
        self._sent, self._sent_at = self._sent + 1, now
        return Sent(self._sent, now, self._answered, self._is_over(now), counted_in, shared)

    def answered(self, now: int, sent: Sent, *, took: bool) -> None:
        """Note that an answer came, or that none will; `took` is whether the server counts the request."""
        if sent.number:
            self._answered += 1
            if took:
                self._seen.append((self._answered, None))
        if took:
            self._answers.append(now)

    def told(self, now: int, told: Announced, reset: tuple[int, int] | None, sent: Sent) -> None:
        """Learn what the answer to `sent` says; `reset` is when the limit is reset, on our clock and since 1970."""
        self.limit = told.limit if told.limit is not None else self.limit
        if told.window_us and told.window_us <= MAX_WINDOW_US:
            self.window_us, self._is_window_told = told.window_us, True
        if told.remaining is None:
            return
        is_new = self._is_over(now) or self._is_renewed(told, reset)
        if self._seen and self._seen[-1][0] == self._answered:
            self._seen[-1] = self._answered, told.remaining
        if sent.number < self._known.number and not is_new:
            return  # one that was sent later was answered before
        if self.limit is not None:
            self.limit = max(self.limit, told.remaining)
        went_ahead = is_new and sent.is_ahead and sent.counted_in is None
        if went_ahead and self._reset is not None and self.limit and not self._is_rolling:
            self._learn_kind(told.remaining, self.limit)
        self._learn_price(told.remaining, sent, is_new=is_new)
        self._learn_reset(now, told, reset, is_new=is_new)
        self._remaining, self._known, self._told_at = told.remaining, sent, now
        while self._seen and (is_new or self._seen[0][0] <= sent.answered):
            self._seen.popleft()
        if sent.counted_in is not None:
            more = sent.shared - told.remaining
            self._is_others = more > (0 if self._is_others else self._slack)

    def exhausted(self, now: int, until: int, sent: Sent) -> None:
        """Note that the server refused a request, and when it will not, on our clock."""
        if sent.is_ahead and self._reset is not None:  # it was sent when the limit should have been reset
            self._late_us = min(SECOND, max(_TOLERANCE_US, 2 * self._late_us))
        self._remaining, self._is_others, self.held_until = 0, True, max(self.held_until, until)
        self._told_at = max(self._told_at, until)
        if self._is_over(now):
            self._reset = until

    def shared_quota(self, now: int) -> tuple[str, Quota] | None:
        """Return the quota by which several processes count what they use together, and the name of its window.

        A window that is known slides: whichever windows the server has, there is never more in one of them. One that is
        not known, or was seen to be fixed, has a count of its own. Tokens, whose number differs, are not counted.
        """
        if not self.limit or self.limit > _LARGEST_SHARED or "token" in self.name:
            return None
        if self._slides:
            window = self.window_us or 0
            window += min(window // 50, SECOND // 4)  # requests do not all take equally long
            exact = self.limit <= MOST_REMEMBERED
            algorithm = Algorithm.SLIDING_WINDOW_LOG if exact else Algorithm.SLIDING_WINDOW_COUNTER
            return "", Quota(self.limit, min(window, MAX_WINDOW_US), algorithm=algorithm)
        if self._reset is None or self._is_over(now):  # the name of the next one is not known
            return None
        left = min(self._reset - now, _LONGEST_KEPT_US) + SECOND
        step = max(SECOND, 1 << left.bit_length() - 4)  # few quotas are different, and none outlives its window by far
        return self._window, Quota.one_off(self.limit, keep_us=-(-left // step) * step)

    def shared_ready_at(self, now: int, retry_after_us: int) -> int:
        """Return when to ask again, after the count of all processes together has refused a request.

        `now` is at once, and without asking: the server has said that there is more by now.
        """
        at = min(now + retry_after_us, max(now, self._sent_at + self.longest_hold_us))
        if self._reset is None:
            return at
        if self._slides:
            window = self.window_us or 0
            if self._is_rolling or window < _SHORT_US or at - self._reset < window // 10:
                return at
        if self._is_over(now) and self._sent > self._answered:  # one has gone ahead
            return min(at, max(now + 1, self._sent_at + PATIENCE_US))
        return min(at, max(self._reset, now))

    def of_others(self, sent: Sent) -> int:
        """Return the units that processes do not know of, though the server counts them for longer than they will."""
        if sent is not self._known or sent.counted_in is None or not self._is_rolling:
            return 0
        return max(0, sent.shared - (self._remaining or 0) - self._slack)

    @property
    def _slides(self) -> bool:
        """Whether processes count what they use in a window that slides."""
        return self._is_window_told and not self._is_fixed

    @property
    def _slack(self) -> int:
        """Units by which counts may differ only because requests overtake each other."""
        return max(2, (self.limit or 0) // 10)

    def _left(self) -> int:
        """Return the units that are surely left, unless others take more than they did."""
        told = [remaining for _, remaining in self._seen if remaining is not None]
        unseen = self._sent - self._answered + len(self._seen) - len(told)
        return min([self._remaining or 0, *told]) - round(unseen * self.price)

    def _more_at(self, now: int, missing: int) -> int:
        """Return when so many units will have come back, or the next request goes ahead to see."""
        if self._is_bucket and self.limit and self.window_us:
            return self._told_at + -(-missing * self.window_us // self.limit)
        ours = self._ours_forgotten_at()
        if ours is not None and (self._reset is None or ours <= self._reset):
            return ours
        if self._is_rolling and self._is_window_told and self.window_us:  # some of it comes back before all of it does
            soon = self._known.at + self.window_us // 4
            return self._ahead_at(now, soon if self._reset is None else min(soon, self._reset))
        return self._ahead_at(now, self._reset)

    def _ahead_at(self, now: int, at: int | None) -> int:
        """Return when the next request goes ahead, alone, to see what has come back at a time, if there is one."""
        at = self._sent_at + PATIENCE_US if at is None else at
        if at > now or self._sent == self._answered:
            return at
        return self._sent_at + PATIENCE_US  # one has gone ahead: its answer, or time, tells more

    def _is_over(self, now: int) -> bool:
        """Is the window over of which the server spoke last?"""
        return self._reset is None or now >= self._reset

    def _is_renewed(self, told: Announced, reset: tuple[int, int] | None) -> bool:
        """Has the server begun another window, before it should have by what it said in whole seconds?"""
        if self._is_rolling or (told.remaining or 0) <= (self._remaining or 0):
            return False
        return self._reset is not None and reset is not None and reset[0] > self._reset + _tolerance_us(told)

    def _ours_forgotten_at(self) -> int | None:
        """Return when the oldest of our own is forgotten, if these are all that the server counts; else None."""
        if not self.limit or not self.window_us:
            return None
        place = self.limit - (self._sent - self._answered)
        if not 0 < place <= len(self._answers):
            return None
        at = self._answers[-place] + self.window_us
        return at if at > self._known.at else None  # else it was forgotten already when the server said so

    def _learn_price(self, remaining: int, sent: Sent, *, is_new: bool) -> None:
        """Learn by how much the limit falls for a request; it may have seen all that it had not surely seen before."""
        since, first = self._first
        if is_new or self._remaining is None or remaining > self._remaining:
            self._first = sent.answered, remaining
            return
        price = max(1.0, (first - remaining) / max(1, self._sent - since))
        self.price += (price - self.price) / 4

    def _learn_reset(self, now: int, told: Announced, reset: tuple[int, int] | None, *, is_new: bool) -> None:
        """Learn when the limit is reset. Whole seconds are rounded up: of several answers, the earliest is nearest."""
        if reset is None or told.reset is None:
            self._reset = None if is_new else self._reset
            return
        at, since_1970 = reset[0] + self._late_us, reset[1]
        if is_new or self._reset is None:
            self._reset, self._window = at, f"@{round(since_1970 / SECOND)}"
        elif at > self._reset + _tolerance_us(told):
            self._is_rolling, self._is_fixed = True, False
            self._reset = at
        else:
            self._reset = min(self._reset, at)
        used = (self.limit or 0) - (told.remaining or 0)
        if self._is_rolling and not self._is_window_told and self.limit and 10 * used >= 9 * self.limit:
            window = min((reset[0] - now) * self.limit // max(1, used - 1), MAX_WINDOW_US)  # of what is used, a part
            self.window_us = max(1, min(window, self.window_us or window))  # may have come back: it is never too short
        self._learn_bucket(reset[0] - now, used, _tolerance_us(told))

    def _learn_kind(self, remaining: int, limit: int) -> None:
        """Learn, by what the first request after a reset finds, whether all comes back at once."""
        is_much = 4 * remaining > limit  # other processes may have been quicker
        if is_much and (self.window_us is None or self.window_us >= _SHORT_US):
            self._is_fixed = True
        elif not is_much and not self._is_fixed:
            self._is_rolling = True

    def _learn_bucket(self, after_us: int, used: int, tolerance_us: int) -> None:
        """Learn whether the time until the reset is in proportion to what is used, over more than chance explains."""
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


def _tolerance_us(told: Announced) -> int:
    """Return by how much a reset may seem to move between two answers though it does not."""
    return _TOLERANCE_US + (SECOND if told.reset and told.reset.is_coarse else 0)
