"""The files of envoyproxy/ratelimit, and what Envoy asks."""

from __future__ import annotations

from pathlib import Path

from headgate import MemoryStore
from headgate.policy.envoy import Descriptor, combine, load

here = Path(__file__).parent
store = MemoryStore()

policy = load({path.name: path.read_text() for path in (here / "ratelimit").glob("*.yaml")})
matching = policy.match("edge", [Descriptor((("api_key", "ak_1"),))])
decisions = [store.check(match.limits, match.hits) if match.limits else None for match in matching.matches]
answer = combine(matching, decisions, store.clock.now())
print(answer.code.name, answer.statuses[0].limit_remaining)  # OK 29
