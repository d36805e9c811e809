"""A service that is killed, restarted, hangs or is slow, under load: a client always decides, within its share."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from headgate import Request, Ruling, StoreError, StoreUnavailable
from headgate.policy.selection import Verdict
from headgate.sdk import AsyncClient, Client, session
from headgate.stores.deadlines import TICK
from headgate.testing import ManualClock
from tests.proxy import Proxy, proxy
from tests.server.listening import Listening, listening
from tests.server.process.service import SECONDS, Service, service
from tests.servers import free_port, redis_server, until

RULES = """
version: 1
rules:
  - {id: orders, dimension: user, endpoint: /orders, limit: 1000, window: 365d, algorithm: fixed_window}
  - {id: free, dimension: user, endpoint: /free, limit: 5, window: 365d, on_store_failure: allow}
  - {id: strict, dimension: user, endpoint: /strict, limit: 5, window: 365d, on_store_failure: deny}
  - {id: trial, dimension: user, endpoint: /orders, limit: 1, window: 365d, shadow: true}
deny: [{ip: 192.0.2.0/24}]
"""
SHARE = 250
"""Of 1000, for one of 4."""
SCHEMES = ("http", "grpc")
TRANSPORTS = pytest.mark.parametrize("scheme", SCHEMES)
ORDER = Request({"user": "ada"}, "/orders")


@pytest.fixture
def rules(tmp_path: Path) -> str:
    path = tmp_path / "rules.yaml"
    path.write_text(RULES)
    return str(path)


def port_of(found: Service | Listening, scheme: str) -> int:
    if isinstance(found, Service):
        return found.http_port if scheme == "http" else found.grpc_port
    return found.http if scheme == "http" else found.grpc


class Load:
    """Threads that check, one after the other, for the length of a with block."""

    def __init__(self, client: Client, user: str) -> None:
        self._client, self._request, self._end = client, Request({"user": user}, "/orders"), threading.Event()
        self.rulings: list[Ruling] = []
        self.errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(6)]

    def _run(self) -> None:
        while not self._end.wait(0.002):
            try:
                self.rulings.append(self._client.check(self._request))
            except BaseException as error:  # noqa: BLE001  that there is none is what is tested
                self.errors.append(error)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(SECONDS)
        assert not any(thread.is_alive() for thread in self._threads), "a check hangs"

    def sees(self, what: Callable[[Ruling], bool], times: int = 20) -> None:
        """Wait for rulings of a kind, from now on."""
        begin = len(self.rulings)
        until(lambda: sum(map(what, self.rulings[begin:])) >= times, "such rulings", SECONDS)


@contextmanager
def under_load(*clients: Client) -> Iterator[tuple[Load, ...]]:
    """Load from several clients of one service, each for another user, once they have its rules."""
    with ExitStack() as stack:
        for client in clients:
            stack.enter_context(client)
            until(partial(knows_rules, client), "the client has rules", SECONDS)
        loads = tuple([stack.enter_context(Load(client, f"user-{place}")) for place, client in enumerate(clients)])
        for load in loads:
            load.sees(is_by_service)
        yield loads
    for load in loads:
        assert load.errors == []


def has_rules(client: Client | AsyncClient) -> bool:
    try:
        return bool(client.policy)
    except StoreUnavailable:
        return False


def knows_rules(client: Client) -> bool:
    """Peek, which makes the client fetch the rules; return whether it has them."""
    client.peek(ORDER)
    return has_rules(client)


def is_degraded(ruling: Ruling) -> bool:
    return ruling.degraded != ""


def is_by_service(ruling: Ruling) -> bool:
    return ruling.degraded == ""


def admitted_here(rulings: list[Ruling]) -> int:
    return sum(ruling.allowed for ruling in rulings if ruling.degraded)


def test_a_service_that_is_killed_and_started_again(rules: str) -> None:
    ports = {scheme: free_port() for scheme in SCHEMES}
    clients = [Client(f"{scheme}://127.0.0.1:{port}", nodes=4) for scheme, port in ports.items()]
    options = ("--rules", rules, "--http-port", str(ports["http"]), "--grpc-port", str(ports["grpc"]))
    with service(*options) as found:
        found.started()
        with under_load(*clients) as loads:
            found.signal(signal.SIGKILL)
            found.ended()
            for load in loads:
                load.sees(is_degraded)
                until(lambda load=load: load.rulings[-1].degraded == "circuit_open", "no check waits", SECONDS)  # type: ignore[misc]
            with service(*options) as again:
                again.started()
                for load in loads:
                    load.sees(is_by_service)
    for load in loads:
        assert 0 < admitted_here(load.rulings) <= SHARE
        assert {ruling.verdict for ruling in load.rulings} == {Verdict.LIMITED}


def test_a_service_that_hangs_and_one_that_is_slow(rules: str) -> None:
    with service("--rules", rules) as found, ExitStack() as stack:
        found.started()
        proxies = [stack.enter_context(proxy(port_of(found, scheme))) for scheme in SCHEMES]
        addresses = [f"{scheme}://127.0.0.1:{each.port}" for scheme, each in zip(SCHEMES, proxies, strict=True)]
        with under_load(*[Client(address, nodes=4, timeout=0.2) for address in addresses]) as loads:
            found.signal(signal.SIGSTOP)
            for load in loads:
                load.sees(is_degraded, 50)
            found.signal(signal.SIGCONT)
            for load, between in zip(loads, proxies, strict=True):
                load.sees(is_by_service)
                between.open.clear()
            for load, between in zip(loads, proxies, strict=True):
                load.sees(is_degraded, 50)
                between.open.set()
                load.sees(is_by_service)
    for load in loads:
        assert admitted_here(load.rulings) <= SHARE
        assert {"outcome_unknown", "circuit_open"} <= {ruling.degraded for ruling in load.rulings}


def test_one_of_several_nodes_is_down(rules: str) -> None:
    with service("--rules", rules) as first, service("--rules", rules) as second:
        clients = []
        for scheme in SCHEMES:
            ports = free_port(), *[port_of(each.started(), scheme) for each in (first, second)]
            down, *others = [f"{scheme}://127.0.0.1:{port}" for port in ports]
            client = Client(down, *others, nodes=4, timeout=30)
            assert {client.check(ORDER).degraded for _ in range(20)} == {""}
            until(lambda: client.check(ORDER) and client.statistics()[down].state != "closed", "it is left out")  # noqa: B023
            assert {client.statistics()[each].state for each in others} == {"closed"}
            clients.append(client)
        with under_load(*clients) as loads:
            second.signal(signal.SIGKILL)
            second.ended()
            for load in loads:
                load.sees(is_by_service, 100)
        for load in loads:
            assert {ruling.degraded for ruling in load.rulings} <= {"", "outcome_unknown"}


def test_bursts_are_decided_once_by_the_node_that_answers_while_another_hangs(rules: str) -> None:
    async def run(addresses: list[str], hanging: Service, left: int) -> None:
        async with AsyncClient(*addresses, timeout=3) as client:
            await asyncio.gather(*[client.check(ORDER) for _ in range(150)])
            await asyncio.sleep(2 * session.RECENT_SECONDS)  # for which a node that has answered is trusted
            hanging.signal(signal.SIGSTOP)
            for _ in range(2):
                rulings = await asyncio.gather(*[client.check(ORDER) for _ in range(150)])
                assert [ruling.degraded for ruling in rulings] == [""] * 150
            hanging.signal(signal.SIGCONT)  # it reads the requests that arrived meanwhile
        async with AsyncClient(addresses[1], timeout=30) as client:
            assert remaining(await client.peek(ORDER)) == left

    with redis_server() as redis:
        options = ("--rules", rules, "--store", redis.address)
        with service(*options) as first, service(*options) as second:
            for scheme, left in (("http", 550), ("grpc", 100)):
                ports = [port_of(each.started(), scheme) for each in (first, second)]
                asyncio.run(run([f"{scheme}://127.0.0.1:{port}" for port in ports], second, left))


def test_a_slow_node_is_retried_if_no_other_can_be_reached() -> None:
    with listening(RULES) as found, ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(2))
        slow = [stack.enter_context(proxy(port_of(found, scheme))) for scheme in SCHEMES]
        pending = []
        for place, (scheme, node) in enumerate(zip(SCHEMES, slow, strict=True)):
            node.open.clear()
            ports = [free_port()]
            ports.insert(place, node.port)
            client = stack.enter_context(Client(*[f"{scheme}://127.0.0.1:{port}" for port in ports], timeout=12))
            pending.append(threads.submit(client.check, Request({"user": scheme}, "/orders")))
        done = wait(pending, 5, FIRST_COMPLETED).done  # more than a third of the time, less than connecting may take
        assert not done, "the slow node did not respond in a third of the time, and has the rest"
        for node in slow:
            node.open.set()
        for each in pending:
            ruling = each.result(SECONDS)
            assert (ruling.degraded, remaining(ruling)) == ("", 999)


@pytest.fixture(params=["http", "grpc"])
def away(request: pytest.FixtureRequest) -> Iterator[Callable[..., Client]]:
    """Makes clients of a service that stops once they have its rules."""
    made: list[Client] = []

    def client(**options: Any) -> Client:
        with listening(RULES) as found:
            made.append(Client(f"{request.param}://127.0.0.1:{port_of(found, request.param)}", timeout=30, **options))
            until(lambda: knows_rules(made[-1]), "the client has rules", SECONDS)
        return made[-1]

    yield client
    for each in made:
        each.close()


def test_each_rule_has_its_mode_while_the_service_is_down(away: Callable[..., Client]) -> None:
    client = away(nodes=4)
    assert [client.check(Request({"user": "u"}, "/free")).allowed for _ in range(7)] == [True] * 7
    assert not client.check(Request({"user": "u"}, "/strict")).allowed
    rulings = [client.check(ORDER) for _ in range(SHARE + 1)]
    assert [ruling.allowed for ruling in rulings] == [True] * SHARE + [False]
    assert all(ruling.degraded and ruling.rule_id == "orders" and ruling.shadow for ruling in rulings)
    assert client.check(Request({"ip": "192.0.2.1"}, "/orders")).verdict is Verdict.DENIED
    assert client.check(Request({"user": "u"}, "/none")).verdict is Verdict.UNLIMITED
    assert client.mode_of("strict") == "deny"


def test_local_decisions_are_refunded_locally(away: Callable[..., Client]) -> None:
    client = away(nodes=500)
    ruling = client.check(ORDER)
    assert ruling.allowed
    assert client.check(ORDER).allowed
    assert not client.check(ORDER)
    refunded = client.refund(ruling)
    assert refunded.decision is not None
    assert refunded.decision.remaining == 1
    assert client.check(ORDER).allowed


def test_charges_of_the_service_are_refunded_once_it_is_up_again() -> None:
    clock = ManualClock()
    with listening(RULES, clock=clock) as found:
        between = Proxy(found.http)
        with Client(f"http://127.0.0.1:{between.port}", timeout=30, clock=clock) as client:
            ruling = client.check(ORDER)
            between.close()
            until(lambda: client.peek(ORDER).degraded == "storage_unavailable", "nothing listens")
            assert client.refund(ruling).degraded
        with Client(f"http://127.0.0.1:{found.http}", timeout=30, clock=clock) as client:
            assert remaining(client.refund(ruling)) == 1000
            assert client.check(ORDER)
            assert remaining(client.refund(ruling)) == 999, "once"


def test_resets_raise_while_the_service_is_down(away: Callable[..., Client]) -> None:
    client = away(nodes=1000)
    assert client.check(ORDER).allowed
    assert not client.check(ORDER).allowed
    with pytest.raises(StoreError):
        client.reset(ORDER)
    assert client.check(ORDER).allowed, "what was used here is forgotten all the same"
    with pytest.raises(StoreError):
        client.reset_all(ORDER)
    with pytest.raises(StoreError):
        client.ready()


def test_the_other_verbs_while_the_service_is_down(away: Callable[..., Client]) -> None:
    client = away()
    assert client.peek(ORDER).degraded
    assert client.is_passed("ada", "orders").limit == 1000
    assert client.check_once(ORDER, "k").degraded
    assert [bool(each) for each in client.check_batch([ORDER, ORDER])] == [True, True]
    assert client.explain(ORDER).ruling.degraded


SETTINGS: list[tuple[Any, bool]] = [
    ({}, False),
    ({"without_rules": "allow"}, True),
    ({"on_service_failure": "allow"}, True),
    ({"on_service_failure": "deny", "without_rules": "allow"}, False),
]


@TRANSPORTS
@pytest.mark.parametrize(("options", "allowed"), SETTINGS)
def test_without_rules_a_setting_decides_which_is_logged(
    scheme: str, options: Any, *, allowed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(f"{scheme}://127.0.0.1:{free_port()}", timeout=30, **options) as client:
        ruling = client.check(ORDER)
        assert (ruling.allowed, ruling.verdict, ruling.decision) == (allowed, Verdict.UNDECIDED, None)
        assert ruling.degraded == "storage_unavailable"
        assert client.peek(ORDER).allowed is allowed
        assert client.is_passed("ada", "orders").passed is allowed
        assert client.refund(ruling).allowed is allowed
        with pytest.raises(StoreUnavailable, match="not known yet"):
            _ = client.policy
        with pytest.raises(StoreError):
            client.explain(ORDER)
    assert ("every request is allowed" if allowed else "every request is refused") in caplog.text


def test_only_checks_with_a_key_are_retried_after_a_lost_response() -> None:
    clock = ManualClock()
    with (
        listening(RULES, clock=clock) as found,
        proxy(found.http) as between,
        Client(f"http://127.0.0.1:{between.port}", timeout=30, rules_every=3600, clock=clock) as client,
    ):
        until(lambda: knows_rules(client), "the client has rules, and sends nothing else automatically", SECONDS)
        between.cut_after = 0
        assert client.check(ORDER).degraded == "outcome_unknown"
        assert remaining(client.peek(ORDER)) == 999
        between.cut_after = 0
        kept = client.check_once(ORDER, "order-1")
        assert (kept.degraded, remaining(kept)) == ("", 998)
        between.cut_after = 0
        assert remaining(client.peek(ORDER)) == 998


@TRANSPORTS
def test_a_node_that_is_slow_to_connect_is_waited_for_as_long_as_the_client_has_time(scheme: str) -> None:
    with listening(RULES) as found, proxy(port_of(found, scheme)) as between, ThreadPoolExecutor(1) as thread:
        between.open.clear()
        with Client(f"{scheme}://127.0.0.1:{between.port}", timeout=60) as client:
            pending = thread.submit(client.check, ORDER)
            assert not wait([pending], 0.5).done, "there is no response yet, and it does not give up"
            between.open.set()
            assert pending.result(SECONDS).degraded == ""


@TRANSPORTS
def test_a_check_ends_in_time_if_the_timer_of_the_one_before_rings_as_it_begins(scheme: str) -> None:
    """The timer sees no open call then, and stops."""

    async def ask() -> None:
        with listening(RULES) as found, proxy(port_of(found, scheme)) as between:
            async with AsyncClient(f"{scheme}://127.0.0.1:{between.port}", timeout=0.5, rules_every=3600) as client:
                for _ in range(3):  # a slow machine may let the timer ring too early
                    await client.peek(ORDER)
                    between.open.clear()
                    time.sleep(2 * TICK)  # noqa: ASYNC251  the loop is busy until the timer is due
                    await asyncio.sleep(0)
                    async with asyncio.timeout(SECONDS):
                        assert (await client.check(ORDER)).degraded
                    between.open.set()

    asyncio.run(ask())


@TRANSPORTS
def test_closing_a_client_leaves_the_outcome_of_pending_checks_unknown(scheme: str) -> None:
    with listening(RULES) as found, proxy(port_of(found, scheme)) as between, ThreadPoolExecutor(1) as thread:
        address = f"{scheme}://127.0.0.1:{{}}".format
        client = Client(address(between.port), timeout=60, rules_every=3600)
        until(lambda: knows_rules(client), "the client has rules", SECONDS)
        with Client(address(port_of(found, scheme)), timeout=60, rules_every=3600) as other:
            between.open.clear()
            pending = thread.submit(client.check, ORDER)
            until(lambda: remaining(other.peek(ORDER)) == 999, "the service has decided", SECONDS)
            client.close()
            ruling = pending.result(SECONDS)
            assert (ruling.allowed, ruling.degraded) == (True, "outcome_unknown")
            between.open.set()


@TRANSPORTS
def test_closing_an_asynchronous_client_leaves_the_outcome_of_pending_checks_unknown(scheme: str) -> None:
    async def ask() -> None:
        with listening(RULES) as found, proxy(port_of(found, scheme)) as between:
            address = f"{scheme}://127.0.0.1:{{}}".format
            client = AsyncClient(address(between.port), timeout=60, rules_every=3600)
            while not has_rules(client):
                await client.peek(ORDER)
            async with AsyncClient(address(port_of(found, scheme)), timeout=60, rules_every=3600) as other:
                between.open.clear()
                pending = asyncio.create_task(client.check(ORDER))
                while remaining(await other.peek(ORDER)) != 999:
                    pass  # the service has not decided yet
                await client.close()
                ruling = await pending
                assert (ruling.allowed, ruling.degraded) == (True, "outcome_unknown")
                between.open.set()

    asyncio.run(asyncio.wait_for(ask(), SECONDS))


def remaining(ruling: Ruling) -> int:
    assert ruling.decision is not None
    return ruling.decision.remaining


@TRANSPORTS
async def test_a_cancelled_caller_does_not_affect_others(scheme: str) -> None:
    with listening(RULES) as found, proxy(port_of(found, scheme)) as between:
        async with AsyncClient(f"{scheme}://127.0.0.1:{between.port}", timeout=30) as client:
            await client.check(ORDER)
            between.open.clear()
            pending = [asyncio.create_task(client.check(ORDER)) for _ in range(20)]
            await asyncio.sleep(0)
            for task in pending[::2]:
                task.cancel()
            between.open.set()
            rulings = await asyncio.gather(*pending, return_exceptions=True)
            assert [type(each) for each in rulings] == [asyncio.CancelledError, Ruling] * 10
            assert all(is_by_service(each) for each in rulings if isinstance(each, Ruling))
            assert is_by_service(await client.check(ORDER))


def test_a_client_in_an_event_loop_answers_while_the_service_hangs_and_after() -> None:
    async def ask() -> None:
        with listening(RULES) as found, proxy(found.http) as between:
            async with AsyncClient(f"http://127.0.0.1:{between.port}", timeout=0.2, nodes=4) as client:
                while not has_rules(client):
                    await client.peek(ORDER)
                between.open.clear()
                rulings: list[Ruling] = []
                while not rulings or rulings[-1].degraded != "circuit_open":
                    rulings += await asyncio.gather(*[client.check(ORDER) for _ in range(10)])
                between.open.set()
                while rulings[-1].degraded:
                    rulings.append(await client.check(ORDER))
                    await asyncio.sleep(0.01)
                assert admitted_here(rulings) <= SHARE

    asyncio.run(asyncio.wait_for(ask(), SECONDS))
