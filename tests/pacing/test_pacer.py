"""Pacing, in virtual time: as fast as a server's limits allow, hardly ever refused, no longer than a caller waits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.clients.measuring import ideal
from headgate.core.algorithms import Algorithm
from headgate.core.errors import UsageError
from headgate.core.quota import SECOND, Quota
from headgate.pacing.pacer import MAX_ALLOWANCES, MAX_ORIGINS, MAX_ROUTES, Incoming, Outgoing, Pacer, Send, WaitTooLong
from headgate.waiting import Pause
from tests.pacing.simulation import START, STYLES, Fleet, Server, Ticket, World, request

WINDOWED = ("headgate", "ietf", "draft_7")
"""Styles that announce the window."""
ALGORITHMS = ("fixed_window", "sliding_window_log", "gcra", "token_bucket")


def response(*fields: tuple[str, str], status: int = 200) -> Incoming:
    return Incoming(status, fields, None)


class Scripted:
    """A server with prepared responses; it repeats the last one."""

    def __init__(self, *answers: Incoming) -> None:
        self.answers, self.times = list(answers), list[int]()

    def answer(self, now: int) -> Incoming:
        self.times.append(now)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def exchanged(pacer: Pacer, world: World, server: Any, sent: Outgoing) -> Any:
    """Exchange one request, whatever time it takes."""
    outcomes: list[Any] = []
    world.exchange(pacer, sent, server, outcomes.append, shared=False)
    world.run(100_000)
    (outcome,) = outcomes
    return outcome


ALONE = [
    (algorithm, style, 1, 8 if (row + place) % 2 else 1)
    for row, algorithm in enumerate(ALGORITHMS)
    for place, style in enumerate(STYLES)
]
TOGETHER = [
    (algorithm, style, 4, 4)
    for algorithm in ALGORITHMS
    for style in (STYLES if algorithm == "fixed_window" else WINDOWED)
]


@pytest.mark.parametrize(("algorithm", "style", "processes", "workers"), ALONE + TOGETHER)
def test_clients_are_fast_and_hardly_ever_refused(algorithm: str, style: str, processes: int, workers: int) -> None:
    """Within 5 % of the ideal schedule, and at most 1 % refused, though the server's clock is another one.

    Four processes share a store: they are as fast as one, and as rarely refused.
    """
    quota, requests = Quota(40, 60 * SECOND, algorithm=Algorithm.named(algorithm)), 580
    world = World(seed=workers, time=START + 17_300_000)
    server = Server(quota, STYLES[style], skew_us=1_230_000 if processes > 1 else -730_000)
    best = ideal(quota, requests, world.time + server.skew_us)
    fleet = Fleet(world, server, requests, processes, workers).run()
    assert fleet.failed == []
    assert fleet.ended <= 1.05 * best
    assert server.refused <= 0.01 * requests


@pytest.mark.parametrize("algorithm", ["gcra", "token_bucket", "sliding_window_log"])
def test_requests_of_other_processes_that_overtake_are_not_counted_twice(algorithm: str) -> None:
    """On a busy machine, where requests take up to 100 ms on their way: one unit too many costs a window more."""
    (quota,) = Quota.parse(f"40/5s {algorithm}")
    for seed in range(6):
        world = World(seed, longest_us=100_000)
        server = Server(quota, STYLES["headgate"])
        fleet = Fleet(world, server, 160, processes=4, workers=4).run()
        assert fleet.failed == []
        assert fleet.ended <= 1.1 * ideal(quota, 160, START)
        assert server.refused <= 0.01 * 160


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(ALGORITHMS),
    st.sampled_from(list(STYLES)),
    st.integers(10, 60),
    st.integers(30, 3600),
    st.integers(-100_000_000, 100_000_000),
    st.integers(1, 12),
    st.integers(0, 1000),
)
def test_all_requests_pass_in_about_the_ideal_time_under_any_limit(  # noqa: PLR0917  hypothesis has them
    algorithm: str, style: str, limit: int, window_s: int, skew_us: int, workers: int, seed: int
) -> None:
    """Eight windows are few: one more is allowed for what is learned first, and one refusal in each."""
    quota, requests = Quota(limit, window_s * SECOND, algorithm=Algorithm.named(algorithm)), 8 * limit
    world = World(seed, START + seed * 77_777)
    server = Server(quota, STYLES[style], skew_us)
    fleet = Fleet(world, server, requests, 1, workers).run()
    assert fleet.failed == []
    assert fleet.ended <= 1.05 * ideal(quota, requests, START) + 2 * window_s * SECOND
    assert server.refused <= 8 + 0.02 * requests


@pytest.mark.parametrize("style", ["github", "ietf"])
def test_the_share_of_other_clients_is_left_to_them(style: str) -> None:
    """Another client uses half of the limit, as fast as we do: both progress, and few requests are refused."""
    quota = Quota(100, 60 * SECOND, algorithm=Algorithm.FIXED_WINDOW)
    world = World(seed=3)
    server = Server(quota, STYLES[style])

    class Busy:
        def answer(self, now: int) -> Incoming:
            server.take(now)
            return server.answer(now)

    fleet = Fleet(world, Busy(), 400, 1, 4).run()
    assert fleet.failed == []
    assert server.refused <= 0.02 * 400


def test_a_server_without_limits_is_not_slowed_down() -> None:
    """Without such fields, requests are sent as fast as callers want, after the first response."""
    world = World()
    server = Scripted(response(("Content-Type", "text/plain")))
    fleet = Fleet(world, server, 300, 1, 30).run()
    assert fleet.failed == []
    assert fleet.ended < 2 * SECOND


def test_only_requests_that_are_safe_to_repeat_are_retried() -> None:
    key = {"idempotency-key": "order-1"}
    none: dict[str, str] = {}
    safe = ("GET", none, True), ("PUT", none, True), ("DELETE", none, True), ("POST", key, True)
    unsafe = ("POST", none, True), ("PATCH", none, True), ("PUT", none, False), ("POST", key, False)
    for method, headers, is_replayable in (*safe, *unsafe):
        world = World()
        server = Scripted(response(("Retry-After", "2"), status=429), response())
        sent = Outgoing(method, "http://api", "/", headers, is_replayable)
        outcome = exchanged(Pacer(clock=world), world, server, sent)
        if (method, headers, is_replayable) in safe:
            assert outcome.status == 200
            assert server.times[1] - server.times[0] >= 2 * SECOND
        else:
            assert isinstance(outcome, WaitTooLong)
            assert (len(server.times), outcome.answer and outcome.answer.status) == (1, 429), method


def test_which_responses_are_refusals_by_a_limit() -> None:
    empty = response(("x-ratelimit-limit", "9"), ("x-ratelimit-remaining", "0"), status=403)
    refusals = (
        response(status=429),
        response(("Retry-After", "2"), status=503),
        response(("Retry-After", "6"), status=403),
        empty,
    )
    others = (
        response(status=503),
        response(status=403),
        response(("Retry-After", "2"), status=301),
        response(status=500),
    )
    for answer in (*refusals, *others):
        world = World()
        server = Scripted(answer, response())
        exchanged(Pacer(clock=world), world, server, request())
        assert len(server.times) == 1 + (answer in refusals), answer


def test_a_refusal_for_longer_than_the_caller_waits_is_returned_at_once() -> None:
    world = World()
    server = Scripted(response(("Retry-After", "61"), status=429), response())
    pacer = Pacer(max_wait=60, clock=world)
    start = world.ticks()
    outcome = exchanged(pacer, world, server, request())
    assert isinstance(outcome, WaitTooLong)
    assert outcome.answer
    assert outcome.retry_after_us >= 61 * SECOND
    assert world.ticks() - start < SECOND
    again = exchanged(pacer, world, server, request())  # known by now: not even sent
    assert isinstance(again, WaitTooLong)
    assert again.answer is None
    assert len(server.times) == 1
    world.after(62 * SECOND + SECOND, lambda: None)
    world.run()
    assert exchanged(pacer, world, server, request()).status == 200


def test_retries_back_off_and_are_bounded() -> None:
    world = World()
    server = Scripted(response(status=429))
    outcome = exchanged(Pacer(max_wait=1000, retries=5, clock=world, jitter=lambda: 0.0), world, server, request())
    assert isinstance(outcome, WaitTooLong)
    gaps = [after - before for before, after in zip(server.times, server.times[1:], strict=False)]
    assert len(gaps) == 5
    assert all(gap >= SECOND << place for place, gap in enumerate(gaps))


class Silent(Server):
    """A server that announces no limits, and refuses without a time."""

    def answer(self, now: int) -> Incoming:
        return Incoming(super().answer(now).status, (), None)


@pytest.mark.parametrize("algorithm", ["token_bucket", "fixed_window", "sliding_window_log"])
@pytest.mark.parametrize("limit", [5, 20])
def test_the_rate_of_a_server_that_announces_none_is_found(limit: int, algorithm: str) -> None:
    """All of a burst pass; then it is used well, and few requests are refused."""
    quota = Quota(limit, SECOND, algorithm=Algorithm.named(algorithm))
    world = World(seed=1)
    server = Silent(quota, STYLES["delta"])
    burst = Fleet(world, server, 100, 1, workers=100, max_wait=60).run()
    assert burst.failed == []
    assert burst.ended <= 1.5 * ideal(quota, 100, START)
    world, server = World(seed=1), Silent(quota, STYLES["delta"])
    steady = Fleet(world, server, 600, 1, workers=8, max_wait=60).run()
    assert steady.failed == []
    assert steady.ended <= 1.5 * ideal(quota, 600, START)
    assert server.refused <= 0.05 * 600


NONE_LEFT = ("X-RateLimit-Limit", "9"), ("X-RateLimit-Remaining", "0")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("seconds", [3600, 600])
@pytest.mark.parametrize(
    "absurd",
    [response(*NONE_LEFT, ("X-RateLimit-Reset", "99999999999")), response(("Retry-After", "99999999999"), status=429)],
    ids=["reset", "retry_after"],
)
def test_absurd_waits_end_with_a_probe(absurd: Incoming, seconds: int, *, shared: bool) -> None:
    """An hour after the last request, or after `longest_hold`."""
    world, outcomes = World(), list[Any]()
    pacer = Pacer(max_wait=0, clock=world, longest_hold=None if seconds == 3600 else seconds, jitter=lambda: 0.0)
    usual = response(("X-RateLimit-Limit", "9"), ("X-RateLimit-Remaining", "8"), ("X-RateLimit-Reset", "60"))
    server = Scripted(absurd, absurd, usual)

    def ask() -> None:
        world.exchange(pacer, request(), server, outcomes.append, shared=shared)

    for at in range(2 * seconds + 100):
        world.at(SECOND * (1 + at), ask)
    world.run()
    first, second, third, *others = [round((each - START) / SECOND) for each in server.times]
    assert second - first == pytest.approx(seconds, abs=2)
    assert third - second == pytest.approx(seconds, abs=2)
    assert others[0] - third <= 2
    assert all(each.retry_after_us <= seconds * SECOND for each in outcomes if isinstance(each, WaitTooLong))


def test_shared_counts_expire_with_their_window() -> None:
    """Fifteen windows of ten seconds have fifteen keys, of which the store keeps those of the last few."""
    world = World()
    server = Server(Quota(20, 10 * SECOND, algorithm=Algorithm.FIXED_WINDOW), STYLES["github"])
    fleet = Fleet(world, server, 300, processes=2, workers=2).run()
    assert fleet.failed == []
    assert 0 < len(world.store) <= 4


ABSURD = st.one_of(
    st.sampled_from(["-1", "0", "1", "NaN", "inf", "9" * 400, "1e400", "garbage", "", "10, 3", "999999999999999"]),
    st.sampled_from(["Mon, 01 Jan 0001 00:00:00 GMT", "0001-01-01T00:00:00Z", "1", "1000000000", "20ms", "-5s"]),
    st.integers(-(10**20), 10**20).map(str),
)
NAMES = """
    X-RateLimit-Limit X-RateLimit-Remaining X-RateLimit-Reset Retry-After Date RateLimit-Limit RateLimit-Remaining
    RateLimit-Reset x-ratelimit-remaining-tokens
"""
ABSURD_FIELDS = st.lists(st.tuples(st.sampled_from(NAMES.split()), ABSURD), max_size=6).map(
    lambda fields: [*fields, *[("RateLimit", f'"a";r={value};t={value}') for _, value in fields[:1]]]
)


@given(
    answers=st.lists(st.tuples(st.sampled_from([200, 429, 503, 403]), ABSURD_FIELDS), min_size=1, max_size=6),
    shared=st.booleans(),
)
def test_no_server_crashes_a_client_keeps_it_too_long_or_makes_it_spin(
    answers: list[tuple[int, list[tuple[str, str]]]], *, shared: bool
) -> None:
    world = World()
    server = Scripted(*(Incoming(status, fields, None) for status, fields in answers))
    pacer = Pacer(max_wait=20, clock=world)
    outcomes: list[Any] = []
    longest = 0

    def one(left: int) -> None:
        start = world.ticks()

        def done(outcome: Any) -> None:
            nonlocal longest
            outcomes.append(outcome)
            longest = max(longest, world.ticks() - start)
            if left:
                one(left - 1)

        world.exchange(pacer, request(), server, done, shared=shared)

    for _ in range(3):
        one(4)
    world.run(20_000)
    assert len(outcomes) == 15
    assert longest <= 21 * SECOND


def test_limits_of_github_are_kept_apart_by_resource() -> None:
    """Searches wait for their own limit, and other requests do not."""
    world = World()
    pacer = Pacer(max_wait=5, clock=world)

    def of(resource: str, remaining: int) -> Scripted:
        reset = str(world.now() // SECOND + 600)
        fields = [("x-ratelimit-limit", "30"), ("x-ratelimit-remaining", str(remaining)), ("x-ratelimit-reset", reset)]
        return Scripted(response(*fields, ("x-ratelimit-resource", resource)))

    assert exchanged(pacer, world, of("core", 29), request(path="/repos/a")).status == 200
    assert exchanged(pacer, world, of("search", 0), request(path="/search/code")).status == 200
    assert isinstance(exchanged(pacer, world, of("search", 0), request(path="/search/users")), WaitTooLong)
    assert exchanged(pacer, world, of("core", 28), request(path="/repos/b")).status == 200


def test_credentials_and_hosts_have_limits_of_their_own() -> None:
    world = World()
    pacer = Pacer(max_wait=5, clock=world)
    empty = Scripted(response(("X-RateLimit-Limit", "1"), ("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "600")))
    ada, bob = request(authorization="Bearer ada"), request(authorization="Bearer bob")
    assert exchanged(pacer, world, empty, ada).status == 200
    assert isinstance(exchanged(pacer, world, empty, ada), WaitTooLong)
    assert exchanged(pacer, world, empty, bob).status == 200
    elsewhere = Outgoing("GET", "http://other", "/orders", ada.headers, is_replayable=True)
    assert exchanged(pacer, world, empty, elsewhere).status == 200
    together = Pacer(max_wait=5, clock=world, key=lambda _: "all")
    assert exchanged(together, world, empty, ada).status == 200
    assert isinstance(exchanged(together, world, empty, bob), WaitTooLong)


def test_cancelled_callers_leave_the_queue() -> None:
    """A caller may be cancelled while it waits, or while its request is in flight."""
    world = World()
    pacer = Pacer(max_wait=60, clock=world)
    first, second, third = (pacer.exchange(request(), Ticket(world)) for _ in range(3))
    assert isinstance(next(first), Send)
    assert isinstance(next(second), Pause)  # nothing is known yet but the first request
    assert isinstance(next(third), Pause)
    second.close()
    with pytest.raises(KeyboardInterrupt):
        first.throw(KeyboardInterrupt())
    assert isinstance(third.send(None), Send)
    third.close()
    assert pacer._queues._queues == {}


def test_caches_are_bounded() -> None:
    world = World()
    pacer = Pacer(clock=world, key=lambda sent: sent.origin)
    for number in range(max(MAX_ORIGINS, MAX_ROUTES, MAX_ALLOWANCES) + 10):
        server = Scripted(response(("X-RateLimit-Limit", str(number)), ("X-RateLimit-Remaining", "7")))
        exchanged(pacer, world, server, Outgoing("GET", "http://api", f"/{number}/x", {}, is_replayable=True))
        exchanged(pacer, world, server, Outgoing("GET", f"http://{number}", "/", {}, is_replayable=True))
    assert len(pacer._origins) == MAX_ORIGINS
    origin = pacer._origins["http://api"]
    assert len(origin.routes) <= MAX_ROUTES
    assert len(origin.allowances) <= MAX_ALLOWANCES
    assert pacer._queues._queues == {}


def test_settings_that_cannot_work_are_refused() -> None:
    wrong: list[dict[str, Any]] = [{"max_wait": -1}, {"max_wait": None}, {"max_wait": float("nan")}]
    for options in (*wrong, {"longest_hold": -1}, {"retries": -1}, {"key": "all"}):
        with pytest.raises(
            UsageError, match=f"{next(iter(options))} must be a (number of seconds|whole number|function)"
        ):
            Pacer(**options)
