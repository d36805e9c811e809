"""Runs against real servers, good and bad: bounded, and honest about what was not answered."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import pytest

from headgate.core.errors import UsageError
from headgate.load_generator.http1 import Http1
from headgate.load_generator.http2 import Http2
from headgate.load_generator.questions import Asked, Service, grpc_method, http_question
from headgate.load_generator.running import Plan, Progress, Run
from headgate.load_generator.statistics import Summary
from headgate.load_generator.targets import NotSpoken, Target, Unreachable
from tests.load_generator.peers import (
    ALLOWED,
    DENIED,
    NO,
    YES,
    Behaviour,
    answering,
    grpc_peer,
    peer,
    question,
    response,
)
from tests.servers import free_port


def run_of(target: Target, plan: Plan, **more: Any) -> Run:
    if target.grpc:
        method = grpc_method(Service.RLS, Asked())
        return Run(target, plan, lambda: Http2(target, method, 8), **more)
    asked = http_question(target, Asked())
    return Run(target, plan, lambda: Http1(asked), **more)


async def loaded(behave: Behaviour, plan: Plan) -> Summary:
    async with peer(behave) as target:
        return await run_of(target, plan).run()


def load(behave: Behaviour, plan: Plan) -> Summary:
    return asyncio.run(loaded(behave, plan))


def ended(summary: Summary) -> int:
    return summary.allowed + summary.denied + summary.shed + summary.failed


def test_as_many_as_wanted_are_asked_and_told_apart() -> None:
    busy, broken = response(b"busy", 503), response(b"oh", 500)
    summary = load(answering(YES, NO, YES, busy, broken), Plan(requests=1000, seconds=60, connections=8))
    assert (summary.sent, summary.allowed, summary.denied, summary.shed) == (1000, 400, 200, 200)
    assert summary.errors == {"HTTP 500": 200}
    assert (summary.missed, summary.connects, summary.connections_lost) == (0, 8, 0)
    assert summary.latency is not None
    assert sum(count for _, count in summary.latency.histogram) == 600
    assert summary.rate == 600 / summary.seconds


def test_fewer_requests_than_connections() -> None:
    assert load(answering(YES), Plan(requests=3, seconds=60, connections=10)).allowed == 3


def test_users_take_turns() -> None:
    seen: Counter[bytes] = Counter()

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while request := await question(reader):
            seen[request.partition(b'"user":"')[2][:12]] += 1
            writer.write(YES)

    load(behave, Plan(requests=90, seconds=60, connections=4, users=3))
    assert seen == {b"load-0000000": 30, b"load-0000001": 30, b"load-0000002": 30}


def test_time_ends_it() -> None:
    summary = load(answering(YES), Plan(seconds=0.2, connections=2))
    assert summary.seconds >= 0.2
    assert summary.sent == summary.allowed > 0


def test_the_open_loop_asks_as_often_as_it_should() -> None:
    summary = load(answering(YES), Plan(requests=200, rate=1000, seconds=60, connections=4))
    assert (summary.allowed, summary.missed) == (200, 0)
    assert summary.seconds >= 0.199


def test_in_the_open_loop_waiting_for_a_free_connection_is_part_of_the_latency() -> None:
    """One answer that takes long delays all that are due behind it, and that shows."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await question(reader)
        await asyncio.sleep(0.3)
        writer.write(YES)
        await answering(YES)(reader, writer)

    summary = load(behave, Plan(requests=100, rate=1000, seconds=60, connections=1))
    assert summary.allowed == 100
    assert summary.latency is not None
    assert summary.latency.percentiles["p50"] >= 200_000


def test_in_the_open_loop_what_could_not_be_sent_is_told() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await question(reader):
            await asyncio.sleep(0.2)
            writer.write(YES)

    summary = load(behave, Plan(rate=1000, seconds=0.5, connections=1))
    assert summary.sent == ended(summary) < 20
    assert summary.missed > 400


def test_a_server_that_closes_after_each_answer_is_connected_to_again() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await question(reader)
        writer.write(response(b'{"allowed": true}', 200, b"connection: close"))

    summary = load(behave, Plan(requests=50, seconds=60, connections=2))
    assert (summary.allowed, summary.failed, summary.connections_lost) == (50, 0, 0)
    assert summary.connects >= 50


def test_connections_that_are_lost_are_errors_and_made_anew() -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(5):
            await question(reader)
            writer.write(YES)
        await question(reader)

    summary = load(behave, Plan(requests=60, seconds=60, connections=1))
    assert (summary.sent, summary.allowed, summary.errors) == (60, 50, {"connection lost": 10})
    assert summary.connections_lost == 10


def test_garbage_is_never_a_success() -> None:
    summary = load(answering(b"SSH-2.0-OpenSSH_9.2\r\n"), Plan(requests=4, seconds=60, connections=2))
    assert summary.errors == {"answer not understood": 4}
    assert (summary.decided, summary.latency) == (0, None)


def test_silence_is_no_answer_in_time() -> None:
    async def behave(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        while await question(reader):
            pass

    summary = load(behave, Plan(requests=2, seconds=60, connections=2, timeout=0.5))
    assert summary.errors == {"no answer in time": 2}


def test_the_last_answers_are_waited_for_but_not_for_ever() -> None:
    async def behave(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        while await question(reader):
            pass

    summary = load(behave, Plan(seconds=0.05, connections=3, timeout=0.5))
    assert summary.sent == summary.failed == 3


def test_a_server_that_goes_away_does_not_hang_it() -> None:
    async def run() -> Summary:
        answered = asyncio.Event()

        async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await question(reader):
                writer.write(YES)
                answered.set()

        async with peer(behave) as target:
            running = asyncio.create_task(run_of(target, Plan(seconds=0.5, connections=2)).run())
            await answered.wait()
        return await running

    summary = asyncio.run(run())
    assert summary.sent == ended(summary) > 0
    assert summary.connects_failed > 0


def test_a_service_that_is_gone_is_not_waited_for_until_time_is_over() -> None:
    async def run() -> Summary:
        answered = asyncio.Event()

        async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await question(reader)
            writer.write(YES)
            answered.set()

        async with peer(behave) as target:
            running = asyncio.create_task(run_of(target, Plan(seconds=3600, connections=1, timeout=0.5)).run())
            await answered.wait()
        return await running

    summary = asyncio.run(run())
    assert summary.gone
    assert summary.sent == ended(summary)


@pytest.mark.parametrize("grpc", [False, True])
def test_nothing_that_listens_is_said_at_once(grpc: bool) -> None:  # noqa: FBT001  a table
    target = Target("127.0.0.1", free_port(), grpc=grpc)
    with pytest.raises(Unreachable, match=f"nothing listens at 127.0.0.1:{target.port} .*headgate serve"):
        asyncio.run(run_of(target, Plan(connections=3)).run())


def test_an_interruption_ends_it_with_what_was_found() -> None:
    async def run() -> Summary:
        async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(10):
                await question(reader)
                writer.write(YES)
            await question(reader)
            running.interrupt()
            await question(reader)

        async with peer(behave) as target:
            running = run_of(target, Plan(seconds=60, connections=1))
            return await running.run()

    summary = asyncio.run(run())
    assert summary.interrupted
    assert (summary.sent, summary.allowed, summary.errors) == (11, 10, {"no answer when it ended": 1})


def test_an_interruption_before_the_first_connection_is_one_too() -> None:
    async def run() -> Summary:
        async with peer(answering(YES)) as target:
            running = run_of(target, Plan(seconds=60, connections=1))
            running.interrupt()
            return await running.run()

    summary = asyncio.run(run())
    assert (summary.interrupted, summary.sent) == (True, 0)


def test_the_open_loop_is_over_when_it_should_be() -> None:
    """In half a second 50 are due, and not one more is asked."""
    summary = load(answering(YES), Plan(rate=100, seconds=0.5, connections=4))
    assert summary.sent + summary.missed == 50


@pytest.mark.parametrize(("grpc", "module"), [(False, "httptools"), (True, "hpack")])
def test_a_missing_package_is_named(grpc: bool, module: str, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"{module} is not installed: pip install {module}, "):
        asyncio.run(run_of(Target("127.0.0.1", 1, grpc=grpc), Plan()).run())


def test_how_it_goes_is_told() -> None:
    told: list[Progress] = []

    async def run() -> None:
        def watch(progress: Progress) -> None:
            told.append(progress)
            running.interrupt()

        async with peer(answering(YES, response(b"", 500))) as target:
            running = run_of(target, Plan(seconds=60, connections=1), watch=watch)
            await running.run()

    asyncio.run(run())
    (progress,) = told
    assert progress.seconds >= 1
    assert progress.decided > 0
    assert progress.failed > 0
    assert progress.recently <= progress.decided


@pytest.mark.parametrize(
    "wrong",
    [
        {"requests": 0},
        {"requests": 10**9},
        {"seconds": 0},
        {"seconds": 10_000},
        {"seconds": float("nan")},
        {"connections": 0},
        {"connections": 10_000},
        {"rate": 0},
        {"rate": float("inf")},
        {"timeout": 0},
    ],
)
def test_a_plan_is_bounded(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Plan(**wrong)


def grpc_answer(message: bytes, context: grpc.ServicerContext) -> bytes:
    """By the last digit of the user."""
    digit = message[message.index(b"load-") + 11 :][:1]
    if digit == b"3":
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "later")
    if digit == b"4":
        context.abort(grpc.StatusCode.INTERNAL, "broken")
    return DENIED if digit == b"2" else ALLOWED


def test_over_grpc_as_many_as_wanted_are_asked_and_told_apart() -> None:
    with grpc_peer(grpc_answer) as (target, _):
        summary = asyncio.run(run_of(target, Plan(requests=500, seconds=60, connections=2, users=5)).run())
    assert (summary.allowed, summary.denied, summary.shed) == (200, 100, 100)
    assert summary.errors == {"gRPC INTERNAL": 100}
    assert summary.connections_lost == 0


def test_over_grpc_an_unknown_method_is_an_error() -> None:
    with grpc_peer(grpc_answer) as (target, _):
        method = grpc_method(Service.HEADGATE, Asked())
        run = Run(target, Plan(requests=10, seconds=60, connections=1), lambda: Http2(target, method, 8))
        summary = asyncio.run(run.run())
    assert summary.errors == {"gRPC UNIMPLEMENTED": 10}


def test_over_grpc_what_a_server_did_not_look_at_is_asked_again() -> None:
    """It says goodbye to the first connection with the first question on it, and answers on the second."""
    connections = 0

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        says_goodbye = connections == 1
        machine = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False))
        machine.initiate_connection()
        writer.write(machine.data_to_send())
        while data := await reader.read(65_536):
            for event in machine.receive_data(data):
                if isinstance(event, h2.events.StreamEnded) and says_goodbye:
                    machine.close_connection(last_stream_id=0)
                    writer.write(machine.data_to_send())
                    return
                if isinstance(event, h2.events.StreamEnded):
                    machine.send_headers(event.stream_id, [(":status", "200"), ("content-type", "application/grpc")])
                    machine.send_data(event.stream_id, b"\0\0\0\0\2" + ALLOWED)
                    machine.send_headers(event.stream_id, [("grpc-status", "0")], end_stream=True)
            writer.write(machine.data_to_send())

    async def run() -> Summary:
        async with peer(behave) as target:
            spoken = Target(target.host, target.port, grpc=True)
            return await run_of(spoken, Plan(requests=100, seconds=60, connections=1)).run()

    summary = asyncio.run(run())
    assert (summary.sent, summary.allowed, summary.errors) == (100, 100, {})
    assert (summary.connects, summary.connections_lost) == (2, 0)


def test_a_server_of_http_1_is_not_understood_over_grpc() -> None:
    async def run() -> Summary:
        async with peer(answering(YES)) as target:
            spoken = Target(target.host, target.port, grpc=True)
            return await run_of(spoken, Plan(seconds=60, connections=2, timeout=0.5)).run()

    with pytest.raises(NotSpoken, match="has not begun to speak HTTP/2, which gRPC needs"):
        asyncio.run(run())
