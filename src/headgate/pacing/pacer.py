"""Pace requests to servers with rate limits; the transports for httpx, requests and aiohttp share it.

`Pacer.exchange` is a flow (see `headgate.flows`): it yields a pause, a call of the shared store, or the request itself,
and receives the outcome.

::

    exchange ── queue ── wait for the limits ── Send ── read the response ── refused and retryable? ──┐
                  ^         (Allowance)               (headgate.pacing.fields)                        │
                  └───────────────────────────────────────────────────────────────────────────────────┘

Limits belong to an *origin* (scheme, host, port) and a *credential*. The limits of a request are those of the last
response for a path with the same first segment. The first request is sent alone, since its response announces the
limits; others wait for that, a second at most.
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
from headgate.core.quota import SECOND, Quota
from headgate.locks import new_lock
from headgate.pacing import fields
from headgate.pacing.allowance import PROBE_TIMEOUT_US, Allowance, Sent
from headgate.pacing.fields import LONGEST_US, Announced, Notice
from headgate.pacing.guessed_rate import GuessedRate
from headgate.waiting import Pause, Ticket, WaitQueues

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "PUT", "DELETE", "TRACE"})
"""Methods that may be retried (RFC 9110)."""
LONGEST_WAIT = 30 * 24 * 3600
"""Largest value of options, in seconds."""
MAX_ORIGINS, MAX_ROUTES, MAX_ALLOWANCES = 512, 128, 32
_ONE_OFF = Quota.one_off(1)
"""Its shape is part of the keys of separately counted windows, whatever their retention."""
_CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-auth-token")
LONGEST_HOLD = 3600.0
"""Default of `longest_hold`, in seconds."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The properties of a request that pacing needs."""

    method: str
    origin: str
    """Scheme, host and port: ``https://api.example.com:443``."""
    path: str
    headers: Mapping[str, str]
    """By lower-case name."""
    is_replayable: bool
    """Whether the body can be sent twice."""


class Send(NamedTuple):
    """A step of a flow: send the request. Its outcome is an `Incoming`."""

    refused: Any = None
    """The response of the previous attempt, to be closed first."""


class Incoming(NamedTuple):
    status: int
    fields: Iterable[tuple[str, str]]
    response: Any
    """The HTTP library's object."""


class WaitTooLong(HeadgateError):
    """The server's limits would delay a request for longer than it may wait.

    A flow returns it; transports raise it only on request.
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
        return f"the server's limits allow this request in {self.retry_after:g} s, after its longest wait: {reason}"


Step = Pause | Call | Send
Flow: TypeAlias = Generator[Step, Any, T]
KeyOf = Callable[[Outgoing], str]


class Pacer:
    """The known limits of servers; several clients may share one.

    Args:
        max_wait: seconds that a request may wait in total, including before retries.
        retries: how often a refused request may be sent again, if that is safe.
        longest_hold: seconds after which a request is sent as a probe, whatever limits the server announced. Default:
            an hour, or `max_wait` if that is longer.
        key: a function from a request to the owner of its limits; default: its origin and its credential.
        clock: the source of time, for tests.
        jitter: returns a number from 0 to 1 that lengthens waits by up to a tenth, for tests.

    Safe for threads and tasks. It keeps the `MAX_ORIGINS` most recently used origins.
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
            raise UsageError(f"key must be a function from an Outgoing to text, not {short(key)}")
        self.clock = clock or SystemClock()
        self._key, self._jitter = key or _default_key, jitter
        self._lock = new_lock()
        self._queues = WaitQueues()
        self._origins: OrderedDict[str, _Origin] = OrderedDict()

    def exchange(self, request: Outgoing, ticket: Ticket, *, is_shared: bool = False) -> Flow[Incoming | WaitTooLong]:
        """Send a request once its server's limits allow it; retry a refused one if that is safe."""
        clock = self.clock
        give_up = clock.ticks() + round(self.max_wait * SECOND)
        may_repeat = request.is_replayable and (request.method in IDEMPOTENT or "idempotency-key" in request.headers)
        left = self.retries if may_repeat else 0
        answer: Incoming | None = None
        origin = self._origin(request)
        route = request.path.partition("?")[0].lstrip("/").partition("/")[0][:64]
        while True:
            sent = yield from self._turn(origin, route, ticket, give_up, is_shared=is_shared)
            if isinstance(sent, WaitTooLong):
                return WaitTooLong(sent.retry_after_us, answer)
            try:
                answer = yield Send(answer and answer.response)
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
                if floor is not None:  # others have counted some of it while the request was in flight
                    counted: Decision = yield Call(Verb.PEEK, (limit,))
                    cost = min(cost, counted.remaining - floor)  # noqa: PLW2901
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
        clock, queue = self.clock, f"{origin.key} {route}"
        self._queues.join(queue, ticket)
        try:
            while True:
                ticket.settle()  # a wake-up from here on ends the next pause
                now = clock.ticks()
                with self._lock:
                    ready_at = origin.ready_at(route, now, is_shared=is_shared)
                    is_head = self._queues.is_head(queue, ticket)
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
            self._queues.leave(queue, ticket)

    def _origin(self, request: Outgoing) -> _Origin:
        key = self._key(request)
        if not isinstance(key, str) or not key:
            raise UsageError(f"the key of a request must be text, not {short(key)}")
        with self._lock:
            origin = self._origins.get(key)
            if origin is None:
                origin = self._origins[key] = _Origin(key, self._longest_hold_us)
                if len(self._origins) > MAX_ORIGINS:
                    self._origins.popitem(last=False)
            self._origins.move_to_end(key)
            return origin

    def _wake(self, origin: _Origin) -> None:
        """Wake the heads of the queues after a response."""
        with self._lock:
            routes = tuple(origin.routes)
        for route in routes:
            self._queues.wake(f"{origin.key} {route}")


class _Sending(NamedTuple):
    """A request in flight, with the state of each of its limits."""

    route: _Route
    at: int
    limits: Mapping[str, Sent]


@dataclass(slots=True)
class _Route:
    """Paths that begin with the same segment."""

    names: tuple[str, ...] = ()
    """Of their limits."""
    is_known: bool = False
    under_way: int = 0
    sent_at: int = -PROBE_TIMEOUT_US


@dataclass(slots=True)
class _Origin:
    """The known limits of one server for one credential."""

    key: str
    longest_hold_us: int
    allowances: OrderedDict[str, Allowance] = field(default_factory=OrderedDict)
    routes: OrderedDict[str, _Route] = field(default_factory=OrderedDict)
    held_until: int = 0
    """Send nothing before: the server refused until then."""
    guessed: GuessedRate = field(default_factory=GuessedRate)
    """For requests without an announced limit."""
    ahead_us: int | None = None
    """The server's time since 1970 minus our ticks, at least."""

    def ready_at(self, route: str, now: int, *, is_shared: bool) -> int:
        """Return when the next request of a route may be sent; `now` or earlier means immediately."""
        if now < self.held_until:
            return self.held_until
        found = self._route(route)
        if not found.is_known and found.under_way:
            return found.sent_at + PROBE_TIMEOUT_US
        if not found.names:
            return max(now, self.guessed.ready_at)
        return max([each.ready_at(now, is_shared=is_shared) for each in self._allowances(found)], default=now)

    def plan(self, route: str, now: int) -> dict[str, Limit]:
        """Return the limits that processes count together for a route."""
        shared = {each.name: each.shared_quota(now) for each in self._allowances(self._route(route))}
        return {name: self._limit(name, *quota) for name, quota in shared.items() if quota}

    def send(
        self, route: str, now: int, plan: Mapping[str, Limit] | None = None, decision: Decision | None = None
    ) -> _Sending:
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
        """Record a request without a response: the server may have seen it."""
        self._record_answer(now, sending, sending.limits, took=True)

    def learn(self, now: int, status: int, notice: Notice, sending: _Sending, jitter: float) -> bool:
        """Apply a response; return whether a limit refused the request."""
        refused = _is_refusal(status, notice)
        announced = {limit.name or f"#{limit.limit}": limit for limit in notice.limits}  # nameless ones: by their size
        first = {name: self._allowance(name).sent(now) for name in announced if name not in sending.limits}
        sent = {**sending.limits, **first}
        self._record_answer(now, sending, sent, took=not refused)
        for name, limit in announced.items():
            self._allowance(name).update(now, limit, self._reset(now, limit, notice.date_us), sent[name])
        found = sending.route
        if announced or not found.is_known:
            found.names, found.is_known = tuple(announced), True
        elif not refused:
            found.names = tuple([name for name in found.names if not sending.limits.get(name, Sent()).is_probe])
        if refused:
            self._record_refusal(now, notice, announced, sending, jitter)
        else:
            self.guessed.passed(now)
        return refused

    def _record_answer(self, now: int, sending: _Sending, limits: Mapping[str, Sent], *, took: bool) -> None:
        sending.route.under_way -= 1
        for name, sent in limits.items():
            if name in self.allowances:
                self.allowances[name].answered(now, sent, took=took)

    def shared_ready_at(self, now: int, plan: Mapping[str, Limit], decision: Decision) -> int:
        """Return when to try the store again after its refusal; `now` means to send without it."""
        return max(
            self._allowance(name).shared_ready_at(now, part.retry_after_us)
            for name, part in zip(plan, decision.limits, strict=True)
            if not part.allowed
        )

    def uncounted(self, now: int, sending: _Sending) -> list[tuple[int, Limit, int | None]]:
        """Return the costs and limits that the shared count still lacks.

        Usage by other clients comes with a floor: the shared remainder once it is counted.
        """
        found: list[tuple[int, Limit, int | None]] = []
        for allowance in self._allowances(sending.route):
            shared, sent = allowance.shared_quota(now), sending.limits.get(allowance.name, Sent())
            if shared:
                limit = self._limit(allowance.name, *shared)
                if shared[0] != sent.counted_in:
                    found.append((1, limit, None))
                elif others := allowance.used_by_others(sent):
                    found.append((min(others, MAX_COST), limit, sent.shared - others))
        return found

    def _record_refusal(
        self, now: int, notice: Notice, announced: Mapping[str, Announced], sending: _Sending, jitter: float
    ) -> None:
        """Hold requests for as long as the server announced, else for an estimated and growing time."""
        wait = notice.retry_after_us
        empty = [name for name, limit in announced.items() if limit.remaining == 0]
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
        """Update the offset of the server's clock; `wall` is our time since 1970.

        Dates are rounded down and late by the latency, so the largest offset is the most exact. A much smaller one
        means that the clock was set back.
        """
        if notice.date_us is not None:
            ahead = notice.date_us - now
            if self.ahead_us is None or not self.ahead_us - 2 * SECOND <= ahead <= self.ahead_us:
                self.ahead_us = ahead
        elif self.ahead_us is None:
            self.ahead_us = wall - now

    def _reset(self, now: int, limit: Announced, date_us: int | None) -> tuple[int, int] | None:
        """Return the time of a limit's reset: on our clock, and in microseconds since 1970."""
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
            if len(self.allowances) > MAX_ALLOWANCES:
                self.allowances.popitem(last=False)
        return found

    def _allowances(self, route: _Route) -> list[Allowance]:
        return [self.allowances[name] for name in route.names if name in self.allowances]

    def _route(self, route: str) -> _Route:
        """Return a route; a new one starts with the limits of all others, if these agree."""
        found = self.routes.get(route)
        if found is None:
            kinds = {each.names for each in self.routes.values() if each.is_known}
            found = _Route(kinds.pop(), is_known=True) if len(kinds) == 1 else _Route()
            self.routes[route] = found
            if len(self.routes) > MAX_ROUTES:
                self.routes.popitem(last=False)
        self.routes.move_to_end(route)
        return found

    def _limit(self, name: str, window: str, quota: Quota) -> Limit:
        return Limit(space("polite", quota if quota.limit else _ONE_OFF), bounded(f"{self.key} {name}{window}"), quota)


def _seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LONGEST_WAIT:
        raise UsageError(f"{name} must be a number of seconds from 0 to {LONGEST_WAIT}, not {short(value)}")
    return value


def _is_refusal(status: int, notice: Notice) -> bool:
    """Return whether a limit refused the request. GitHub uses 403 for some."""
    if status == 429:
        return True
    if status == 503:
        return notice.retry_after_us is not None
    is_empty = any(limit.remaining == 0 for limit in notice.limits)
    return status == 403 and (notice.retry_after_us is not None or is_empty)


def _default_key(request: Outgoing) -> str:
    """Return the origin and a digest of the credential."""
    digest = blake2b(digest_size=8)
    for name in _CREDENTIALS:
        value = request.headers.get(name)
        if value:
            digest.update(f"{name}:{len(value)}:{value}".encode(errors="replace"))
    return f"{request.origin} {digest.hexdigest()}"
