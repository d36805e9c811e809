"""Real servers under the watch of Sentinels, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import hiredis

from tests.servers import RedisServer, ending, is_in_step, leader_of, own_folder, places, until

SERVICE = "limits"
"""What the sentinels call the servers that they watch."""
PATIENCE_MS = 30_000
"""How long a server may be silent before it is taken for dead, unless the sentinels are alert: a busy machine may keep
it waiting for seconds."""


class RedisSentinels:
    """A primary, its replicas, and sentinels that watch them and replace the primary when it is gone."""

    def __init__(self, servers: list[RedisServer], watchers: list[RedisServer]) -> None:
        self.servers, self.watchers = servers, watchers

    @property
    def address(self) -> str:
        return self.address_with(*self.watchers)

    def address_with(
        self, *watchers: RedisServer, service: str = SERVICE, options: str = "timeout=20&connect_timeout=20"
    ) -> str:
        secret = f":{self.servers[0].password}@" if self.servers[0].password else ""
        return f"redis+sentinel://{secret}{places(watchers)}/{service}?{options}"

    @property
    def primary(self) -> RedisServer | None:
        """The primary as all running sentinels see it, if they agree."""
        watchers = [watcher for watcher in self.watchers if watcher.is_running]
        seen = {watcher.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1] for watcher in watchers}
        return next((each for each in self.servers if seen == {b"%d" % each.port}), None)

    def failover(self) -> RedisServer:
        """Make a replica the primary, though the old one lives; return the new one when all know."""
        old = self.primary
        until(lambda: self._is_replaced(old), "the sentinels replace the primary", 120)
        until(lambda: self.is_at_peace, "all follow the new primary", 60)
        assert self.primary
        return self.primary

    @contextmanager
    def alert(self) -> Iterator[None]:
        """Let a primary that is gone be noticed soon, and replaced, for the length of a with block."""
        self._set_patience(1000)
        yield
        self._set_patience(PATIENCE_MS)

    def _set_patience(self, milliseconds: int) -> None:
        for watcher in self.watchers:
            watcher.ask("SENTINEL", "SET", SERVICE, "down-after-milliseconds", milliseconds)

    def _is_replaced(self, old: RedisServer | None) -> bool:
        """Is another server the primary? If not, say that one should be: sentinels may be busy, and may give up."""
        primary = self.primary
        if primary is old:
            with suppress(hiredis.ReplyError):
                self.watchers[0].ask("SENTINEL", "FAILOVER", SERVICE)
        return primary not in {None, old}

    @property
    def is_at_peace(self) -> bool:
        """Is the primary that all sentinels agree on a primary, and do all other running servers follow it?"""
        primary, running = self.primary, [server for server in self.servers if server.is_running]
        if not primary or not primary.is_running:
            return False
        leaders = [leader_of(server) for server in running if server is not primary]
        return not leader_of(primary) and set(leaders) <= {primary.port} and all(map(is_in_step, running))


@contextmanager
def redis_sentinels(
    watchers: int = 3, replicas: int = 2, *, password: str = "", sentinel_password: str = ""
) -> Iterator[RedisSentinels]:
    """Servers under watch for the length of a with block."""
    with own_folder() as folder:
        primary = RedisServer(folder, password=password)
        servers = [primary]
        with ending(servers):
            primary.start()
            for _ in range(replicas):
                servers.append(RedisServer(folder, f"replicaof 127.0.0.1 {primary.port}", password=password))
                servers[-1].start()
            until(lambda: all(map(is_in_step, servers)), "the replicas follow")
            sentinels: list[RedisServer] = []
            with ending(sentinels):
                for _ in range(watchers):
                    lines = _watching(servers, watchers // 2 + 1)
                    sentinels.append(RedisServer(folder, *lines, password=sentinel_password, sentinel=True))
                    sentinels[-1].start()
                    # One that a busy machine keeps waiting for two seconds would do nothing for half a minute (TILT).
                    periods = ("INFO-PERIOD", 200, "PUBLISH-PERIOD", 200, "TILT-TRIGGER", PATIENCE_MS)
                    sentinels[-1].ask("SENTINEL", "DEBUG", *periods)
                together = RedisSentinels(servers, sentinels)
                until(lambda: all(_knows(each, watchers - 1, replicas) for each in sentinels), "the sentinels meet")
                until(lambda: together.is_at_peace, "the sentinels agree")
                yield together


def _watching(servers: list[RedisServer], quorum: int) -> Iterable[str]:
    primary, *_ = servers
    yield f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} {quorum}"
    yield f"sentinel down-after-milliseconds {SERVICE} {PATIENCE_MS}"
    yield f"sentinel failover-timeout {SERVICE} 5000"
    yield f"sentinel parallel-syncs {SERVICE} {len(servers)}"
    if primary.password:
        yield f"sentinel auth-pass {SERVICE} {primary.password}"


def _knows(sentinel: RedisServer, sentinels: int, replicas: int) -> bool:
    reply = sentinel.ask("SENTINEL", "MASTER", SERVICE)
    facts = dict(zip(reply[::2], reply[1::2], strict=True))
    known = (facts[b"num-other-sentinels"], facts[b"num-slaves"], facts[b"flags"])
    return known == (b"%d" % sentinels, b"%d" % replicas, b"master")
