"""What the tests of this folder share: loading, asking, and deciding without a store of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from headgate.core.decision import Decision
from headgate.core.plan import Call, Verb
from headgate.policy.envoy import Descriptor, DescriptorPolicy, EnvoyAnswer, Match, Matching, envoy_answer, load
from headgate.stores.memory import MemoryStore
from headgate.testing import ManualClock

FILES = Path(__file__).parent / "files"
Pairs = Sequence[tuple[str, str]]


@cache
def policy(name: str) -> DescriptorPolicy:
    """Load one of the files beside this one."""
    return load({name: (FILES / f"{name}.yaml").read_text(encoding="utf-8")})


def written(text: str) -> DescriptorPolicy:
    """Load descriptors that are written in a test, under the domain "d"."""
    return load({"test.yaml": f"domain: d\ndescriptors:\n{text}"})


def request(*pairs: tuple[str, str], hits: int | None = None) -> Descriptor:
    return Descriptor(tuple(pairs), hits)


def matched(rules: DescriptorPolicy, *pairs: tuple[str, str]) -> Match:
    """Return what applies to one descriptor of the only domain."""
    (domain,) = rules.domains
    return rules.match(domain, [request(*pairs)]).matches[0]


def rates(match: Match) -> list[str]:
    """Return the limits that a store would be called for, as text."""
    return [str(limit.quota) for limit in match.limits]


class Service:
    """Decides as the service will: each descriptor on its own, in memory, at a time that a test sets."""

    def __init__(self, rules: DescriptorPolicy, now_us: int = 0) -> None:
        self.rules = rules
        self.clock = ManualClock(now_us)
        self.store = MemoryStore(clock=self.clock)

    def decide(
        self, *descriptors: Descriptor, hits_addend: int = 0, shadow_mode: bool = False, quota_mode: bool = False
    ) -> EnvoyAnswer:
        (domain,) = self.rules.domains
        matching = self.rules.match(domain, descriptors, hits_addend)
        return envoy_answer(
            matching, self.decisions(matching), self.clock.now(), shadow_mode=shadow_mode, quota_mode=quota_mode
        )

    def decisions(self, matching: Matching) -> list[Decision | None]:
        return [self._decision(match) if match.limits else None for match in matching.matches]

    def _decision(self, match: Match) -> Decision:
        if match.refund:
            return self.store.run(Call(Verb.REFUND, match.limits, match.hits))
        return self.store.run(Call(Verb.CHECK if match.hits else Verb.PEEK, match.limits, match.hits))
