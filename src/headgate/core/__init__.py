"""The arithmetic of limits. Everything else in Headgate is storage or transport.

Laws of this package:

1.  No I/O, no clock, no lock, no await, and no import of any other Headgate package. A test enforces it.
2.  Time is an argument: integer microseconds since the epoch. Integers only, within 53 bits, so that a twin written in
    Lua computes the same. Where exact fractions of a unit would leave them, coarser ones are counted, rounded in favour
    of the limit (`numbers.rate`, `Quota.rounding`). A quota that would break this is refused when built.
3.  A limit is a pure function ``(state, cost, now) -> (state, decision)``, one per algorithm. Checking, peeking and
    refunding are calls of that one function. (A fourth argument, `since`, is only for the refund of a charge.)
4.  Never over-admit: in any interval the algorithm's bound holds, which is at the top of its file and published in
    docs/algorithms.md. Rounding favours the limit.
5.  A denied request takes nothing.
6.  Answers are honest: waiting exactly ``retry_after_us`` with no other traffic admits the same request, and one
    microsecond less does not.
7.  State says what was used; the quota is an argument. However often and however far limits move, nothing that was used
    is forgotten before its time: in a bucket, it comes back at the rate it was used under, until a request is admitted
    under another.
8.  Time never runs backwards for a key. A clock that falls behind a state by up to one window waits for it (GCRA,
    which keeps no other time than its TAT, counts the lag as debt); further behind, the state is pulled to the present
    with all that was used still used. (A peek does not write that, so its waiting times hold from the next check on.)
"""

# Decisions, quotas and errors name each other. In this order they can be imported, whichever comes first.
from headgate.core import decision as decision
