"""What observing costs is measured by itself."""

from __future__ import annotations

from benchmarks.service import observing
from benchmarks.timing import Pace


def test_observing_takes_some_time() -> None:
    assert observing.measure(Pace(0, 1, 1)).best > 0
