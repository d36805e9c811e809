"""The words of the part about rules: what was measured, how, and how to read it."""

from __future__ import annotations

from benchmarks.rules.deciding import CALLS as DECISIONS
from benchmarks.rules.figures import MOST_GROWTH, MOST_US
from benchmarks.rules.measuring import CALLS

WHAT = f"""\
What it costs to find the rules for a request, with few rules and with many, and what a whole decision by rules costs.
The aim: at most {MOST_US:g} us for a path of four segments, and with the most rules at most {MOST_GROWTH:g} times \
what it takes with the
fewest. Every row is shown, whether it passes or not.
"""

METHOD = f"""\
- **Matching** is `Policy.plan`: a request (user, path as it was sent, method) in, all limits with the keys of their
  counters out. That includes checking the path and the values, and looking for lists, tiers and overrides. What rules
  mean for requests of one kind, and which rules a path leads to, is remembered; where each request is for another rule
  and there are more rules than it remembers, it is worked out anew.
- **The path** is `/api/v1/resource501/12345`, or one like it; every rule has a pattern such as `/api/v1/resource501/*`
  of its own. One more rule counts by address, on all paths: it takes part when the request has an address, and makes
  the second of two matching rules. Where all rules have the same endpoint, `/api/v1/orders/**`, they ask for another
  value of an attribute or another tier each.
- **Another rule in each request**: elsewhere all requests of a round are for the same rule, which is then in the
  processor's caches. Here each is for another one, in a shuffled order, and if the rules are many, all parts of it come
  from memory. That is the price of the data, not of the search: a dict of the same size, the floor, pays it as well. It
  is held against the same aims, in lines of its own. Requests are made before the clock starts, each with texts of its
  own.
- **Envoy**: `DescriptorPolicy.match`, beside so many siblings of the same key with a value each. Siblings whose value
  has a `*` are not part of it: they are tried one after the other, in the order of the file, so that their number
  does count.
- **Floor**: a Python function that looks up what tells the rules apart (path, attribute, tier or entries) in a dict
  with an entry for each rule. It checks nothing, knows no patterns, and makes no limits. Microseconds depend on the
  machine; multiples of the floor do so less.
- **Decisions**: `Engine.check` on memory, against `Limiter.check` with the same limits (GCRA; 1,000 a day, and for two
  rules 5,000 a week besides) on a key that the caller has made, and against the floor of the memory part. Two rules
  count for two principals, user and address; the two limits of `Limiter` for one. A round is {DECISIONS:,} requests of
  one user: on the allow path from untouched to used up, on the deny path all used up by then.
- **Building**: on the clock, once, with the garbage collector on as in a program; only "read from YAML" makes rules
  from text, "compiled" starts from rules in memory.
- **Verified**: before timing, the rules that are found for the requests of a round are compared with those that they
  are for; after timing, that decisions are all allowed or all denied. The run stops if not.
- **Timing**: {CALLS:,} requests per round, between two `perf_counter_ns()`; nothing is subtracted, so that the loop and
  the call are in every figure, the floor's too. All sizes and their floors take turns, round after round, each round
  starting with another one. The garbage collector is off, as in `timeit`.
- **Noise**: microseconds are those of the best round, the least disturbed one. A ratio is the median of the ratios
  within the rounds; the quotient of the figures beside it may differ a little.
"""

MATCHING = """\
Microseconds per request, best round, by the number of rules. The verdict on time is on the slowest of them.
"""

ENVOY = """\
Microseconds per request, best round, by the number of siblings.
"""


def decided(rules: int) -> str:
    """Say what was decided."""
    return f"""\
Microseconds per decision, best round, with {rules:,} rules. "Policy.plan" is the part of `Engine.check` that finds the
limits. No verdict: this is for information.
"""


BUILDING = """\
Milliseconds, by the number of rules, and microseconds per rule with the most of them.
"""
