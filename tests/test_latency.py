"""Buckets of durations: each has one, and the bounds say which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.latency import BOUNDS_NS, BUCKETS, FINEST_NS, bucket_of


@given(st.integers(0, 2**63 - 1))
def test_every_duration_has_the_first_bucket_whose_bound_is_above_it(elapsed_ns: int) -> None:
    bucket = bucket_of(elapsed_ns)
    assert 0 <= bucket < BUCKETS
    assert elapsed_ns < FINEST_NS << bucket
    assert bucket == 0 or elapsed_ns >= FINEST_NS << (bucket - 1)


@pytest.mark.parametrize(
    ("elapsed_ns", "bucket"), [(0, 0), (9_999, 0), (10_000, 1), (19_999, 1), (20_000, 2), (1_000_000, 7)]
)
def test_durations_have_these_buckets(elapsed_ns: int, bucket: int) -> None:
    assert bucket_of(elapsed_ns) == bucket


def test_the_bounds_that_are_shown_go_from_10_microseconds_to_over_a_second() -> None:
    assert (BOUNDS_NS[0], BOUNDS_NS[-1]) == (10_000, 1_310_720_000)
