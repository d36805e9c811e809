"""Send requests to servers that have limits, at the rate that they allow.

`Pacer` is what httpx, requests and aiohttp have in common. `Pacer.exchange` is a flow (see `headgate.flows`): it yields
a pause, a call of the store that processes share, or the request itself, and is sent the outcome.

::

    exchange ── in line ── what do the limits allow? ── Send ── what does the answer say? ── refused, and may be
                   ^             (Allowance)                    (headgate.pacing.fields)           sent again? ──┐
                   └──────────────────────────────────────────────────────────────────────────────────────────┘

A limit is one of an *origin* (scheme, host, port) for a *credential*. Which of its limits a request falls under is
known from the answer to the last one whose path began with the same segment. The first request of all goes alone, since
nothing is known before its answer; others wait for that, a second at most.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple, TypeAlias, TypeVar

from headgate.clock import Clock, SystemClock
from headgate.core.decision import Decision
from headgate.core.errors import HeadgateError, UsageError
from headgate.core.key import bounded, space
from headgate.core.numbers import short, whole
from headgate.core.plan import MAX_COST, Call, Limit, Verb
from headgate.core.quota import Quota
from headgate.locks import new_lock
from headgate.pacing import fields
from headgate.pacing.allowance import PATIENCE_US, Allowance, Sent
from headgate.pacing.fields import LONGEST_US, SECOND, Announced, Notice
from headgate.pacing.guessed_rate import GuessedRate
from headgate.waiting import Pause, Ticket, WaitingLines

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
"""Methods that may be sent again (RFC 9110)."""
LONGEST_WAIT = 30 * 24 * 3600
"""Seconds that a request may be told to wait for."""
MOST_ORIGINS, MOST_ROUTES, MOST_ALLOWANCES = 512, 128, 32
_ONE_OFF = Quota.one_off(1)
"""Its shape is in the keys of all windows that are counted apart, however long they are kept."""
_CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-auth-token")
LONGEST_HOLD = 3600.0
"""Seconds that a server's word keeps requests back, at least."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request, as far as pacing needs to know it."""

    method: str
    origin: str
    """Scheme, host and port: ``https://api.example.com:443``."""
    path: str
    headers: Mapping[str, str]
    """By names in lower case."""
    is_replayable: bool
    """Whether its body can be sent twice."""


class Send(NamedTuple):
    """A step of a flow: to send the request. Its outcome is an `Incoming`."""


class Incoming(NamedTuple):
    """What came back."""

    status: int
    fields: Iterable[tuple[str, str]]
    response: Any
    """As the HTTP library has it."""


class WaitTooLong(HeadgateError):
    """The server's limits would keep a request for longer than it may wait.

    A flow returns it; whoever runs the flow raises it only if asked for.
    """

    def __init__(self, retry_after_us: int, answer: Incoming | None = None) -> None:
        super().__init__(retry_after_us, answer)
        self.retry_after_us, self.answer = retry_after_us, answer

    @property
    def retry_after(self) -> float:
        """Seconds until the request might pass."""
        return self.retry_after_us / SECOND

    @property
    def response(self) -> Any:
        """The server's refusal; None if the request was not sent."""
        return self.answer and self.answer.response

    def __str__(self) -> str:
        reason = "it was not sent" if self.answer is None else "the server refused it"
        return f"the server's limits allow this request in {self.retry_after:g} s, later than it may wait: {reason}"


Step = Pause | Call | Send
Flow: TypeAlias = Generator[Step, Any, T]
"""Is sent the decision of a call, and the answer to a request."""
KeyOf = Callable[[Outgoing], str]


class Pacer:
    """Knows the limits of all servers that were asked through it; several clients may have it in common.

    Args:
        max_wait: seconds that a request may wait in all, before it is sent and before it is sent again.
        retries: how often a request that is refused may be sent again, if it is safe to.
        longest_hold: seconds that a server's word keeps requests back, at most: then one is sent to see. By default an
            hour, or `max_wait` if that is longer.
        key: whose limits a request falls under; default: those of its origin and its credential.
        clock: where time comes from, for tests.
        jitter: returns a number from 0 to 1 by which waits are made longer, by up to a tenth, for tests.

    Safe for use from threads and tasks. It remembers the origins that were used last, `MOST_ORIGINS` of them.
    """

    def __init__(
        self,
        *,
        max_wait: float = 60.0,
        retries: int = 3,
        longest_hold: float | None = None,
        key: KeyOf | None = None,
        clock: Clock | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.max_wait = _seconds("max_wait", max_wait)
        hold = max(LONGEST_HOLD, max_wait) if longest_hold is None else _seconds("longest_hold", longest_hold)
        self._longest_hold_us = max(1, round(hold * SECOND))
        self.retries = whole("retries", retries, 0, 100, UsageError)
        if key is not None and not callable(key):
            raise UsageError(f"key is a function that makes text of an Outgoing, not {short(key)}")
        self.clock = clock or SystemClock()
        self._key, self._jitter = key or _default_key, jitter
        self._lock = new_lock()
        self._lines = WaitingLines()
        self._origins: OrderedDict[str, _Origin] = OrderedDict()

    def exchange(self, request: Outgoing, ticket: Ticket, *, is_shared: bool = False) -> Flow[Incoming | WaitTooLong]:
        """Send a request when the limits of its server allow it; again, if it is refused and that is safe."""
        clock = self.clock
        give_up = clock.ticks() + round(self.max_wait * SECOND)
        may_repeat = request.is_replayable and (request.method in IDEMPOTENT or "idempotency-key" in request.headers)
        left = self.retries if may_repeat else 0
        answer: Incoming | None = None
        origin = self._origin(request)
        route = _segment(request.path)
        while True:
            sent = yield from self._turn(origin, route, ticket, give_up, is_shared=is_shared)
            if isinstance(sent, WaitTooLong):
                return WaitTooLong(sent.retry_after_us, answer)
            try:
                answer = yield Send()
            except BaseException:
                with self._lock:
                    origin.lost(clock.ticks(), sent)
                self._wake(origin)
                raise
            now = clock.ticks()
            notice = fields.read(answer.fields, clock.now())
            with self._lock:
                origin.learn_time(now, notice, clock.now())
                refused = origin.learn(now, answer.status, notice, sent, self._jitter())
                uncounted = origin.uncounted(now, sent) if is_shared else []
            self._wake(origin)
            for cost, limit, floor in uncounted:
                if floor is not None:  # what others counted while the request was under way, it knows of
                    counted: Decision = yield Call(Verb.PEEK, (limit,))
                    cost = min(cost, counted.remaining - floor)  # noqa: PLW2901  fewer of them are unknown
                if cost > 0:
                    yield Call(Verb.CHECK, (limit,), cost)
            if not refused:
                return answer
            if not left:
                return WaitTooLong(max(1, origin.ready_at(route, now, is_shared=False) - now), answer)
            left -= 1

    def _turn(
        self, origin: _Origin, route: str, ticket: Ticket, give_up: int, *, is_shared: bool
    ) -> Flow[_Sending | WaitTooLong]:
        """Wait until a request may be sent, behind those who wait already."""
        clock, line = self.clock, f"{origin.key} {route}"
        self._lines.join(line, ticket)
        try:
            while True:
                ticket.settle()  # a call from here on is noticed by the next pause
                now = clock.ticks()
                with self._lock:
                    ready_at = origin.ready_at(route, now, is_shared=is_shared)
                    is_head = self._lines.is_head(line, ticket)
                    plan = origin.plan(route, now) if is_shared else {}
                    if is_head and ready_at <= now and not plan:
                        return origin.send(route, now)
                if is_head and ready_at <= now:
                    decision: Decision = yield Call(Verb.CHECK, tuple(plan.values()))
                    now = clock.ticks()
                    if decision:
                        with self._lock:
                            return origin.send(route, now, plan, decision)
                    with self._lock:
                        ready_at = origin.shared_ready_at(now, plan, decision)
                        if ready_at <= now:
                            return origin.send(route, now)
                if ready_at > give_up or now >= give_up:
                    return WaitTooLong(max(ready_at - now, 1))
                yield Pause(max(ready_at, now + 1) if is_head else give_up)
        finally:
            self._lines.leave(line, ticket)

    def _origin(self, request: Outgoing) -> _Origin:
        key = self._key(request)
        if not isinstance(key, str) or not key:
            raise UsageError(f"the key of a request is text, not {short(key)}")
        with self._lock:
            origin = self._origins.get(key)
            if origin is None:
                origin = self._origins[key] = _Origin(key, self._longest_hold_us)
                if len(self._origins) > MOST_ORIGINS:
                    self._origins.popitem(last=False)
            self._origins.move_to_end(key)
            return origin

    def _wake(self, origin: _Origin) -> None:
        """Have those at the head of a line look again: an answer came."""
        with self._lock:
            routes = tuple(origin.routes)
        for route in routes:
            self._lines.wake(f"{origin.key} {route}")


class _Sending(NamedTuple):
    """A request that is under way: what was known of each of its limits."""

    route: _Route
    at: int
    limits: Mapping[str, Sent]


@dataclass(slots=True)
class _Route:
    """Paths that begin with the same segment."""

    names: tuple[str, ...] = ()
    """Of the limits that they fall under."""
    is_known: bool = False
    under_way: int = 0
    sent_at: int = -PATIENCE_US


@dataclass(slots=True)
class _Origin:
    """All that is known of one server, for one credential."""

    key: str
    longest_hold_us: int
    allowances: OrderedDict[str, Allowance] = field(default_factory=OrderedDict)
    routes: OrderedDict[str, _Route] = field(default_factory=OrderedDict)
    held_until: int = 0
    """The server wants to hear nothing before."""
    guessed: GuessedRate = field(default_factory=GuessedRate)
    """Of requests under no limit that the server tells."""
    ahead_us: int | None = None
    """By how much the server's time since 1970 is surely ahead of our ticks."""

    def ready_at(self, route: str, now: int, *, is_shared: bool) -> int:
        """Return when the next request of a route may be sent: `now` or earlier is at once."""
        if now < self.held_until:
            return self.held_until
        found = self._route(route)
        if not found.is_known and found.under_way:
            return found.sent_at + PATIENCE_US
        if not found.names:
            return max(now, self.guessed.ready_at)
        return max([each.ready_at(now, is_shared=is_shared) for each in self._allowances(found)], default=now)

    def plan(self, route: str, now: int) -> dict[str, Limit]:
        """Return what processes count together for a request of a route."""
        shared = {each.name: each.shared_quota(now) for each in self._allowances(self._route(route))}
        return {name: self._limit(name, *quota) for name, quota in shared.items() if quota}

    def send(
        self, route: str, now: int, plan: Mapping[str, Limit] | None = None, decision: Decision | None = None
    ) -> _Sending:
        """Note that a request of a route is sent."""
        found = self._route(route)
        found.under_way += 1
        found.sent_at = now
        if not found.names:
            self.guessed.sent(now)
        left = {}
        if plan and decision:
            left = {name: part.remaining for name, part in zip(plan, decision.limits, strict=True)}
        limits = {}
        for each in self._allowances(found):
            shared = each.shared_quota(now) if each.name in left else None
            limits[each.name] = each.sent(now, shared[0] if shared else None, left.get(each.name, 0))
        return _Sending(found, now, limits)

    def lost(self, now: int, sending: _Sending) -> None:
        """Note that a request has no answer: the server may have seen it."""
        sending.route.under_way -= 1
        for name, sent in sending.limits.items():
            if name in self.allowances:
                self.allowances[name].answered(now, sent, took=True)

    def learn(self, now: int, status: int, notice: Notice, sending: _Sending, jitter: float) -> bool:
        """Learn what an answer says; tell whether it is a refusal for the sake of a limit."""
        sending.route.under_way -= 1
        refused = _is_refusal(status, notice)
        told = {_name_of(limit): limit for limit in notice.limits}
        for name in sending.limits:
            if name in self.allowances:
                self.allowances[name].answered(now, sending.limits[name], took=not refused)
        for name, limit in told.items():
            allowance = self._allowance(name)
            sent = sending.limits.get(name) or allowance.sent(now)
            if name not in sending.limits:
                allowance.answered(now, sent, took=not refused)
            allowance.told(now, limit, self._reset(now, limit, notice.date_us), sent)
        found = sending.route
        if told or not found.is_known:
            found.names, found.is_known = tuple(told), True
        elif not refused:
            found.names = tuple([name for name in found.names if not sending.limits.get(name, Sent()).is_ahead])
        if refused:
            self._refused(now, notice, told, sending, jitter)
        else:
            self.guessed.passed(now)
        return refused

    def shared_ready_at(self, now: int, plan: Mapping[str, Limit], decision: Decision) -> int:
        """Return when to ask the store again after a refusal; `now` is to send without asking it."""
        return max(
            self._allowance(name).shared_ready_at(now, part.retry_after_us)
            for name, part in zip(plan, decision.limits, strict=True)
            if not part.allowed
        )

    def uncounted(self, now: int, sending: _Sending) -> list[tuple[int, Limit, int | None]]:
        """Return what processes are still to count: what they did not know of when the request was sent.

        Of what others use besides, also the least that they then have left by their own count.
        """
        found: list[tuple[int, Limit, int | None]] = []
        for allowance in self._allowances(sending.route):
            shared, sent = allowance.shared_quota(now), sending.limits.get(allowance.name, Sent())
            if shared:
                limit = self._limit(allowance.name, *shared)
                if shared[0] != sent.counted_in:
                    found.append((1, limit, None))
                elif others := allowance.of_others(sent):
                    found.append((min(others, MAX_COST), limit, sent.shared - others))
        return found

    def _refused(
        self, now: int, notice: Notice, told: Mapping[str, Announced], sending: _Sending, jitter: float
    ) -> None:
        """Stay away for as long as the server says; else for as long as a guess says, and for ever longer."""
        wait = notice.retry_after_us
        empty = [name for name, limit in told.items() if limit.remaining == 0]
        guess = 0 if empty else self.guessed.refused(now, sending.at)
        if wait is None:
            resets = [self._allowance(name).ready_at(now) - now for name in empty]
            wait = max(resets, default=0)
        wait = min(wait or guess, self.longest_hold_us)
        until = now + wait + round(jitter * min(wait // 10, SECOND))
        for name in empty:
            self._allowance(name).exhausted(now, until, sending.limits.get(name, Sent()))
        if not empty:
            self.held_until = max(self.held_until, until)

    def learn_time(self, now: int, notice: Notice, wall: int) -> None:
        """Learn the server's time; `wall` is ours.

        Its dates are rounded down, and some time old when they come: the one that is furthest ahead is nearest. One
        that is far behind says that the clock was set.
        """
        if notice.date_us is not None:
            ahead = notice.date_us - now
            if self.ahead_us is None or not self.ahead_us - 2 * SECOND <= ahead <= self.ahead_us:
                self.ahead_us = ahead
        elif self.ahead_us is None:
            self.ahead_us = wall - now

    def _reset(self, now: int, limit: Announced, date_us: int | None) -> tuple[int, int] | None:
        """Return when a limit is reset: on our clock, and in microseconds since 1970."""
        if limit.reset is None or self.ahead_us is None:
            return None
        us = limit.reset.us
        if limit.reset.is_absolute:
            return min(max(us - self.ahead_us, now), now + LONGEST_US), us
        return now + us, us + (now + self.ahead_us if date_us is None else date_us)

    def _allowance(self, name: str) -> Allowance:
        found = self.allowances.get(name)
        if found is None:
            found = self.allowances[name] = Allowance(name, self.longest_hold_us)
            if len(self.allowances) > MOST_ALLOWANCES:
                self.allowances.popitem(last=False)
        return found

    def _allowances(self, route: _Route) -> list[Allowance]:
        return [self.allowances[name] for name in route.names if name in self.allowances]

    def _route(self, route: str) -> _Route:
        """Return a route; one that is new is under the limits that all others are under, if these are the same."""
        found = self.routes.get(route)
        if found is None:
            kinds = {each.names for each in self.routes.values() if each.is_known}
            found = _Route(kinds.pop(), is_known=True) if len(kinds) == 1 else _Route()
            self.routes[route] = found
            if len(self.routes) > MOST_ROUTES:
                self.routes.popitem(last=False)
        self.routes.move_to_end(route)
        return found

    def _limit(self, name: str, window: str, quota: Quota) -> Limit:
        return Limit(space("polite", quota if quota.limit else _ONE_OFF), bounded(f"{self.key} {name}{window}"), quota)


def _seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_WAIT:
        raise UsageError(f"{name} is a number of seconds from 0 to {LONGEST_WAIT}, not {short(value)}")
    return value


def _is_refusal(status: int, notice: Notice) -> bool:
    """Is this answer for the sake of a limit? GitHub has 403 for some."""
    if status == 429:
        return True
    if status == 503:
        return notice.retry_after_us is not None
    is_empty = any(limit.remaining == 0 for limit in notice.limits)
    return status == 403 and (notice.retry_after_us is not None or is_empty)


def _name_of(limit: Announced) -> str:
    """Return what a limit is known by. Where the server has no names, limits are told apart by their size."""
    return limit.name or f"#{limit.limit}"


def _default_key(request: Outgoing) -> str:
    """Return origin and credential; of the latter, a digest."""
    digest = blake2b(digest_size=8)
    for name in _CREDENTIALS:
        value = request.headers.get(name)
        if value:
            digest.update(f"{name}:{len(value)}:{value}".encode(errors="replace"))
    return f"{request.origin} {digest.hexdigest()}"


def _segment(path: str) -> str:
    return path.partition("?")[0].lstrip("/").partition("/")[0][:64]
