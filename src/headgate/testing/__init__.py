"""Tools for tests of code that uses limits, and of stores.

`ManualClock` lets tests control time. `headgate.testing.conformance` is the contract of a store as a test suite; it
needs pytest and hypothesis. With Headgate installed, pytest has the fixture `manual_clock`.
"""

from headgate.testing.clock import ManualClock

__all__ = ["ManualClock"]
