"""Who is measured."""

from __future__ import annotations

from benchmarks.contenders.base import Contender
from benchmarks.contenders.floor import Floor
from benchmarks.contenders.headgate_memory import HeadgateMemory
from benchmarks.contenders.limits_memory import LimitsMemory
from benchmarks.contenders.pyrate_memory import PyrateMemory
from benchmarks.contenders.throttled_memory import ThrottledMemory

FLOOR: Contender = Floor()
OURS: Contender = HeadgateMemory()
PEERS: tuple[Contender, ...] = (
    LimitsMemory(equal=True),
    LimitsMemory(equal=False),
    ThrottledMemory(equal=True),
    ThrottledMemory(equal=False),
    PyrateMemory(equal=True),
    PyrateMemory(equal=False),
)
