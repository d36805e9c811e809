"""The functions that a store in memory binds to limits: they decide as the pure core does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hypothesis import given
from hypothesis import strategies as st

from headgate import Algorithm, Decision, Limiter, MemoryStore, Quota
from headgate.core.plan import Call, Family, Verb
from headgate.testing import ManualClock
from headgate.testing.reference import ReferenceStore
from headgate.testing.samples import CALENDARS
from tests.core.quotas import odd_buckets, quotas

QUEUE = Quota(5, 1_000_000, algorithm=Algorithm.LEAKY_BUCKET, queue=True)
MANY = st.lists(
    st.one_of(quotas(), odd_buckets(), st.sampled_from([QUEUE, *CALENDARS])),
    min_size=1,
    max_size=5,
    unique_by=lambda quota: quota.shape,
)
MOMENTS = st.lists(st.tuples(st.integers(0, 2_000_000), st.integers(0, 3)), min_size=1, max_size=30)
"""What passes before a call, in microseconds, and its cost."""


def both(limits: Sequence[Quota], moments: list[tuple[int, int]]) -> Iterator[tuple[Decision, Decision]]:
    """Yield what a bound check and the pure core say at each of the moments."""
    clock, family = ManualClock(), Family("both", limits)
    check, reference = MemoryStore(clock=clock).bind(family), ReferenceStore(clock)
    most = min(quota.capacity for quota in limits)
    for passes, asked in moments:
        clock.advance(us=passes)
        cost = min(asked, most)
        call = Call(Verb.CHECK, family.plan("user"), cost) if cost else Call(Verb.PEEK, family.plan("user"))
        yield check("user", cost), reference.run(call)


@given(MANY, MOMENTS)
def test_limits_decide_as_the_pure_core_does(limits: list[Quota], moments: list[tuple[int, int]]) -> None:
    for told, expected in list(both(limits, moments)):
        assert told.limits == expected.limits
        assert told == expected


@given(st.permutations([0, 1, 2]))
def test_several_limits_describe_the_one_that_blocks_longest(order: list[int]) -> None:
    texts = ["2/second", "2/minute", "2/hour"]
    limiter = Limiter([texts[number] for number in order], clock=ManualClock())
    assert limiter.check("user", 2)
    refusal = limiter.check("user")
    assert (refusal.index, str(refusal.quota)) == (order.index(2), "2/hour")
    assert [part.allowed for part in refusal.limits] == [False, False, False]
