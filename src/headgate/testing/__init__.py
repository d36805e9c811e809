"""Help for tests of code that uses limits, and of stores.

`ManualClock` makes time a matter of your test. `headgate.testing.conformance` is the contract of a store as a test
suite (it needs pytest and hypothesis). The fixture `manual_clock` is there in every pytest run with Headgate installed.
"""

from headgate.testing.clock import ManualClock

__all__ = ["ManualClock"]
