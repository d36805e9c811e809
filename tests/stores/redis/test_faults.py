"""The Redis stores with faults of the server, the network and the callers.

No caller hangs; an error shows whether something may have been done; no answer is taken for another's; and the store
works again automatically. Each key has another number left, so that a swapped answer is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headgate.core.algorithms import Algorithm
from headgate.core.errors import OutcomeUnknown, StoreBusy, StoreError, StoreUnavailable, UsageError
from headgate.core.plan import Call, Plan, Verb
from headgate.core.quota import Quota
from headgate.stores import open_async_store
from headgate.stores.base import Store
from headgate.stores.redis import batching, protocol
from headgate.stores.redis.address import parse
from headgate.stores.redis.batching import Batcher
from headgate.stores.redis.pool import Pool
from headgate.stores.redis.protocol import LONGEST_PAUSE
from headgate.stores.redis.script import key_of
from headgate.stores.redis.store import AsyncRedisStore, RedisStore
from headgate.testing.blocking import Blocking
from headgate.testing.conformance import QUOTAS, family
from tests.proxy import Proxy, proxy
from tests.servers import RedisServer, redis_server, until
from tests.stores.redis.load import GIVE_UP, resumed
from tests.stores.redis.test_dialing import certify, tls_files

PATIENT = "timeout=20&connect_timeout=20"
"""Options of an address for calls that end soon, also on a busy machine."""
HOUR = 3600 * 1_000_000
PERSON = "user:ada@example.org"
"""A key that must not show in an error message."""
Open = Callable[[str], Store]
eventually = partial(resumed, seconds=GIVE_UP)


@pytest.fixture
def between(server: RedisServer) -> Iterator[Proxy]:
    with proxy(server.port) as between:
        yield between


def at(server: RedisServer, options: str = PATIENT) -> str:
    return f"redis://127.0.0.1:{server.port}/0?{options}"


def a_plan(limit: int = 100, key: str = PERSON) -> Plan:
    return family(Quota(limit, 10_000 * HOUR, algorithm=Algorithm.FIXED_WINDOW)).plan(key)


def outcome(call: Callable[[], Any]) -> Any:
    """Return what `call` returns, or the error of the store; nothing else may be raised."""
    answer: Any
    try:
        answer = call()
    except StoreError as error:
        answer = error
    assert "example.org" not in str(answer)
    return answer


class Keys:
    """Keys with an answer of their own each."""

    def __init__(self, count: int = 16) -> None:
        self.plans = [a_plan(1000 + number, f"key-{number}") for number in range(count)]

    def right(self, store: Store, number: int) -> bool:
        return store.run(Call(Verb.PEEK, self.plans[number])).remaining == 1000 + number

    def all_right(self, store: Store) -> bool:
        with ThreadPoolExecutor(8) as pool:
            return all(pool.map(lambda number: self.right(store, number), list(range(len(self.plans))) * 4))


@contextlib.contextmanager
def repeating(
    server: RedisServer, command: bytes, pause: float, after: threading.Event | None = None
) -> Iterator[None]:
    """Sends `command` to the server again and again during a with block; each time `after` something, if given."""
    over = threading.Event()
    connection = socket.create_connection(("127.0.0.1", server.port), GIVE_UP)

    def run() -> None:
        while not over.wait(pause):
            if after:
                if not after.is_set():
                    continue
                after.clear()
            connection.sendall(command + b"\r\n")
            assert connection.recv(1000)[:1] in b"+:"

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        connection.close()


class TestTheServer:
    def test_killed_and_started_again(self, own_redis: RedisServer, opened: Open) -> None:
        store, plan = opened(at(own_redis)), a_plan()
        assert store.run(Call(Verb.CHECK, plan))
        own_redis.stop()
        for _ in range(5):
            with pytest.raises(StoreError):
                store.run(Call(Verb.CHECK, plan))

        def is_refused() -> bool:
            with pytest.raises(StoreUnavailable) as raised:
                store.run(Call(Verb.CHECK, plan))
            return "cannot connect" in str(raised.value)

        until(is_refused, "another connection is tried after a rest")
        own_redis.start()
        decision = eventually(lambda: store.run(Call(Verb.CHECK, plan)))
        assert decision.remaining == 99, "the server has lost its state and the script, and decides anew"
        assert Keys().all_right(store)

    def test_killed_and_started_again_with_a_log_of_writes_it_has_lost_nothing(self, opened: Open) -> None:
        with redis_server("appendonly yes") as server:
            store, plan = opened(at(server)), a_plan()
            assert store.run(Call(Verb.CHECK, plan, 7)).remaining == 93
            server.stop()
            server.start()
            assert eventually(lambda: store.run(Call(Verb.CHECK, plan))).remaining == 92

    def test_stopped_and_continued(self, own_redis: RedisServer, opened: Open) -> None:
        store, plan, keys = opened(at(own_redis, "timeout=1&connect_timeout=0.3&connections=1")), a_plan(), Keys()
        assert opened(at(own_redis)).run(Call(Verb.CHECK, plan)).remaining == 99
        eventually(lambda: store.run(Call(Verb.PEEK, plan)))
        own_redis.send(signal.SIGSTOP)
        with pytest.raises(OutcomeUnknown, match="no response"):
            store.run(Call(Verb.CHECK, plan))
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda number: outcome(lambda: keys.right(store, number)), range(16)))
        assert all(isinstance(answer, StoreError) for answer in answers)
        own_redis.send(signal.SIGCONT)
        assert eventually(lambda: store.run(Call(Verb.PEEK, plan))).remaining in {98, 99}
        assert eventually(lambda: keys.all_right(store)), "no answer to an old question is taken for a new one"

    def test_forgets_the_script_all_the_time(self, own_redis: RedisServer, opened: Open) -> None:
        store, plan = opened(at(own_redis)), a_plan(150)
        with repeating(own_redis, b"SCRIPT FLUSH", 0.002), ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda _: store.run(Call(Verb.CHECK, plan)).allowed, range(600)))
        assert sum(answers) == 150

    def test_hangs_up_all_the_time(self, own_redis: RedisServer, opened: Open) -> None:
        store, plan, limit, answered = opened(at(own_redis)), a_plan(300), 300, threading.Event()

        def ask() -> tuple[int, int]:
            admitted = unknown = refused = 0
            give_up = time.monotonic() + GIVE_UP
            while refused < 20 and time.monotonic() < give_up:
                answer = outcome(lambda: store.run(Call(Verb.CHECK, plan)))
                if isinstance(answer, StoreUnavailable):  # surely nothing was done
                    time.sleep(0.002)
                elif isinstance(answer, OutcomeUnknown):
                    unknown += 1
                else:
                    admitted += answer.allowed
                    refused += not answer.allowed
                    answered.set()
            return admitted, unknown

        kill = b"CLIENT KILL TYPE normal SKIPME yes"
        with repeating(own_redis, kill, 0.01, after=answered), ThreadPoolExecutor(8) as pool:
            answers = [each.result(2 * GIVE_UP) for each in [pool.submit(ask) for _ in range(8)]]
        admitted, unknown = sum(pair[0] for pair in answers), sum(pair[1] for pair in answers)
        assert admitted <= limit <= admitted + unknown
        assert eventually(lambda: store.run(Call(Verb.PEEK, plan))).remaining == 0

    def test_out_of_memory(self, own_redis: RedisServer, opened: Open) -> None:
        store = opened(at(own_redis))
        plan = family(Quota(10, HOUR * 10_000), Quota(20, HOUR * 20_000)).plan(PERSON)
        assert store.run(Call(Verb.CHECK, plan, 2))
        own_redis.ask("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(StoreUnavailable, match="out of memory") as caught:
            store.run(Call(Verb.CHECK, plan))
        assert PERSON not in str(caught.value)
        own_redis.ask("CONFIG", "SET", "maxmemory", "0")
        assert [part.remaining for part in store.run(Call(Verb.PEEK, plan)).limits] == [8, 18], "nothing was charged"

    def test_a_server_that_may_evict_is_refused_unless_accepted(self, opened: Open) -> None:
        with redis_server("maxmemory 100mb", "maxmemory-policy allkeys-lru") as server:
            with pytest.raises(StoreUnavailable, match=r"allkeys-lru.*evict.*evicting=allow"):
                opened(at(server)).run(Call(Verb.CHECK, a_plan()))
            assert opened(at(server, f"{PATIENT}&evicting=allow")).run(Call(Verb.CHECK, a_plan()))

    def test_too_many_clients(self, own_redis: RedisServer, opened: Open) -> None:
        own_redis.ask("CONFIG", "SET", "maxclients", "1")
        with contextlib.ExitStack() as stack:

            def is_served() -> bool:  # once the server has noticed that those before have hung up
                only = stack.enter_context(socket.create_connection(("127.0.0.1", own_redis.port), GIVE_UP))
                only.sendall(b"PING\r\n")
                return only.recv(100) == b"+PONG\r\n"

            until(is_served, "there is one client")
            store = opened(at(own_redis))
            with pytest.raises(StoreUnavailable):
                store.run(Call(Verb.CHECK, a_plan()))
        assert eventually(lambda: store.run(Call(Verb.CHECK, a_plan())))

    def test_no_error_shows_the_key(self, opened: Open) -> None:
        plan = a_plan()
        with redis_server('rename-command EVALSHA ""') as server:
            answer = outcome(lambda: opened(at(server)).run(Call(Verb.CHECK, plan)))
            assert isinstance(answer, StoreUnavailable)
            assert "unknown command" in str(answer)
        with redis_server() as server:
            server.ask("LPUSH", key_of(plan[0].space, plan[0].principal), "alien")
            answer = outcome(lambda: opened(at(server)).run(Call(Verb.CHECK, plan)))
            assert isinstance(answer, OutcomeUnknown)


class TestAccess:
    def test_passwords(self, opened: Open) -> None:
        with redis_server("requirepass hunter2") as server:
            address = f"127.0.0.1:{server.port}?{PATIENT}"
            assert opened(f"redis://:hunter2@{address}").run(Call(Verb.CHECK, a_plan()))
            assert opened(f"redis://default:hunter2@{address}").run(Call(Verb.CHECK, a_plan()))
            with pytest.raises(StoreUnavailable, match="authentication is required"):
                opened(f"redis://{address}").run(Call(Verb.CHECK, a_plan()))
            with pytest.raises(StoreUnavailable, match="password is wrong") as caught:
                opened(f"redis://:hunter3@{address}").run(Call(Verb.CHECK, a_plan()))
            assert "hunter" not in str(caught.value)

    def test_a_password_that_the_server_does_not_want(self, server: RedisServer, opened: Open) -> None:
        with pytest.raises(StoreUnavailable, match="without any password configured"):
            opened(f"redis://:hunter2@127.0.0.1:{server.port}?{PATIENT}").run(Call(Verb.CHECK, a_plan()))

    def test_a_user_with_only_the_needed_permissions(self, own_redis: RedisServer, opened: Open) -> None:
        own_redis.ask("ACL", "SETUSER", "headgate", "on", ">pw", *protocol.PERMISSIONS.split())
        store = opened(f"redis://headgate:pw@127.0.0.1:{own_redis.port}?{PATIENT}")
        for quota in QUOTAS:
            plan = family(quota).plan("user")
            for _ in range(6):
                store.run(Call(Verb.CHECK, plan))
            own_redis.ask("PERSIST", key_of(plan[0].space, plan[0].principal))
            store.run(Call(Verb.PEEK, plan))
            store.run(Call(Verb.REFUND, plan, 2))
            store.run(Call(Verb.RESET, plan))
        own_redis.ask("SCRIPT", "FLUSH")
        assert store.run(Call(Verb.CHECK, a_plan()))

    def test_a_user_without_one_of_them(self, own_redis: RedisServer, opened: Open) -> None:
        """Each is needed, and the message has all of them."""
        for number, missing in enumerate(permissions := protocol.PERMISSIONS.split()):
            granted = [each for each in permissions if each != missing]
            own_redis.ask("ACL", "SETUSER", f"user-{number}", "on", ">pw", *granted)
            own_redis.ask("SCRIPT", "FLUSH")
            store, errors = opened(f"redis://user-{number}:pw@127.0.0.1:{own_redis.port}?{PATIENT}"), []
            log = family(Quota(40, HOUR, algorithm=Algorithm.SLIDING_WINDOW_LOG)).plan(PERSON)  # rewritten if short
            for plan in (family(QUOTAS[0]).plan(PERSON), log):
                calls = [*[Call(Verb.CHECK, plan)] * 41, Call(Verb.CHECK, plan, 5), Call(Verb.RESET, plan)]
                answers = [outcome(partial(store.run, call)) for call in calls]
                errors += [answer for answer in answers if isinstance(answer, StoreError)]
            assert errors, missing
            assert all("lacks a permission" in str(error) and protocol.PERMISSIONS in str(error) for error in errors)
            if missing in {"+evalsha", "+script|load", "~hg1:*"}:
                assert all(isinstance(error, StoreUnavailable) for error in errors), missing

    def test_a_database_number(self, own_redis: RedisServer, opened: Open) -> None:
        plan = a_plan()
        assert opened(f"redis://127.0.0.1:{own_redis.port}/3?{PATIENT}").run(Call(Verb.CHECK, plan)).remaining == 99
        assert opened(f"redis://127.0.0.1:{own_redis.port}/4?{PATIENT}").run(Call(Verb.CHECK, plan)).remaining == 99
        assert own_redis.facts("INFO", "keyspace").keys() == {"db3", "db4"}
        with pytest.raises(StoreUnavailable, match="DB index"):
            opened(f"redis://127.0.0.1:{own_redis.port}/99?{PATIENT}").run(Call(Verb.CHECK, plan))

    def test_a_unix_socket(self, server: RedisServer, opened: Open) -> None:
        assert (
            opened(f"redis+unix://{server.socket}?{PATIENT}&database=1").run(Call(Verb.CHECK, a_plan())).remaining == 99
        )
        with pytest.raises(StoreUnavailable, match="cannot connect"):
            opened(f"redis+unix://{server.socket}.gone?{PATIENT}").run(Call(Verb.CHECK, a_plan()))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a self-signed certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certify(folder)
    return folder


@pytest.fixture(scope="module")
def port(certificate: Path) -> Iterator[int]:
    with redis_server("tls-port {bus}", *tls_files(certificate), "tls-auth-clients no") as server:
        yield server.bus


class TestTls:
    def test_works_with_the_certificate(self, port: int, certificate: Path, opened: Open) -> None:
        store = opened(f"rediss://127.0.0.1:{port}?{PATIENT}&ca={certificate}/cert.pem")
        assert store.run(Call(Verb.CHECK, a_plan()))
        assert Keys().all_right(store)

    def test_refuses_untrusted_certificates_those_of_other_hosts_and_servers_without_tls(
        self, server: RedisServer, port: int, certificate: Path, opened: Open
    ) -> None:
        trusted = f"ca={certificate}/cert.pem"
        for address, message in (
            (f"127.0.0.1:{port}?{PATIENT}", r"(?i)certificate verify failed"),
            (f"localhost:{port}?{PATIENT}&{trusted}", r"(?i)hostname|host name|not valid for"),
            (f"127.0.0.1:{server.port}?timeout=5&connect_timeout=0.2&{trusted}", "rediss"),
        ):
            with pytest.raises(StoreUnavailable, match=message):
                opened(f"rediss://{address}").run(Call(Verb.CHECK, a_plan()))


class TestTheNetwork:
    def test_late_answers_are_discarded(self, between: Proxy, opened: Open) -> None:
        store, keys = opened(between.address("timeout=0.3&connect_timeout=5")), Keys()
        assert eventually(lambda: keys.all_right(store))
        for _ in range(3):
            between.open.clear()
            with ThreadPoolExecutor(8) as pool:
                answers = list(pool.map(lambda number: outcome(lambda: keys.right(store, number)), range(8)))
            assert all(isinstance(answer, StoreError) for answer in answers)
            assert any(isinstance(answer, OutcomeUnknown) for answer in answers)
            between.open.set()  # and here they come
            assert eventually(lambda: keys.all_right(store))

    def test_answers_in_pieces_of_one_byte(self, between: Proxy, opened: Open) -> None:
        between.segment = 1
        store = opened(between.address(PATIENT))
        assert Keys().all_right(store)

    def test_a_connection_closed_in_the_middle_of_an_answer(self, between: Proxy, opened: Open) -> None:
        store, keys = opened(between.address(f"{PATIENT}&connections=1")), Keys()
        for length in (0, 1, 3, 4, 10, 20):
            assert eventually(lambda: keys.right(store, 1))
            between.cut_after = length
            with pytest.raises(OutcomeUnknown, match="connection lost"):
                keys.right(store, 0)
        assert eventually(lambda: keys.all_right(store))

    @pytest.mark.parametrize("extra", [b":1\r\n", b"*1\r\n", b"*6\r\n:1\r\n:7\r\n:0\r\n:0\r\n:0\r\n:0\r\n", b"junk"])
    def test_unexpected_replies_are_not_answers(self, between: Proxy, opened: Open, extra: bytes) -> None:
        store, keys = opened(between.address(f"{PATIENT}&connections=1")), Keys()
        assert eventually(lambda: keys.right(store, 1))
        between.extra = extra
        assert outcome(lambda: keys.right(store, 0)) is not False
        assert eventually(lambda: keys.all_right(store))

    def test_a_slow_drip_does_not_stretch_the_deadline(self, opened: Open) -> None:
        """A server that sends a byte now and then, for ever, is given up like one that is silent."""

        def drip(connection: socket.socket) -> None:
            connection.sendall(b"$1000000\r\n")
            while True:
                connection.sendall(b"x")
                time.sleep(0.01)

        with impostor(drip) as port, pytest.raises(StoreUnavailable):
            opened(f"redis://127.0.0.1:{port}?timeout=0.2&connect_timeout=0.2").run(Call(Verb.CHECK, a_plan()))

    @pytest.mark.parametrize("host", ["no-such-host.invalid", "a..b", "x" * 70, "127.0.0.1:1"])
    def test_nothing_there(self, opened: Open, host: str) -> None:
        store = opened(f"redis://{host}?timeout=10&connect_timeout=5")
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="cannot connect"):
                store.run(Call(Verb.CHECK, a_plan()))

    @pytest.mark.parametrize(
        "answer",
        [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\xff" * 100, b"+OK\r\n" * 9, b"$-1\r\n", b"*0\r\n", b""],
        ids=["http", "noise", "always ok", "nil", "empty", "hangs up"],
    )
    def test_not_a_redis(self, opened: Open, answer: bytes) -> None:
        with impostor(lambda connection: connection.sendall(answer)) as port:
            store = opened(f"redis://127.0.0.1:{port}?{PATIENT}")
            with pytest.raises(StoreUnavailable, match=f"redis://127.0.0.1:{port}: .*(Redis|lost|not supported)"):
                store.run(Call(Verb.CHECK, a_plan()))

    def test_a_silent_server(self, opened: Open) -> None:
        with impostor(lambda connection: connection.recv(1)) as port:
            store = opened(f"redis://127.0.0.1:{port}?timeout=0.2&connect_timeout=0.2")
            for _ in range(3):
                with pytest.raises(StoreUnavailable):
                    store.run(Call(Verb.CHECK, a_plan()))


@contextlib.contextmanager
def impostor(reply: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server that reads once, replies, and hangs up; gives its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(1)
                    connection.recv(65_536)
                    reply(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        over.set()
        thread.join(GIVE_UP)
        listener.close()


class TestTheCallers:
    async def test_callers_cancelled_at_random_do_not_disturb_others(self, server: RedisServer) -> None:
        keys, chance = Keys(64), random.Random(7)

        async def ask(store: AsyncRedisStore, number: int) -> int:
            right = 0
            for _ in range(60):
                decision = await store.run(Call(Verb.PEEK, keys.plans[number]))
                assert decision.remaining == 1000 + number
                right += 1
            return right

        store = AsyncRedisStore(parse(server.address))
        victims = [asyncio.create_task(ask(store, number)) for number in range(32)]
        others = [asyncio.create_task(ask(store, number)) for number in range(32, 64)]
        for victim in chance.sample(victims, len(victims)):
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            victim.cancel()
        assert await asyncio.gather(*others) == [60] * 32
        ended = await asyncio.gather(*victims, return_exceptions=True)
        assert any(isinstance(each, asyncio.CancelledError) for each in ended)
        assert all(each == 60 or isinstance(each, asyncio.CancelledError) for each in ended)
        assert (await store.run(Call(Verb.PEEK, keys.plans[5]))).remaining == 1005
        assert_clean(store)
        await store.close()

    async def test_a_call_cancelled_before_it_is_sent_takes_nothing(self, server: RedisServer) -> None:
        plan = a_plan()
        store = AsyncRedisStore(parse(server.address))
        asking = asyncio.create_task(store.run(Call(Verb.CHECK, plan)))
        await asyncio.sleep(0)
        asking.cancel()
        assert (await store.run(Call(Verb.PEEK, plan))).remaining == 100
        await store.close()

    async def test_calls_above_the_longest_queue_fail_at_once(
        self, server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batching, "LONGEST_QUEUE", 10)
        plan = a_plan()
        store = AsyncRedisStore(parse(server.address))
        answers = await asyncio.gather(*(store.run(Call(Verb.CHECK, plan)) for _ in range(30)), return_exceptions=True)
        assert await store.run(Call(Verb.CHECK, plan))
        await store.close()
        shed = [answer for answer in answers if isinstance(answer, StoreBusy)]
        assert len(shed) == 20
        assert len({id(error) for error in shed}) == 20
        assert sum(not isinstance(answer, StoreError) for answer in answers) == 10

    def test_more_threads_than_connections_wait_or_fail(self, own_redis: RedisServer) -> None:
        store, plan = RedisStore(parse(at(own_redis, "timeout=0.3&connections=1"))), a_plan()
        eventually(lambda: store.run(Call(Verb.CHECK, plan)))
        own_redis.send(signal.SIGSTOP)
        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(lambda _: outcome(lambda: store.run(Call(Verb.CHECK, plan))), range(4)))
        assert all(isinstance(answer, StoreError) for answer in answers)
        own_redis.send(signal.SIGCONT)
        assert eventually(lambda: store.run(Call(Verb.CHECK, plan)))
        store.close()

    def test_a_store_serves_one_event_loop_after_another(self, server: RedisServer) -> None:
        store, plan = AsyncRedisStore(parse(server.address)), a_plan()
        with warnings.catch_warnings():
            # asyncio's: a loop was closed, and not the store before it
            warnings.simplefilter("ignore", ResourceWarning)
            assert [asyncio.run(store.run(Call(Verb.CHECK, plan))).remaining for _ in range(3)] == [99, 98, 97]
            asyncio.run(store.close())
            gc.collect()
        assert asyncio.run(closing(store, plan)).remaining == 96

    def test_a_store_does_not_serve_two_event_loops_at_once(self, server: RedisServer) -> None:
        store, plan = AsyncRedisStore(parse(server.address)), a_plan()
        first = Blocking(store)
        first.run(Call(Verb.CHECK, plan))
        with pytest.raises(UsageError, match="one event loop at a time"):
            asyncio.run(store.run(Call(Verb.CHECK, plan)))
        assert first.run(Call(Verb.CHECK, plan)).remaining == 98
        first.close()

    def test_closed_while_connecting(self, own_redis: RedisServer) -> None:
        own_redis.send(signal.SIGSTOP)

        async def run(turns: int) -> None:
            store = AsyncRedisStore(parse(at(own_redis)))
            asking = asyncio.ensure_future(store.run(Call(Verb.CHECK, a_plan())))
            for _ in range(turns):
                await asyncio.sleep(0)
            await store.close()
            with pytest.raises(StoreUnavailable, match="closed"):
                await asking
            assert asyncio.all_tasks() == {asyncio.current_task()}

        for turns in range(1, 8):
            asyncio.run(run(turns))

    def test_closed_during_a_call(self, between: Proxy, opened: Open) -> None:
        store, plan = opened(between.address(PATIENT)), a_plan()
        store.run(Call(Verb.CHECK, plan))
        between.open.clear()
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(outcome, lambda: store.run(Call(Verb.CHECK, plan)))
            time.sleep(0.05)
            if isinstance(store, RedisStore):
                store.close()
            else:
                assert isinstance(store, Blocking)
                store._wait(store._store.close())
            between.open.set()
            answer = asking.result(GIVE_UP)
        assert isinstance(answer, OutcomeUnknown) or answer.remaining == 98
        assert store.run(Call(Verb.CHECK, plan)), "a store that is used again opens again"

    def test_an_attempt_to_connect_that_was_cancelled_is_not_the_last(self, server: RedisServer) -> None:
        """As when a server that shuts down cancels all tasks, and then calls the store again."""

        async def run() -> None:
            store = AsyncRedisStore(parse(server.address))
            for turns in range(2, 8):
                asking = asyncio.ensure_future(store.run(Call(Verb.CHECK, a_plan())))
                for _ in range(turns):
                    await asyncio.sleep(0)
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.wait([asking])
                async with asyncio.timeout(GIVE_UP):
                    while not await asked(store):
                        pass
                await store.close()

        async def asked(store: AsyncRedisStore) -> bool:
            await asyncio.sleep(0.01)
            with contextlib.suppress(StoreUnavailable):
                return (await store.run(Call(Verb.CHECK, a_plan()))).allowed
            return False

        asyncio.run(run())

    async def test_a_thousand_failures_later_it_still_tries(self, own_redis: RedisServer) -> None:
        store = AsyncRedisStore(parse(own_redis.address))
        assert await store.run(Call(Verb.CHECK, a_plan()))
        for connection in batcher_of(store).connections:
            for _ in range(2000):
                connection._failed(StoreUnavailable("again"))
            assert connection._retry_at - asyncio.get_running_loop().time() <= LONGEST_PAUSE
            connection._retry_at = 0
        assert await store.run(Call(Verb.CHECK, a_plan()))
        await store.close()

    def test_a_forked_child_has_connections_and_locks_of_its_own(self, server: RedisServer) -> None:
        store, keys = RedisStore(parse(f"{server.address}&connections=1")), Keys()
        assert keys.right(store, 0)
        pool = store._servers
        assert isinstance(pool, Pool)
        pool._free.get()  # as if another thread of the parent were asking
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: a fork with threads
            child = os.fork()
        if child == 0:  # the child: nothing of pytest may run
            os._exit(0 if outcome(lambda: all(keys.right(store, number) for number in range(16))) is True else 1)
        pool._free.put(None)
        assert all(keys.right(store, number) for number in range(16))
        assert os.waitpid(child, 0)[1] == 0
        store.close()

    def test_sockets_with_high_numbers(self, server: RedisServer) -> None:
        """A busy process has more than 1024 files open."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.ExitStack() as stack:
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2400), hard))
            for _ in range(1050):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
            store, plan = RedisStore(parse(at(server))), a_plan()
            assert [store.run(Call(Verb.CHECK, plan)).remaining for _ in range(3)] == [99, 98, 97]
            store.close()


async def closing(store: AsyncRedisStore, plan: Plan) -> Any:
    decision = await store.run(Call(Verb.CHECK, plan))
    await store.close()
    return decision


def batcher_of(store: AsyncRedisStore) -> Batcher:
    found = store._connections.of(asyncio.get_running_loop())
    assert isinstance(found, Batcher)
    return found


def assert_clean(store: AsyncRedisStore) -> None:
    assert not batcher_of(store)._queue
    for connection in batcher_of(store).connections:
        assert not connection.batch
        assert not connection._expected
        assert not connection._reader.has_data()


QUOTA = Quota(10, 3600 * 1_000_000)


@pytest.mark.parametrize("alien", [("LPUSH", "x"), ("SET", "short")], ids=["type", "content"])
def test_a_key_with_something_else_in_it_fails_alone(server: RedisServer, alien: tuple[str, str]) -> None:
    limits = family(QUOTA)
    bad = limits.plan("bad")
    server.ask(alien[0], key_of(bad[0].space, bad[0].principal), alien[1])
    server.ask("PEXPIRE", key_of(bad[0].space, bad[0].principal), 3_600_000)

    async def run() -> list[object]:
        store = open_async_store(server.address)
        try:
            await store.ready()
            plans = [bad, *(limits.plan(f"good-{number}") for number in range(63))]
            return list(
                await asyncio.gather(*[store.run(Call(Verb.CHECK, plan)) for plan in plans], return_exceptions=True)
            )
        finally:
            await store.close()

    answer, *others = asyncio.run(run())
    assert isinstance(answer, OutcomeUnknown)
    assert [getattr(other, "remaining", other) for other in others] == [9] * 63


ASKING = """
import signal, sys
from headgate import Limiter
limiter = Limiter("5/hour", store=sys.argv[1], on_store_failure="raise")
print(limiter.check("user").allowed, flush=True)
sys.stdin.readline()
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
try:
    limiter.check("user")
except Exception as error:
    print(type(error).__name__)
"""


def test_a_call_ends_though_signals_interrupt_it_again_and_again() -> None:
    with redis_server() as server:
        address = f"redis://127.0.0.1:{server.port}/0?timeout=1&connect_timeout=20"
        asking = subprocess.Popen(
            [sys.executable, "-c", ASKING, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert asking.stdout
        assert asking.stdout.readline() == "True\n"
        server.send(signal.SIGSTOP)
        try:
            said, _ = asking.communicate("go on\n", timeout=60)
        finally:
            asking.kill()
        assert said == "OutcomeUnknown\n"
