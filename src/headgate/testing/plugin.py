"""Fixtures for pytest, which finds them by an entry point."""

from __future__ import annotations

import pytest

from headgate.testing.clock import ManualClock


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that stands still until the test advances it: ``Limiter("5/s", clock=manual_clock)``."""
    return ManualClock()
