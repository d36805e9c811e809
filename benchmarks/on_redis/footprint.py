"""How much memory of the server a limited client takes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.contenders import REDIS_FLOOR, REDIS_OURS, REDIS_PEERS
from benchmarks.contenders.redis_base import RedisContender
from benchmarks.memory import LOG_ADMISSIONS
from benchmarks.on_redis.cases import ALLOWING, CALLERS, KINDS
from benchmarks.on_redis.driving import InLoop
from benchmarks.on_redis.servers import Server
from benchmarks.scenarios import Kind, Limit


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the server keeps for one client after `admissions` admissions under `limits` limits."""

    kind: Kind
    limits: int
    admissions: int
    contender: str
    bytes_per_client: float


def measure(server: Server, clients: int) -> Iterator[Footprint]:
    """Yield the footprint of every algorithm in every library that has it."""
    libraries = {peer.name: peer for peer in REDIS_PEERS}  # what is asked besides does not change what is kept
    contenders = [REDIS_FLOOR, REDIS_OURS, *libraries.values()]
    for kind, limits, admissions in tasks():
        server.forget()
        for database, contender in enumerate(contenders):
            if contender.takes_part(kind):
                names = [f"user:{number:08}" for number in range(clients)] * admissions
                _take(server.address(database), contender, kind, limits, names)
                kept = server.bytes_used(database) / clients
                yield Footprint(kind, len(limits), admissions, contender.name, kept)


def tasks() -> list[tuple[Kind, tuple[Limit, ...], int]]:
    """Return what is measured: algorithm, limits, admissions per client."""
    one = [(kind, ALLOWING[:1], 1) for kind in KINDS]
    return [*one, (Kind.SLIDING_WINDOW_LOG, ALLOWING[:1], LOG_ADMISSIONS), (Kind.GCRA, ALLOWING, 1)]


def _take(server: str, contender: RedisContender, kind: Kind, limits: tuple[Limit, ...], names: list[str]) -> None:
    with asyncio.Runner() as runner:
        driven = InLoop(runner.run(contender.open_async(server, kind, limits)), runner, CALLERS)
        driven.run(names)
        driven.close()
