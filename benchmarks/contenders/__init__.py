"""Who is measured."""

from __future__ import annotations

from benchmarks.contenders.base import Contender
from benchmarks.contenders.floor import Floor
from benchmarks.contenders.headgate_memory import HeadgateMemory
from benchmarks.contenders.headgate_redis import HeadgateRedis
from benchmarks.contenders.limits_memory import LimitsMemory
from benchmarks.contenders.limits_redis import LimitsRedis
from benchmarks.contenders.pyrate_memory import PyrateMemory
from benchmarks.contenders.pyrate_redis import PyrateRedis
from benchmarks.contenders.redis_base import RedisContender
from benchmarks.contenders.redis_floor import ClusterIncr, CoalescedIncr, CoredisIncr, Incr, SingleIncr
from benchmarks.contenders.throttled_memory import ThrottledMemory
from benchmarks.contenders.throttled_redis import ThrottledRedis

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
