"""What came back from servers, in numbers."""

from __future__ import annotations

from headgate.clock import BUCKETS
from headgate.stores.traffic import Traffic


def test_batches_their_calls_and_durations_are_counted() -> None:
    traffic = Traffic()
    assert traffic.statistics() == (0, 0, (0,) * (BUCKETS + 1))
    traffic.replied(1, 5_000)
    traffic.replied(30, 15_000)
    traffic.replied(9, 15_000)
    batches, calls, durations = traffic.statistics()
    assert (batches, calls) == (3, 40)
    assert durations[:3] == (1, 2, 0)
    assert durations[-1] == 35_000
