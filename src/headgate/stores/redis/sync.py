"""The Redis store for callers that may block."""

from __future__ import annotations

from functools import partial
from time import monotonic

from headgate.clock import Clock, SystemClock
from headgate.core.decision import Decision
from headgate.core.plan import Call, Family, shadowed
from headgate.flows import drive
from headgate.stores.base import Check
from headgate.stores.redis import spread
from headgate.stores.redis.address import Address, Cluster, Place, Service
from headgate.stores.redis.answers import answer_to
from headgate.stores.redis.cluster_sync import BlockingCluster
from headgate.stores.redis.discovery import Sentinels
from headgate.stores.redis.pool import Pool
from headgate.stores.redis.scripts import question_of
from headgate.stores.wrapping import plain_check


class RedisStore:
    """Keeps the state of limits in Redis or Valkey.

    Args:
        place: the servers, and how to talk to them.
        clock: only for tests: makes the script decide at this clock's time rather than at the server's.
    """

    def __init__(self, place: Place, *, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._servers: BlockingCluster | Pool
        self._servers = BlockingCluster(place, clock) if isinstance(place, Cluster) else _pool(place, clock)
        self._timeout = place.seeds[0].timeout if isinstance(place, Cluster) else 0.0
        self._slots = self._servers.slots if isinstance(self._servers, BlockingCluster) else None
        if self._slots:  # otherwise there are no servers to be told apart
            self.servers_of, self.servers = partial(spread.servers_of, self._slots), self._slots.servers

    def run(self, call: Call) -> Decision:
        if call.shadow:
            return drive(shadowed(call), self.run)
        if self._slots is not None and spread.is_spread(call.plan):
            return self._spread(call)
        return answer_to(call, self._servers.ask(question_of(call)))

    def bind(self, family: Family) -> Check:
        return plain_check(self, family)

    def ready(self) -> None:
        """Run the script on every server that decides. Raises StoreError."""
        self._servers.ready()

    def close(self) -> None:
        self._servers.close()

    def _spread(self, call: Call) -> Decision:
        give_up = monotonic() + self._timeout
        return drive(spread.flow_of(call), lambda step: self._servers.ask(step.question, 0 if step.late else give_up))


def _pool(place: Address | Service, clock: Clock | None) -> Pool:
    return Pool(place, clock) if isinstance(place, Address) else Pool(place.primary, clock, Sentinels(place))
