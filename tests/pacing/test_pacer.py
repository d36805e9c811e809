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
from headgate.pacing.pacer import (
    MAX_ALLOWANCES,
    MAX_ORIGINS,
    MAX_ROUTES,
    Incoming,
    Outgoing,
    Pacer,
    Send,
    WaitTooLong,
)
from headgate.waiting import Pause
from tests.pacing.simulation import START, STYLES, Fleet, Server, Ticket, World, request

WINDOWED = ("headgate", "ietf", "draft_7")
"""Styles that tell the window."""


def told(*fields: tuple[str, str], status: int = 200) -> Incoming:
    return Incoming(status, fields, None)


class Says:
    """A server that says the same to everybody, or the next of several things, the last of them for good."""

    def __init__(self, *answers: Incoming) -> None:
        self.answers, self.times = list(answers), list[int]()

    def answer(self, now: int) -> Incoming:
        self.times.append(now)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def exchanged(pacer: Pacer, world: World, server: Any, asked: Outgoing) -> Any:
    """Exchange one request, whatever time it takes."""
    outcomes: list[Any] = []
    world.exchange(pacer, asked, server, outcomes.append, shared=False)
    world.run(100_000)
    (outcome,) = outcomes
    return outcome


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_log", "gcra", "token_bucket"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("workers", [1, 8])
def test_one_process_takes_no_longer_than_it_must_and_is_not_refused(algorithm: str, style: str, workers: int) -> None:
    """Within 5 % of the ideal schedule, and at most 1 % refused, though the server's clock is another one."""
    quota, requests = Quota(40, 60 * SECOND, algorithm=Algorithm.named(algorithm)), 580
    world = World(seed=workers, time=START + 17_300_000)
    server = Server(quota, STYLES[style], skew_us=-730_000)
    best = ideal(quota, requests, world.time + server.skew_us)
    fleet = Fleet(world, server, requests, 1, workers).run()
    assert fleet.failed == []
    assert fleet.ended <= 1.05 * best
    assert server.refused <= 0.01 * requests


@pytest.mark.parametrize(
    ("algorithm", "style"),
    [(algorithm, style) for algorithm in ("sliding_window_log", "gcra", "token_bucket") for style in WINDOWED]
    + [("fixed_window", style) for style in STYLES],
)
def test_four_processes_share_what_there_is(algorithm: str, style: str) -> None:
    """By a store; as fast as one, and as rarely refused."""
    quota, requests = Quota(40, 60 * SECOND, algorithm=Algorithm.named(algorithm)), 580
    world = World(seed=4, time=START + 17_300_000)
    server = Server(quota, STYLES[style], skew_us=1_230_000)
    best = ideal(quota, requests, world.time + server.skew_us)
    fleet = Fleet(world, server, requests, processes=4, workers=4).run()
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
    st.sampled_from(["fixed_window", "sliding_window_log", "gcra", "token_bucket"]),
    st.sampled_from(list(STYLES)),
    st.integers(10, 60),
    st.integers(30, 3600),
    st.integers(-100_000_000, 100_000_000),
    st.integers(1, 12),
    st.integers(0, 1000),
)
def test_whatever_the_limit_every_request_passes_in_about_the_time_that_it_needs(  # noqa: PLR0917  hypothesis has them
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
def test_what_others_use_is_left_to_them(style: str) -> None:
    """Somebody else takes half of the limit, as fast as we do: each gets on, and few requests are refused."""
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


def test_a_limit_that_is_not_told_is_not_invented() -> None:
    """A server without such fields is asked as fast as callers want, once its first answer has come."""
    world = World()
    server = Says(told(("Content-Type", "text/plain")))
    fleet = Fleet(world, server, 300, 1, 30).run()
    assert fleet.failed == []
    assert fleet.ended < 2 * SECOND


@pytest.mark.parametrize(
    ("method", "headers", "is_replayable", "sent"),
    [
        ("GET", {}, True, 2),
        ("PUT", {}, True, 2),
        ("DELETE", {}, True, 2),
        ("POST", {}, True, 1),
        ("PATCH", {}, True, 1),
        ("POST", {"idempotency-key": "order-1"}, True, 2),
        ("PUT", {}, False, 1),
        ("POST", {"idempotency-key": "order-1"}, False, 1),
    ],
)
def test_only_what_is_safe_is_sent_again(
    method: str, headers: dict[str, str], *, is_replayable: bool, sent: int
) -> None:
    world = World()
    server = Says(told(("Retry-After", "2"), status=429), told())
    asked = Outgoing(method, "http://api", "/", headers, is_replayable)
    outcome = exchanged(Pacer(clock=world), world, server, asked)
    assert len(server.times) == sent
    if sent == 1:
        assert isinstance(outcome, WaitTooLong)
        assert outcome.answer
        assert outcome.answer.status == 429
    else:
        assert outcome.status == 200
        assert server.times[1] - server.times[0] >= 2 * SECOND


@pytest.mark.parametrize(
    ("answer", "is_refusal"),
    [
        (told(status=429), True),
        (told(("Retry-After", "2"), status=503), True),
        (told(status=503), False),
        (told(("Retry-After", "6"), status=403), True),
        (told(("x-ratelimit-limit", "9"), ("x-ratelimit-remaining", "0"), status=403), True),
        (told(status=403), False),
        (told(("Retry-After", "2"), status=301), False),
        (told(status=500), False),
    ],
)
def test_what_is_a_refusal_for_the_sake_of_a_limit(answer: Incoming, *, is_refusal: bool) -> None:
    world = World()
    server = Says(answer, told())
    exchanged(Pacer(clock=world), world, server, request())
    assert len(server.times) == 1 + is_refusal


def test_a_refusal_for_longer_than_the_caller_waits_is_returned_at_once() -> None:
    world = World()
    server = Says(told(("Retry-After", "61"), status=429), told())
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


def test_a_server_that_refuses_for_ever_is_asked_ever_more_rarely_and_only_as_often_as_allowed() -> None:
    world = World()
    server = Says(told(status=429))
    outcome = exchanged(Pacer(max_wait=1000, retries=5, clock=world, jitter=lambda: 0.0), world, server, request())
    assert isinstance(outcome, WaitTooLong)
    gaps = [after - before for before, after in zip(server.times, server.times[1:], strict=False)]
    assert len(gaps) == 5
    assert all(gap >= SECOND << place for place, gap in enumerate(gaps))


class Silent(Server):
    """A server that tells no limits, and refuses without saying for how long."""

    def answer(self, now: int) -> Incoming:
        return Incoming(super().answer(now).status, (), None)


@pytest.mark.parametrize("algorithm", ["token_bucket", "fixed_window", "sliding_window_log"])
@pytest.mark.parametrize("limit", [5, 20])
def test_the_rate_of_a_server_that_tells_none_is_found(limit: int, algorithm: str) -> None:
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
    [told(*NONE_LEFT, ("X-RateLimit-Reset", "99999999999")), told(("Retry-After", "99999999999"), status=429)],
    ids=["reset", "retry_after"],
)
def test_a_server_that_announces_absurd_waits_is_asked_again(absurd: Incoming, seconds: int, *, shared: bool) -> None:
    """An hour after it was asked last, or as soon as was set."""
    world, outcomes = World(), list[Any]()
    pacer = Pacer(max_wait=0, clock=world, longest_hold=None if seconds == 3600 else seconds, jitter=lambda: 0.0)
    usual = told(("X-RateLimit-Limit", "9"), ("X-RateLimit-Remaining", "8"), ("X-RateLimit-Reset", "60"))
    server = Says(absurd, absurd, usual)

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


def test_what_processes_count_together_ends_with_its_window() -> None:
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
ABSURD_FIELDS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "X-RateLimit-Limit",
                "X-RateLimit-Remaining",
                "X-RateLimit-Reset",
                "Retry-After",
                "Date",
                "RateLimit-Limit",
                "RateLimit-Remaining",
                "RateLimit-Reset",
                "x-ratelimit-remaining-tokens",
            ]
        ),
        ABSURD,
    ),
    max_size=6,
).map(lambda fields: [*fields, *[("RateLimit", f'"a";r={value};t={value}') for _, value in fields[:1]]])


@given(
    answers=st.lists(st.tuples(st.sampled_from([200, 429, 503, 403]), ABSURD_FIELDS), min_size=1, max_size=6),
    shared=st.booleans(),
)
def test_no_server_crashes_a_client_keeps_it_too_long_or_makes_it_spin(
    answers: list[tuple[int, list[tuple[str, str]]]], *, shared: bool
) -> None:
    world = World()
    server = Says(*(Incoming(status, fields, None) for status, fields in answers))
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
    """Searching waits for its own limit, and nothing else waits for that."""
    world = World()
    pacer = Pacer(max_wait=5, clock=world)

    def of(resource: str, remaining: int) -> Says:
        reset = str(world.now() // SECOND + 600)
        fields = [("x-ratelimit-limit", "30"), ("x-ratelimit-remaining", str(remaining)), ("x-ratelimit-reset", reset)]
        return Says(told(*fields, ("x-ratelimit-resource", resource)))

    assert exchanged(pacer, world, of("core", 29), request(path="/repos/a")).status == 200
    assert exchanged(pacer, world, of("search", 0), request(path="/search/code")).status == 200
    assert isinstance(exchanged(pacer, world, of("search", 0), request(path="/search/users")), WaitTooLong)
    assert exchanged(pacer, world, of("core", 28), request(path="/repos/b")).status == 200


def test_credentials_and_hosts_have_limits_of_their_own() -> None:
    world = World()
    pacer = Pacer(max_wait=5, clock=world)
    empty = Says(told(("X-RateLimit-Limit", "1"), ("X-RateLimit-Remaining", "0"), ("X-RateLimit-Reset", "600")))
    ada, bob = request(authorization="Bearer ada"), request(authorization="Bearer bob")
    assert exchanged(pacer, world, empty, ada).status == 200
    assert isinstance(exchanged(pacer, world, empty, ada), WaitTooLong)
    assert exchanged(pacer, world, empty, bob).status == 200
    elsewhere = Outgoing("GET", "http://other", "/orders", ada.headers, is_replayable=True)
    assert exchanged(pacer, world, empty, elsewhere).status == 200
    together = Pacer(max_wait=5, clock=world, key=lambda _: "all")
    assert exchanged(together, world, empty, ada).status == 200
    assert isinstance(exchanged(together, world, empty, bob), WaitTooLong)


def test_who_gives_up_leaves_the_line_to_the_next() -> None:
    """A caller that is cancelled while it waits, or while its request is under way, stands in nobody's way."""
    world = World()
    pacer = Pacer(max_wait=60, clock=world)
    first, second, third = (pacer.exchange(request(), Ticket(world)) for _ in range(3))
    assert isinstance(next(first), Send)
    assert isinstance(next(second), Pause)  # nothing is known yet: the answer to the first will tell
    assert isinstance(next(third), Pause)
    second.close()
    with pytest.raises(KeyboardInterrupt):
        first.throw(KeyboardInterrupt())
    assert isinstance(third.send(None), Send)
    third.close()
    assert pacer._queues._queues == {}


def test_what_is_remembered_is_bounded() -> None:
    world = World()
    pacer = Pacer(clock=world, key=lambda asked: asked.origin)
    for number in range(max(MAX_ORIGINS, MAX_ROUTES, MAX_ALLOWANCES) + 10):
        server = Says(told(("X-RateLimit-Limit", str(number)), ("X-RateLimit-Remaining", "7")))
        exchanged(pacer, world, server, Outgoing("GET", "http://api", f"/{number}/x", {}, is_replayable=True))
        exchanged(pacer, world, server, Outgoing("GET", f"http://{number}", "/", {}, is_replayable=True))
    assert len(pacer._origins) == MAX_ORIGINS
    origin = pacer._origins["http://api"]
    assert len(origin.routes) <= MAX_ROUTES
    assert len(origin.allowances) <= MAX_ALLOWANCES
    assert pacer._queues._queues == {}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_wait": -1}, "max_wait must be a number of seconds"),
        ({"max_wait": None}, "max_wait must be a number of seconds"),
        ({"max_wait": float("nan")}, "max_wait must be a number of seconds"),
        ({"longest_hold": -1}, "longest_hold must be a number of seconds"),
        ({"retries": -1}, "retries must be a whole number"),
        ({"key": "all"}, "key must be a function"),
    ],
)
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Pacer(**options)
