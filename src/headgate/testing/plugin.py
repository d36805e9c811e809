"""Fixtures for pytest, found by it through an entry point."""

from __future__ import annotations

import pytest

from headgate.testing.clock import ManualClock


@pytest.fixture
def manual_clock() -> ManualClock:
    """A clock that stands still until told otherwise: ``Limiter("5/s", clock=manual_clock)``."""
    return ManualClock()
