"""Quotas for tests: a hand-picked list with the awkward ones, and random ones."""

from __future__ import annotations

from hypothesis import strategies as st

from headgate import Algorithm, Calendar, HeadgateError, Quota

SECOND = 1_000_000
DAY = 86_400 * SECOND
ALGORITHMS = list(Algorithm)

AWKWARD = [
    Quota(limit, window, algorithm=algorithm)
    for algorithm in ALGORITHMS
    for limit, window in [
        (1, 1),  # the smallest there is
        (1, SECOND),
        (7, SECOND),  # no whole interval
        (3, 250_000),
        (1_000_003, 999_983),  # several per microsecond, both prime
        (10, 100 * SECOND + 7),
        (5000, DAY),
        (20_011, DAY),  # prime, and long
        (11, 365 * DAY),
        (999_983, DAY),  # not exact in 53 bits, as are the next two
        (13, 366 * DAY + 1),
        (999_999_937, 366 * DAY),
    ]
] + [
    Quota(limit, window, burst=burst, algorithm=algorithm)
    for algorithm in (Algorithm.TOKEN_BUCKET, Algorithm.GCRA, Algorithm.LEAKY_BUCKET)
    for limit, window, burst in [(1, SECOND, 1), (7, SECOND, 13), (10, 60 * SECOND, 3)]
]


@st.composite
def quotas(draw: st.DrawFn, *, algorithms: list[Algorithm] = ALGORITHMS) -> Quota:
    """Any quota, mostly small enough to be exhausted by a test."""
    if draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from([quota for quota in AWKWARD if quota.algorithm in algorithms]))
    algorithm = draw(st.sampled_from(algorithms))
    limit = draw(st.integers(1, 12))
    window = draw(st.one_of(st.integers(1, 100), st.integers(1, 10**7), st.sampled_from([SECOND, 60 * SECOND, DAY])))
    burst = draw(st.integers(0, 6)) if algorithm.is_bucket else 0
    return Quota(limit, window, burst=burst, algorithm=algorithm)


@st.composite
def odd_buckets(draw: st.DrawFn) -> Quota:
    """Token buckets that refill in steps, or not at all: no oracle, but the same laws."""
    window = draw(st.one_of(st.integers(1, 100), st.integers(1, 10**7), st.just(SECOND)))
    if draw(st.booleans()):
        return Quota.one_off(draw(st.integers(1, 12)), keep_us=window)
    every = draw(st.one_of(st.integers(2, 50), st.integers(2, 2 * window + 2)))
    return Quota(draw(st.integers(1, 12)), window, burst=draw(st.integers(0, 6)), refill_every_us=every)


QUEUES = st.builds(
    lambda limit, window, burst: Quota(limit, window, burst=burst, algorithm=Algorithm.LEAKY_BUCKET, queue=True),
    st.integers(1, 12),
    st.integers(1, 10**7),
    st.integers(0, 6),
)


def gaps(quota: Quota) -> st.SearchStrategy[int]:
    """Return times between requests that matter for `quota`: mostly short ones."""
    interval = max(1, quota.window_us // max(1, quota.limit))
    short = st.sampled_from([0, 0, 0, 1, interval // 2, interval, quota.refill_every_us])
    return st.one_of(short, st.integers(0, 2 * interval), st.integers(0, 2 * quota.window_us))


def acceptable(limit: int, window_us: int, burst: int, algorithm: Algorithm) -> Quota | None:
    try:
        return Quota(limit, window_us, burst=burst, algorithm=algorithm)
    except HeadgateError:
        return None


calendars = st.builds(
    lambda limit, unit, zone: Quota.per(limit, Calendar(unit, zone)),
    st.integers(1, 9),
    st.sampled_from(["day", "week", "month", "year"]),
    st.sampled_from(
        ["Europe/Berlin", "UTC", "Australia/Lord_Howe", "Pacific/Apia", "America/Sao_Paulo", "America/St_Johns"]
    ),
)


@st.composite
def calendar_traces(draw: st.DrawFn, quota: Quota) -> list[tuple[int, int]]:
    """Requests as (time, cost) between 1995 and 2060, many of them around the boundaries of periods."""
    assert quota.calendar
    now, trace = draw(st.integers(800_000_000, 2_800_000_000)) * 10**6, []
    costs, from_now = st.integers(1, quota.limit), st.integers(0, 7200 * SECOND) | st.integers(0, 2 * quota.window_us)
    steps = from_now.map(lambda gap: (False, gap)) | st.sampled_from(
        [(False, 0), (False, 0), (False, 1), (True, -1), (True, 0), (True, 1)]
    )
    for _ in range(draw(st.integers(1, 30))):  # strategies are made before: each takes longer than to draw from it
        at_the_end, gap = draw(steps)
        now = (quota.calendar.bounds(now)[1] if at_the_end else now) + gap
        trace.append((now, draw(costs)))
    return trace


@st.composite
def traces(draw: st.DrawFn, quota: Quota) -> list[tuple[int, int]]:
    """Requests as (time, cost), with gaps that matter for `quota`: none, a microsecond, an interval, a window."""
    if quota.calendar:
        return draw(calendar_traces(quota))
    interval = max(1, quota.window_us // max(1, quota.limit))
    gaps = st.one_of(
        st.sampled_from([0, 0, 1, interval, interval + 1, quota.window_us - 1, quota.window_us]),
        st.integers(0, 2 * interval),
        st.integers(0, 2 * quota.window_us),
    )
    costs = st.one_of(st.just(1), st.integers(1, min(quota.capacity, 8)), st.just(min(quota.capacity, 100_000)))
    now = draw(st.integers(0, 10**15)) + 10**15
    trace = []
    for gap, cost in draw(st.lists(st.tuples(gaps, costs), min_size=1, max_size=40)):
        now += max(0, gap)
        trace.append((now, cost))
    return trace
