"""Slots move from one primary to another while everybody asks: no caller gets an error, and no charge is lost."""

from __future__ import annotations

import random
from contextlib import closing

import pytest

from headgate.core.algorithms import Algorithm
from headgate.core.plan import Call, Plan, Verb
from headgate.stores import open_store
from headgate.testing.conformance import family
from tests.clusters import RedisCluster, slots_of
from tests.stores.redis.load import KINDS, lasting, load, slot_of, store_for

LIMIT = 40
SLOTS = 1000


def plans_in(slots: set[int], count: int) -> list[Plan]:
    """Return plans of two limits each, which live in these slots."""
    limits, plans, number = family(lasting(LIMIT), lasting(LIMIT * 2, Algorithm.GCRA)), list[Plan](), 0
    while len(plans) < count:
        plan = limits.plan(f"user-{number}")
        plans += [plan] * (slot_of(plan[0]) in slots)
        number += 1
    return plans


@pytest.mark.parametrize("kind", KINDS)
def test_1000_slots_move_under_load(cluster: RedisCluster, kind: str) -> None:
    source, target, other = cluster.primaries
    slots = random.Random(5).sample(sorted(slots_of(source)), SLOTS)
    plans = [*plans_in(set(slots), 120), *plans_in(slots_of(target), 20), *plans_in(slots_of(other), 20)]
    with load(store_for(kind, cluster.address), plans, KINDS[kind], pause=0.002) as asked:
        asked.until_answered(range(len(plans)), 2)
        cluster.move(slots, source, target)
        asked.until_answered(range(len(plans)))
        asked.until_answered(range(len(plans)), LIMIT + 1, since=0)
    assert asked.errors() == []
    assert not set(slots) & slots_of(source)
    assert set(slots) <= slots_of(target)
    assert [asked.admitted(number) for number in range(len(plans))] == [LIMIT] * len(plans)
    with closing(open_store(cluster.address)) as store:
        for plan in plans:
            assert [part.used for part in store.run(Call(Verb.PEEK, plan)).limits] == [LIMIT, LIMIT]


@pytest.mark.parametrize("kind", KINDS)
def test_slots_move_to_and_fro_under_load(cluster: RedisCluster, kind: str) -> None:
    """What was learned of a slot is wrong again soon."""
    one, other, _ = cluster.primaries
    slots = random.Random(5).sample(sorted(slots_of(one)), 30)
    plans = plans_in(set(slots), 60)
    with load(store_for(kind, cluster.address), plans, KINDS[kind], pause=0.001) as asked:
        asked.until_answered(range(len(plans)), 2)
        for _ in range(5):
            cluster.move(slots, one, other)
            cluster.move(slots, other, one)
        asked.until_answered(range(len(plans)))
        asked.until_answered(range(len(plans)), LIMIT + 1, since=0)
    assert asked.errors() == []
    assert [asked.admitted(number) for number in range(len(plans))] == [LIMIT] * len(plans)
