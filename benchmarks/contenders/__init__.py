"""The contenders."""

from __future__ import annotations

from benchmarks.contenders.base import Contender, RedisContender
from benchmarks.contenders.floors import ClusterIncr, CoalescedIncr, CoredisIncr, Floor, Incr, SingleIncr
from benchmarks.contenders.headgate import HeadgateMemory, HeadgateRedis
from benchmarks.contenders.limits import LimitsMemory, LimitsRedis
from benchmarks.contenders.pyrate import PyrateMemory, PyrateRedis
from benchmarks.contenders.throttled import ThrottledMemory, ThrottledRedis

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

REDIS_FLOOR: RedisContender = Incr()
REDIS_OTHER_FLOORS: tuple[RedisContender, ...] = (SingleIncr(), CoredisIncr(), CoalescedIncr())
REDIS_CLUSTER_FLOOR: RedisContender = ClusterIncr()
REDIS_OURS: RedisContender = HeadgateRedis()
REDIS_PEERS: tuple[RedisContender, ...] = (
    LimitsRedis(equal=True),
    LimitsRedis(equal=False),
    LimitsRedis(equal=False, client="coredis"),
    ThrottledRedis(),
    PyrateRedis(),
)
