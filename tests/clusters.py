"""Real clusters for tests: their slots can be moved, and their nodes killed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import permutations

import hiredis

from tests.servers import RedisServer, ending, is_in_step, leader_of, own_folder, places, until

SLOTS = 16_384
PATIENCE_MS = 30_000
"""How long nodes wait for each other before they take one for dead, unless they are alert: a busy machine may keep
each of them waiting for seconds."""


class RedisCluster:
    def __init__(self, nodes: list[RedisServer], primaries: int) -> None:
        self.nodes = nodes
        self._migrations: list[Migration] = []
        self._form(primaries)

    @property
    def address(self) -> str:
        return self.address_with(*self.nodes)

    @staticmethod
    def address_with(*seeds: RedisServer, options: str = "timeout=20&connect_timeout=20") -> str:
        secret = f":{seeds[0].password}@" if seeds[0].password else ""
        return f"redis+cluster://{secret}{places(seeds)}?{options}"

    @property
    def running(self) -> list[RedisServer]:
        return [node for node in self.nodes if node.is_running]

    @property
    def primaries(self) -> list[RedisServer]:
        """The running nodes that think they own slots."""
        return [node for node in self.running if slots_of(node)]

    def owner(self, slot: int) -> RedisServer:
        """Return the running node that thinks it owns the slot."""
        owners = [node for node in self.running if slot in slots_of(node)]
        assert len(owners) == 1, f"slot {slot} has {len(owners)} owners"
        return owners[0]

    def replicas_of(self, primary: RedisServer) -> list[RedisServer]:
        return [node for node in self.running if leader_of(node) == primary.port]

    def flush(self) -> None:
        for node in self.primaries:
            node.ask("FLUSHALL")

    def migration(self, slot: int, target: RedisServer) -> Migration:
        source = self.owner(slot)
        self._migrations.append(Migration(slot, source, target, self._others(source, target)))
        return self._migrations[-1]

    def settle(self) -> None:
        """Finish what a test that failed has left half done."""
        migrations, self._migrations = self._migrations, []
        for migration in migrations:
            if migration.is_under_way:
                migration.finish()

    def move(self, slots: Iterable[int], source: RedisServer, target: RedisServer) -> None:
        """Move slots with their keys, one after the other, as an operator's tool does."""
        others = self._others(source, target)
        for slot in slots:
            migration = Migration(slot, source, target, others)
            migration.begin()
            migration.finish()

    def failover(self, replica: RedisServer) -> None:
        """Make a replica the primary in its primary's place, who agrees; and wait until all know."""
        give_up = time.monotonic() + 60
        with self.alert(2000):  # the other primaries do not vote on the same matter twice within twice that time
            while not slots_of(replica):
                assert time.monotonic() < give_up, "the replica is not promoted"
                with suppress(hiredis.ReplyError):  # it is a primary by now
                    replica.ask("CLUSTER", "FAILOVER")
                time.sleep(0.1)
            until(lambda: self.is_at_peace, "all agree")

    @contextmanager
    def alert(self, timeout_ms: int = 1500) -> Iterator[None]:
        """Let nodes that do not answer be noticed soon, and replaced, for the length of a with block."""
        self._set_timeout(timeout_ms)
        yield
        self._set_timeout(PATIENCE_MS)

    def _set_timeout(self, timeout_ms: int) -> None:
        for node in self.running:
            node.ask("CONFIG", "SET", "cluster-node-timeout", timeout_ms)

    @property
    def is_at_peace(self) -> bool:
        """Do all running nodes agree on who owns what, and are all replicas in step?"""
        return len({_view_of(node) for node in self.running}) == 1 and all(map(is_in_step, self.running))

    def _others(self, *nodes: RedisServer) -> list[RedisServer]:
        return [node for node in self.primaries if node not in nodes]

    def _form(self, count: int) -> None:
        self._set_timeout(1000)  # the longer, the slower they get to know each other
        primaries, replicas = self.nodes[:count], self.nodes[count:]
        bounds = [SLOTS * number // count for number in range(count + 1)]
        for number, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node, start, end in zip(primaries, bounds[:-1], bounds[1:], strict=True):
            node.ask("CLUSTER", "ADDSLOTSRANGE", start, end - 1)
        until(self._have_met, "the nodes meet")
        for number, node in enumerate(replicas):
            node.ask("CLUSTER", "REPLICATE", _name_of(primaries[number % count]))
        until(lambda: self.is_at_peace and self._is_whole(len(replicas)), "the cluster forms")
        self._set_timeout(PATIENCE_MS)

    def _have_met(self) -> bool:
        """Do all nodes know each other? If not, they are to meet; again where one gave up, as on a busy machine."""
        known = {node: node.ask("CLUSTER", "NODES").decode() for node in self.nodes}
        for one, other in permutations(self.nodes, 2):
            if f":{other.port}@" not in known[one]:
                one.ask("CLUSTER", "MEET", "127.0.0.1", other.port, other.bus)
        return all(len(text.splitlines()) == len(known) and "handshake" not in text for text in known.values())

    def _is_whole(self, replicas: int) -> bool:
        facts = [node.facts("CLUSTER", "INFO") for node in self.nodes]
        listed = sum(len(shard) - 3 for shard in self.nodes[0].ask("CLUSTER", "SLOTS"))
        slots = str(SLOTS)
        return listed == replicas and all(
            fact["cluster_state"] == "ok" and fact["cluster_slots_ok"] == slots for fact in facts
        )


class Migration:
    def __init__(self, slot: int, source: RedisServer, target: RedisServer, others: list[RedisServer]) -> None:
        self.slot, self.source, self.target, self.others = slot, source, target, others
        self.is_under_way = False

    def begin(self) -> None:
        """From now on the source sends those who ask for keys that it does not have to the target, with ASK."""
        until(self._is_last_heard_of, "the nodes know of the last migration")
        self.is_under_way = True
        self.target.ask("CLUSTER", "SETSLOT", self.slot, "IMPORTING", _name_of(self.source))
        self.source.ask("CLUSTER", "SETSLOT", self.slot, "MIGRATING", _name_of(self.target))

    def move(self, *keys: bytes) -> None:
        self.source.ask("MIGRATE", "127.0.0.1", self.target.port, "", 0, 5000, "KEYS", *keys)

    def finish(self) -> None:
        """Move all keys that are still there, and inform all primaries: the source answers MOVED from then on."""
        while keys := self.source.ask("CLUSTER", "GETKEYSINSLOT", self.slot, 100):
            self.move(*keys)
        name = _name_of(self.target)
        for node in (self.target, self.source, *self.others):
            node.ask("CLUSTER", "SETSLOT", self.slot, "NODE", name)
        self.is_under_way = False

    def _is_last_heard_of(self) -> bool:
        """Do all know the configuration epochs of all primaries?

        A target that does not know the source's may import a slot without a higher one: a late message of the source
        then wins the slot back, and both send everybody to each other, for good.
        """
        return len({_epochs_of(node) for node in (self.source, self.target, *self.others)}) == 1


@contextmanager
def redis_cluster(primaries: int = 3, replicas: int = 1, *options: str, password: str = "") -> Iterator[RedisCluster]:
    """A cluster for the length of a with block: so many primaries, and replicas for each of them."""
    lines = [
        f"cluster-node-timeout {PATIENCE_MS}",
        "cluster-require-full-coverage no",
        "cluster-replica-validity-factor 0",
        "cluster-allow-replica-migration no",
        "cluster-announce-ip 127.0.0.1",
        *options,
    ]
    with own_folder() as folder:
        count = primaries * (1 + replicas)
        nodes = [RedisServer(folder, *lines, password=password, in_cluster=True) for _ in range(count)]
        with ending(nodes):
            yield RedisCluster([node.start() for node in nodes], primaries)


def _name_of(node: RedisServer) -> bytes:
    name: bytes = node.ask("CLUSTER", "MYID")
    return name


def slots_of(node: RedisServer) -> set[int]:
    mine = next(line for line in node.ask("CLUSTER", "NODES").decode().splitlines() if "myself" in line)
    ranges = [words.split("-") for words in mine.split()[8:] if not words.startswith("[")]
    return {slot for ends in ranges for slot in range(int(ends[0]), int(ends[-1]) + 1)}


def _epochs_of(node: RedisServer) -> frozenset[tuple[str, str]]:
    """Return the configuration epochs of the primaries in the eyes of a node."""
    lines = (line.split() for line in node.ask("CLUSTER", "NODES").decode().splitlines())
    return frozenset((words[0], words[6]) for words in lines if "master" in words[2])


def _view_of(node: RedisServer) -> frozenset[tuple[int, int, int]]:
    """Return who owns what in the eyes of a node."""
    return frozenset((start, end, primary[1]) for start, end, primary, *_ in node.ask("CLUSTER", "SLOTS"))
