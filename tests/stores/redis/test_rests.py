"""What does not happen: connecting again and again to what is away, and opening anything after the end."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from headgate.core.errors import StoreUnavailable
from headgate.stores.redis.address import Address, Cluster, Role
from headgate.stores.redis.cluster import AsyncCluster
from headgate.stores.redis.discovery import SlotMap
from headgate.stores.redis.pool import Pool
from headgate.stores.redis.script import probe, query
from tests.servers import free_port


def test_threads_rest_after_a_failed_attempt_to_connect() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        pool = Pool(Address("127.0.0.1", silent.getsockname()[1], connect_timeout=0.05), None)
        for _ in range(50):
            with pytest.raises(StoreUnavailable, match="no answer"):  # why it rests is told, too
                pool.ask(query(probe()))
        silent.setblocking(False)
        attempts = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                silent.accept()[0].close()
                attempts += 1
    assert 0 < attempts < 50


async def test_a_cluster_that_is_closed_opens_nothing_again() -> None:
    before, cluster = asyncio.all_tasks(), Cluster((Address("127.0.0.1", free_port(), role=Role.NODE),))
    servers = AsyncCluster(cluster, None, asyncio.get_running_loop(), SlotMap(cluster))
    servers.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await servers.ask(query(probe()))
    assert asyncio.all_tasks() == before
