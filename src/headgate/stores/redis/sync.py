"""The Redis store for callers that may block."""

from __future__ import annotations

from functools import partial
from time import monotonic

from headgate.clock import Clock, SystemClock
from headgate.core.decision import Decision
from headgate.core.errors import StoreError
from headgate.core.plan import Charge, Family, Plan
from headgate.stores.base import Check
from headgate.stores.redis import scripts, spread
from headgate.stores.redis.address import Address, Cluster, Place, Service
from headgate.stores.redis.answers import decided
from headgate.stores.redis.cluster_sync import BlockingCluster
from headgate.stores.redis.discovery import Sentinels
from headgate.stores.redis.pool import Pool
from headgate.stores.redis.scripts import question


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

    def check(self, plan: Plan, cost: int) -> Decision:
        if self._is_spread(plan):
            return self._play(spread.check(plan, cost))
        return decided(plan, self._servers.ask(question(scripts.CHECK, plan, cost)), cost)

    def check_once(self, plan: Plan, cost: int, token: bytes) -> Decision:
        if self._is_spread(plan):
            return self._play(spread.check(plan, cost, token))
        return decided(plan, self._servers.ask(question(scripts.ONCE, plan, cost, token=token)), cost)

    def peek(self, plan: Plan, cost: int) -> Decision:
        return self._each(scripts.PEEK, plan, cost)

    def refund(self, plan: Plan, cost: int, charge: Charge | None = None) -> Decision:
        if charge is None:
            return self._each(scripts.REFUND, plan, cost)
        if self._is_spread(plan):
            return self._play(spread.all_of(scripts.UNDO, plan, cost, charge.taken_at))
        return decided(plan, self._servers.ask(question(scripts.UNDO, plan, cost, since=min(charge.taken_at))))

    def reset(self, plan: Plan) -> None:
        self._each(scripts.RESET, plan, 0)

    def bind(self, family: Family) -> Check:
        def check(key: str, cost: int = 1) -> Decision:
            plan = family.plan(key)
            if type(cost) is int and cost == 0:
                return self.peek(plan, 1)
            cost = family.checked_cost(cost)
            return decided(
                plan, self._servers.ask(question(scripts.CHECK, plan, cost)), cost
            )  # one principal: never spread

        return check

    def ready(self) -> None:
        """Run the script on every server that decides. Raises StoreError."""
        self._servers.ready()

    def close(self) -> None:
        self._servers.close()

    def _is_spread(self, plan: Plan) -> bool:
        return self._slots is not None and spread.is_spread(plan)

    def _each(self, verb: bytes, plan: Plan, cost: int) -> Decision:
        if self._is_spread(plan):
            return self._play(spread.all_of(verb, plan, cost))
        return decided(plan, self._servers.ask(question(verb, plan, cost)))

    def _play(self, flow: spread.Flow) -> Decision:
        give_up = monotonic() + self._timeout
        try:
            step = next(flow)
            while True:
                try:
                    answer = self._servers.ask(step.question, 0 if step.late else give_up)
                except StoreError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as stop:
            decision: Decision = stop.value
            return decision


def _pool(place: Address | Service, clock: Clock | None) -> Pool:
    return Pool(place, clock) if isinstance(place, Address) else Pool(place.primary, clock, Sentinels(place))
