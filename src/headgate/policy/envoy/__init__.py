"""Envoy's rate limit descriptors, from the configuration files of envoyproxy/ratelimit.

::

    policy = load({"edge.yaml": text})
    matching = policy.match("edge", [Descriptor((("remote_address", "203.0.113.9"),))])
    calls = iter(matching.calls)                              # the calls of the store, for matches with limits
    decisions = [store.run(next(calls)) if match.limits else None for match in matching.matches]
    answer = envoy_answer(matching, decisions, now)           # overall code, and one status for each descriptor

Everything here is pure; `headgate.engine.descriptors` calls the store. The modules: `request`, Envoy's request; `tree`,
the compiled rules; `loading`, their files; `matching`, which of them apply; `answering`, the answer.

`headgate.policy.envoy.loading` lists the additions to envoyproxy/ratelimit, `headgate.policy.envoy.matching` and
`headgate.policy.envoy.answering` the differences.
"""

from __future__ import annotations

from headgate.policy.envoy.answering import Code, EnvoyAnswer, Status, envoy_answer, passed_metadata
from headgate.policy.envoy.loading import LiveDescriptors, load
from headgate.policy.envoy.matching import DescriptorPolicy, Match, Matching, MatchOutcome
from headgate.policy.envoy.request import Descriptor, Override, Unit
from headgate.policy.envoy.tree import RateLimit

__all__ = [
    "Code",
    "Descriptor",
    "DescriptorPolicy",
    "EnvoyAnswer",
    "LiveDescriptors",
    "Match",
    "MatchOutcome",
    "Matching",
    "Override",
    "RateLimit",
    "Status",
    "Unit",
    "envoy_answer",
    "load",
    "passed_metadata",
]
