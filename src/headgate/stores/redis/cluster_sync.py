"""A cluster for callers that may block: a pool for each of its servers, and the way between them."""

from __future__ import annotations

import os
import threading
from time import monotonic, sleep

from headgate.clock import Clock
from headgate.core.errors import StoreError
from headgate.locks import new_lock
from headgate.stores.redis import readiness
from headgate.stores.redis.address import Address, Cluster
from headgate.stores.redis.answers import Answer
from headgate.stores.redis.discovery import SlotMap, slot_of
from headgate.stores.redis.pool import Pool, inquire
from headgate.stores.redis.routing import HINT_EVERY, REFRESH_EVERY, Ask, Pass, Route, pause, route
from headgate.stores.redis.scripts import Question


class BlockingCluster:
    """Asks the servers of a cluster."""

    def __init__(self, cluster: Cluster, clock: Clock | None) -> None:
        self.slots = SlotMap(cluster)
        self._clock = clock
        self._timeout = cluster.seeds[0].timeout
        self._pools: dict[Address, Pool] = {}
        self._refreshed_at = -REFRESH_EVERY
        self._lock = new_lock()
        self._begin()

    def _begin(self) -> None:
        """Nobody asks for the slot map yet; also in a forked child, which must not wait for a thread of its parent."""
        self._refreshing = threading.Lock()
        self._process = os.getpid()

    def ask(self, question: Question, give_up: float = 0) -> Answer:
        """Return the answer; `give_up` is when to stop waiting for it, as `monotonic` tells time, if not the usual."""
        if self._process != os.getpid():
            self._begin()
        give_up = give_up or monotonic() + self._timeout
        return self._follow(route(self.slots, slot_of(question.keys[0])), question, give_up)

    def ready(self) -> None:
        if self._process != os.getpid():
            self._begin()
        self._refresh(monotonic() + self._timeout, 0)
        for probe in readiness.probes(self.slots):
            self.ask(probe)
        for server in self.slots.nodes:
            self._pool(server).vet()

    def close(self) -> None:
        with self._lock:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()

    def _follow(self, way: Route, question: Question, give_up: float) -> Answer:
        try:
            step = next(way)
            while True:
                if isinstance(step, Ask):
                    try:
                        answer = self._pool(step.server).ask(question, give_up, asking=step.asking)
                    except StoreError as error:
                        error.server = str(step.server)
                        step = way.throw(error)
                    else:
                        step = way.send(answer)
                    continue
                if step is Pass.PAUSE:
                    sleep(pause(give_up - monotonic()))
                elif step is Pass.REFRESH:
                    self._refresh(give_up, REFRESH_EVERY)
                elif monotonic() >= self._refreshed_at + HINT_EVERY and not self._refreshing.locked():
                    later = monotonic() + self.slots.patience
                    threading.Thread(target=self._refresh, args=(later, HINT_EVERY), daemon=True).start()
                step = next(way)
        except StopIteration as stop:
            found: Answer = stop.value
            return found

    def _refresh(self, give_up: float, every: float) -> None:
        """Ask for the slot map, unless that was done less than `every` seconds ago; one thread for all."""
        asked_at = monotonic()
        if not self._refreshing.acquire(timeout=max(0, give_up - asked_at)):
            return
        try:
            if asked_at >= self._refreshed_at + every:
                self._renew(give_up)
        finally:
            self._refreshing.release()

    def _renew(self, give_up: float) -> None:
        inquire(self.slots.refresh(), lambda: min(self.slots.patience, max(0.01, give_up - monotonic())))
        self._refreshed_at = monotonic()
        with self._lock:
            gone = [self._pools.pop(server) for server in tuple(self._pools) if server not in self.slots.nodes]
        for pool in gone:
            pool.close()

    def _pool(self, server: Address) -> Pool:
        pool = self._pools.get(server)
        if pool is None:
            with self._lock:
                pool = self._pools.setdefault(server, Pool(server, self._clock))
        return pool
