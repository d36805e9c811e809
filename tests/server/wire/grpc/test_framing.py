from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import unquote_to_bytes

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.wire.grpc.calls import RpcError, StatusCode
from headgate.server.wire.grpc.framing import HEAD, MessageReader, error_head, framed, status, timeout


def test_a_timeout_is_a_number_and_a_unit() -> None:
    good = (b"1H", 3600), (b"2M", 120), (b"3S", 3), (b"20m", 0.02), (b"5u", 5e-6), (b"7n", 7e-9), (b"0S", 0)
    for encoded, seconds in good:
        assert timeout(encoded) == pytest.approx(seconds), encoded
    bad = b"", b"S", b"1", b"1s", b"-1S", b"+1S", b"1.5S", b" 1S", b"1 S", b"123456789S", "\u0661S".encode(), b"1SS"
    for encoded in bad:
        assert timeout(encoded) is None, encoded


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 40))
def test_messages_are_cut_out_whatever_the_pieces(sent: list[bytes], step: int) -> None:
    data = b"".join([framed(message) for message in sent])
    messages, seen = MessageReader(50), []
    for place in range(0, len(data), step):
        messages.receive(data[place : place + step])
        while (message := messages.take()) is not None:
            seen.append(message)
    assert seen == sent
    assert messages.pending == 0


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_refused(data: bytes) -> None:
    messages = MessageReader(20)
    messages.receive(data)
    with suppress(RpcError):
        while messages.take() is not None:
            pass
    assert messages.pending <= len(data)


@pytest.mark.parametrize(
    ("data", "encoding", "code"),
    [
        (framed(b"x" * 11), b"identity", StatusCode.RESOURCE_EXHAUSTED),
        (b"\0\xff\xff\xff\xff", b"identity", StatusCode.RESOURCE_EXHAUSTED),
        (b"\1\0\0\0\1x", b"snappy", StatusCode.UNIMPLEMENTED),
        (b"\1\0\0\0\1x", b"gzip", StatusCode.INTERNAL),
        (b"\1\0\0\0\0", b"gzip", StatusCode.INTERNAL),
        (b"\1" + framed(zlib.compress(b"x")[:-1])[1:], b"deflate", StatusCode.INTERNAL),
        (b"\1" + framed(zlib.compress(b"") + b"more")[1:], b"deflate", StatusCode.RESOURCE_EXHAUSTED),
        (b"\1" + framed(zlib.compress(b"") + b"xy")[1:], b"deflate", StatusCode.INTERNAL),
        (b"\1\0\0\0\1x", b"identity", StatusCode.INTERNAL),
        (b"\2\0\0\0\1x", b"gzip", StatusCode.INTERNAL),
    ],
)
def test_large_and_wrongly_compressed_messages_are_refused(data: bytes, encoding: bytes, code: StatusCode) -> None:
    messages = MessageReader(10, encoding)
    messages.receive(data)
    with pytest.raises(RpcError) as raised:
        messages.take()
    assert raised.value.code is code


@pytest.mark.parametrize(("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_compressed_messages_are_decompressed_as_far_as_messages_may_be_large(
    encoding: bytes, compress: Callable[[bytes], bytes]
) -> None:
    messages = MessageReader(2000, encoding)
    for each in (b"", b"x", b"ab" * 1000):
        messages.receive(b"\1" + framed(compress(each))[1:])
        assert messages.take() == each
    messages.receive(framed(b"plain"))
    assert messages.take() == b"plain"
    messages.receive(b"\1" + framed(compress(bytes(1_000_000)))[1:])
    with pytest.raises(RpcError, match="larger than 2000 bytes") as raised:
        messages.take()
    assert raised.value.code is StatusCode.RESOURCE_EXHAUSTED


def test_every_response_lists_the_accepted_compressions() -> None:
    for block in (HEAD, error_head(RpcError(StatusCode.ABORTED, ""))):
        fields = {str(name): str(value) for name, value in Decoder().decode(block)}
        assert fields["grpc-accept-encoding"] == "identity,gzip,deflate"


def test_many_small_messages_are_taken_without_moving_the_rest_each_time() -> None:
    messages = MessageReader(10)
    messages.receive(framed(b"") * 100_000)
    assert sum(1 for _ in iter(messages.take, None)) == 100_000


@given(st.text(max_size=100))
def test_the_text_of_a_status_is_percent_encoded(text: str) -> None:
    (_, code), (_, message), *_ = status(RpcError(StatusCode.NOT_FOUND, text))
    assert code == b"5"
    assert all(0x20 <= byte < 0x7F for byte in message)
    assert message == message.strip()
    assert unquote_to_bytes(message) == text.encode(errors="backslashreplace")
    error_head(RpcError(StatusCode.NOT_FOUND, text))


def test_the_text_of_a_status_is_not_endless() -> None:
    (_, _), (_, message) = status(RpcError(StatusCode.INTERNAL, "x" * 100_000))
    assert len(message) == 1000
