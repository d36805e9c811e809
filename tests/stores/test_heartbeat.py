"""The number of processes that share a limit is counted in the store, and determines their shares while it is down.

The processes are real ones, each with a clock of its own that this one sets: so time passes without waits.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from headgate import AsyncLimiter, FailoverStore, Limiter, MemoryStore, Quota
from headgate.core.plan import Call, Verb
from headgate.stores.heartbeat import COUNTED, EVERY_US, KEPT, UNSEEN
from headgate.testing import ManualClock
from headgate.testing.conformance import family
from tests.clusters import redis_cluster
from tests.servers import RedisServer, free_port, redis_server

LIMIT, BEAT = 100, EVERY_US * 1.2 / 1e6
"""The limit of each key in a day, and seconds after which a heartbeat is surely due."""
SCRIPT = """
import sys
from headgate import Limiter
from headgate.testing import ManualClock

clock = ManualClock()
limiter = Limiter("100/day", store=sys.argv[1], clock=clock)
for line in sys.stdin:
    now, key = line.split()
    clock.set(int(now))
    decision = limiter.check(key)
    print(decision.allowed, decision.limit, bool(decision.degraded), flush=True)
"""


@dataclass
class Processes:
    """Processes with a limiter each, which live at the same time of the same clock."""

    address: str
    stack: ExitStack
    clock: ManualClock = field(default_factory=ManualClock)
    alive: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, count: int = 1) -> None:
        for _ in range(count):
            command = [sys.executable, "-c", SCRIPT, self.address]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.stack.callback(_end, process)
            self.alive.append(process)

    def kill(self) -> None:
        _end(self.alive.pop())

    def check(self, place: int, key: str) -> tuple[bool, int, bool]:
        """Have one of them check a key: whether it was allowed, by which limit, and whether without the store."""
        process = self.alive[place]
        assert process.stdin
        assert process.stdout
        process.stdin.write(f"{self.clock.now()} {key}\n")
        process.stdin.flush()
        allowed, limit, degraded = process.stdout.readline().split()
        return allowed == "True", int(limit), degraded == "True"

    def beat(self, times: int = 1) -> None:
        """Let all of them make a call that brings up a heartbeat."""
        for _ in range(times):
            self.clock.advance(BEAT)
            assert not any(self.check(place, f"k{self.clock.now()}")[2] for place in range(len(self.alive)))

    def admitted(self) -> list[int]:
        """Have each admit what it may for one key without the store; returns how much that is."""
        counts = []
        for place in range(len(self.alive)):
            answers = [self.check(place, "outage") for _ in range(LIMIT + 1)]
            assert all(degraded for _, _, degraded in answers)
            counts.append(sum(allowed for allowed, _, _ in answers))
        return counts


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@contextmanager
def processes(address: str, count: int) -> Iterator[Processes]:
    with ExitStack() as stack:
        made = Processes(address, stack)
        made.start(count)
        yield made


@contextmanager
def standalone() -> Iterator[tuple[str, Callable[[], None]]]:
    with redis_server() as server:
        yield server.address, server.stop


@contextmanager
def cluster() -> Iterator[tuple[str, Callable[[], None]]]:
    def stop() -> None:
        for node in found.running:
            node.stop()

    with redis_cluster(replicas=0) as found:
        yield found.address_with(*found.nodes, options="timeout=2&connect_timeout=2"), stop


@pytest.mark.parametrize("servers", [standalone, cluster])
def test_shares_follow_the_processes_that_live(
    servers: Callable[[], AbstractContextManager[tuple[str, Callable[[], None]]]],
) -> None:
    """One that is killed still counts for a moment, and then does not; no setting has their number."""
    with servers() as (address, stop), processes(address, 4) as fleet:
        fleet.beat(2)
        fleet.kill()
        fleet.beat(2 * KEPT + 4)
        stop()
        assert fleet.admitted() == [34, 34, 34], "100 divided by three, rounded up"


def test_processes_that_come_and_go_in_an_outage_admit_as_much_as_is_documented(own_redis: RedisServer) -> None:
    with processes(own_redis.address, 2) as fleet:
        fleet.beat(2)
        fleet.start()
        assert fleet.check(2, "late") == (True, LIMIT, False)  # counts three; the others have not heard of it yet
        own_redis.stop()
        assert fleet.admitted() == [50, 50, 34], "stale by one: at most 3 * ceil(100 / 2)"
        fleet.kill()
        fleet.start(2)
        assert fleet.admitted() == [0, 0, LIMIT // UNSEEN, LIMIT // UNSEEN], "they do not know how many there are"


def test_after_an_outage_the_last_count_holds_until_the_others_are_back(own_redis: RedisServer) -> None:
    """Otherwise a store that returns empty, and fails again, would hand out its whole limit to one process."""
    with processes(own_redis.address, 4) as fleet:
        fleet.beat(2)
        own_redis.stop()
        own_redis.start()
        fleet.clock.advance(3600)
        while fleet.check(0, "back")[2]:
            fleet.clock.advance(BEAT)
        own_redis.stop()
        assert fleet.admitted()[0] == 25


def test_a_process_whose_clock_was_set_back_is_still_counted(own_redis: RedisServer) -> None:
    with processes(own_redis.address, 2) as fleet:
        fleet.beat(2)
        fleet.clock.advance(-3600)
        fleet.start()
        fleet.beat(2 * KEPT + 4)
        own_redis.stop()
        assert fleet.admitted() == [34, 34, 34]


async def test_limiters_in_an_event_loop_are_counted_too(own_redis: RedisServer) -> None:
    clock = ManualClock()
    limiters = [AsyncLimiter("100/day", store=own_redis.address, clock=clock) for _ in range(3)]
    others = AsyncLimiter("100/day", name="other", store=own_redis.address, clock=clock)
    for _ in range(2):
        clock.advance(BEAT)
        for each in (*limiters, others):
            await each.check("ada")
            beats = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*[task for task in beats if task is not None and "_beat" in repr(task)])
    own_redis.stop()
    assert [(await each.check("bob")).limit for each in (*limiters, others)] == [34, 34, 34, 100]
    for each in (*limiters, others):
        await each.close()


def test_what_takes_nothing_and_what_has_a_number_writes_nothing(own_redis: RedisServer) -> None:
    with (
        Limiter("100/day", store=own_redis.address) as looking,
        Limiter("100/day", store=own_redis.address, nodes=3) as fixed,
    ):
        looking.peek("ada")
        fixed.check("ada")
        assert own_redis.ask("KEYS", "*!nodes") == []
        looking.check("ada")
        (key,) = own_redis.ask("KEYS", "*!nodes")
        assert key.startswith(b"hg1:{"), "the permissions that limits need are enough"
        assert 0 < own_redis.ask("PTTL", key) <= 3_600_000
    with Limiter("100/day", store=f"redis://127.0.0.1:{free_port()}/0", nodes=3) as away:
        assert away.check("ada").limit == 34


def test_the_count_of_processes_is_bounded() -> None:
    store = MemoryStore(clock=ManualClock())
    fleet = [FailoverStore(store, nodes=None, max_keys=1) for _ in range(COUNTED.limit + 2)]
    call = Call(Verb.CHECK, family(Quota(2 * len(fleet), 60_000_000)).plan("ada"))
    assert all(each.run(call).allowed for each in fleet)
    assert fleet[-1].statistics().nodes == COUNTED.limit
