"""Servers of gRPC, both kinds, with real connections: all four kinds of methods, refusals, how calls end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any

import grpc
import grpc.aio
import pytest

from headgate.integrations import Budget
from headgate.integrations.grpc import AsyncRateLimitInterceptor, Outcome, RateLimitInterceptor
from headgate.testing import ManualClock
from headgate.web.errors import InvalidSettings

SERVICE = "test.Echo"
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def one(message: Any, context: Any) -> bytes:
    context.set_trailing_metadata((("own", "value"),))
    text = message if isinstance(message, bytes) else b"".join(message)
    if text == b"wrong":
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "unknown caller")
    if text == b"broken":
        raise LookupError
    return text


def many(message: Any, context: Any) -> Iterator[bytes]:
    text = message if isinstance(message, bytes) else b"".join(message)
    for letter in itertools.cycle(text) if text == b"endless" else text:
        yield bytes([letter])


async def one_async(message: Any, context: Any) -> bytes:
    context.set_trailing_metadata((("own", "value"),))
    text = message if isinstance(message, bytes) else b"".join([each async for each in message])
    if text == b"wrong":
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "unknown caller")
    if text == b"broken":
        raise LookupError
    return text


async def many_async(message: Any, context: Any) -> AsyncIterator[bytes]:
    text = message if isinstance(message, bytes) else b"".join([each async for each in message])
    for letter in itertools.cycle(text) if text == b"endless" else text:
        yield bytes([letter])


def handlers(single: Any, several: Any) -> Any:
    methods = {
        kind: getattr(grpc, f"{kind}_rpc_method_handler")(several if kind.endswith("stream") else single)
        for kind in KINDS
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


class Client:
    """Calls methods by their kind; returns the code, what came, and the trailing metadata."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def call(self, kind: str, text: bytes = b"hi", **metadata: str) -> tuple[grpc.StatusCode, bytes, dict[str, Any]]:
        method: Any = getattr(self._channel, kind)(f"/{SERVICE}/{kind}")
        message = iter([text]) if kind.startswith("stream") else text
        sent = [(name.replace("_", "-"), value) for name, value in metadata.items()]
        if kind.endswith("stream"):
            call, came = method(message, metadata=sent, timeout=60), b""
            with suppress(grpc.RpcError):
                came = b"".join(call)
            return call.code(), came, dict(call.trailing_metadata())
        try:
            came, call = method.with_call(message, metadata=sent, timeout=60)
        except grpc.RpcError as error:
            call, came = error, b""
        return call.code(), came, dict(call.trailing_metadata())

    def cancel(self, kind: str) -> None:
        """Read the beginning of a stream without end, and hang up."""
        call: Any = getattr(self._channel, kind)(f"/{SERVICE}/{kind}")(b"endless", timeout=60)
        assert next(call) == b"e"
        call.cancel()


@contextmanager
def blocking(**settings: Any) -> Iterator[Client]:
    with ThreadPoolExecutor(4) as pool:
        interceptor = RateLimitInterceptor(clock=ManualClock(), **settings)
        server = grpc.server(pool, handlers=[handlers(one, many)], interceptors=[interceptor])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Client(channel)
        server.stop(None).wait()


@contextmanager
def in_a_loop(**settings: Any) -> Iterator[Client]:
    """A server in an event loop, in a thread of its own."""
    loop = asyncio.new_event_loop()

    async def start() -> tuple[Any, int]:
        interceptor = AsyncRateLimitInterceptor(clock=ManualClock(), **settings)
        server = grpc.aio.server(handlers=[handlers(one_async, many_async)], interceptors=[interceptor])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(loop.run_forever)
        server, port = asyncio.run_coroutine_threadsafe(start(), loop).result()
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield Client(channel)
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(None), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            running.result()
    loop.close()


SERVERS = pytest.mark.parametrize("serving", [blocking, in_a_loop])


@SERVERS
def test_every_kind_of_method_is_limited_and_has_the_fields_as_metadata(serving: Any) -> None:
    with serving(limits=Budget(limits="1/minute")) as client:  # each method has its own
        for kind in KINDS:
            code, came, metadata = client.call(kind)
            assert (code, came, metadata["x-ratelimit-remaining"]) == (grpc.StatusCode.OK, b"hi", "0"), kind
            assert kind.endswith("stream") or metadata["own"] == "value"  # beside the metadata of the method
            code, came, metadata = client.call(kind)
            assert (code, came) == (grpc.StatusCode.RESOURCE_EXHAUSTED, b""), kind
            assert (metadata["retry-after"], metadata["grpc-retry-pushback-ms"]) == ("60", "60000")
            details = metadata["grpc-status-details-bin"]
            assert details.startswith(b"\x08\x08\x12")  # code 8, and a message
            assert details.endswith(b"type.googleapis.com/google.rpc.RetryInfo\x12\x04\x0a\x02\x08\x3c")  # 60 s


@SERVERS
def test_methods_and_services_have_limits_of_their_own(serving: Any) -> None:
    methods = {
        f"/{SERVICE}/unary_unary": "1/minute",
        f"/{SERVICE}/unary_stream": [Budget(limits="3/minute", replaces=True)],
        f"/{SERVICE}/*": Budget(limits="2/minute", name="service"),
    }
    with serving(limits="9/minute", methods=methods) as client:
        codes = [client.call(kind)[0].name for kind in ("unary_unary", "unary_unary", "stream_unary", "stream_unary")]
        assert codes == ["OK", "RESOURCE_EXHAUSTED", "OK", "RESOURCE_EXHAUSTED"]


@SERVERS
def test_keys_come_from_metadata_and_calls_without_one_are_refused(serving: Any) -> None:
    with serving(limits="1/minute", key=lambda call: call.metadata.get("x-user")) as client:
        codes = [client.call("unary_unary", x_user=user)[0].name for user in ("ada", "ada", "bob")]
        assert codes == ["OK", "RESOURCE_EXHAUSTED", "OK"]
        assert client.call("unary_unary")[0] is grpc.StatusCode.INVALID_ARGUMENT


@SERVERS
def test_count_when_and_refund_on_error_depend_on_the_status_of_a_call(serving: Any) -> None:
    unauthenticated = grpc.StatusCode.UNAUTHENTICATED
    with serving(limits="1/minute", count_when=lambda outcome: outcome.code is unauthenticated) as client:
        codes = [client.call("unary_unary", text)[0].name for text in (b"right", b"right", b"wrong", b"right")]
        assert codes == ["OK", "OK", "UNAUTHENTICATED", "RESOURCE_EXHAUSTED"]
    with serving(limits="1/minute", refund_on_error=True) as client:
        codes = [client.call("unary_unary", text)[0].name for text in (b"broken", b"broken", b"right", b"right")]
        assert codes == ["UNKNOWN", "UNKNOWN", "OK", "RESOURCE_EXHAUSTED"]


@SERVERS
def test_a_cancelled_stream_is_not_refunded(serving: Any) -> None:
    ended: SimpleQueue[grpc.StatusCode] = SimpleQueue()

    def counts(outcome: Outcome) -> bool:
        ended.put(outcome.code)
        return True

    with serving(limits="1/minute", refund_on_error=True, count_when=counts) as client:
        client.cancel("unary_stream")
        assert ended.get(timeout=60) is grpc.StatusCode.CANCELLED
        assert client.call("unary_stream")[0] is grpc.StatusCode.RESOURCE_EXHAUSTED


@SERVERS
def test_calls_count_by_the_address_of_the_peer_and_unknown_methods_are_unimplemented(serving: Any) -> None:
    with serving(limits="1/minute", exempt=lambda call: not call.peer.startswith("ipv4:127.0.0.1:")) as client:
        assert [client.call("unary_unary")[0].name for _ in range(2)] == ["OK", "RESOURCE_EXHAUSTED"]
        missing: Any = client._channel.unary_unary("/test.Echo/missing")
        with pytest.raises(grpc.RpcError) as error:
            missing(b"", timeout=60)
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("kind", [RateLimitInterceptor, AsyncRateLimitInterceptor])
def test_an_invalid_method_name_is_an_error(kind: Any) -> None:
    with pytest.raises(InvalidSettings, match=r"got 'Echo\.unary'"):
        kind(methods={"Echo.unary": "1/minute"})
    with pytest.raises(InvalidSettings, match="limits nothing"):
        kind(store="memory")
