"""Envoy's rate limit descriptors: the configuration files of envoyproxy/ratelimit, loaded as they are.

::

    policy = load({"edge.yaml": text})                        # all problems at once, each with its place
    matching = policy.match("edge", [Descriptor((("remote_address", "203.0.113.9"),))])
    calls = iter(matching.calls)                              # what the store is asked about those with limits
    decisions = [store.run(next(calls)) if match.limits else None for match in matching.matches]
    answer = envoy_answer(matching, decisions, now)                # overall code, and one status for each descriptor

Everything here is pure: asking the store is up to `headgate.engine.descriptors`. One subject each: `request`, what
Envoy asks; `tree`, the compiled rules; `loading`, how they are written, and a folder that is watched; `matching`, which
of them apply; `answering`, what comes of it.

What goes beyond envoyproxy/ratelimit is described in `headgate.policy.envoy.loading`, what differs in
`headgate.policy.envoy.matching` and `headgate.policy.envoy.answering`.
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
