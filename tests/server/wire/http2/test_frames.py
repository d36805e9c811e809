"""Frames are written as RFC 9113 says: the h2 project's own frames are the judge."""

from __future__ import annotations

import pytest
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from headgate.server.wire.http2 import frames
from headgate.server.wire.http2.frames import ErrorCode

BUILT = [
    (frames.data(5, b"abc"), DataFrame(5, b"abc")),
    (frames.data(5, b"", end=True), DataFrame(5, b"", flags=["END_STREAM"])),
    (frames.headers(7, b"block"), HeadersFrame(7, b"block", flags=["END_HEADERS"])),
    (frames.headers(7, b"block", end=True), HeadersFrame(7, b"block", flags=["END_HEADERS", "END_STREAM"])),
    (frames.settings([(1, 4096), (4, 1 << 31)]), SettingsFrame(0, settings={1: 4096, 4: 1 << 31})),
    (frames.SETTINGS_ACK, SettingsFrame(0, flags=["ACK"])),
    (frames.ping(b"12345678"), PingFrame(0, b"12345678")),
    (frames.ping(b"12345678", ack=True), PingFrame(0, b"12345678", flags=["ACK"])),
    (
        frames.goaway(9, ErrorCode.ENHANCE_YOUR_CALM, b"slow down"),
        GoAwayFrame(0, last_stream_id=9, error_code=11, additional_data=b"slow down"),
    ),
    (frames.reset(3, ErrorCode.CANCEL), RstStreamFrame(3, error_code=8)),
    (frames.window_update(3, 70_000), WindowUpdateFrame(3, window_increment=70_000)),
]


@pytest.mark.parametrize(("ours", "theirs"), BUILT, ids=lambda frame: type(frame).__name__)
def test_a_frame_is_what_others_would_write(ours: bytes, theirs: Frame) -> None:
    assert ours == theirs.serialize()


def test_a_block_that_is_too_large_for_a_frame_continues_in_others() -> None:
    block = bytes(range(250))
    assert frames.headers(1, block, end=True, size=100) == b"".join(
        frame.serialize()
        for frame in (
            HeadersFrame(1, block[:100], flags=["END_STREAM"]),
            ContinuationFrame(1, block[100:200]),
            ContinuationFrame(1, block[200:], flags=["END_HEADERS"]),
        )
    )


def test_a_block_that_fills_a_frame_needs_no_other() -> None:
    assert frames.headers(1, b"x" * 100, size=100) == HeadersFrame(1, b"x" * 100, flags=["END_HEADERS"]).serialize()


def test_the_header_of_a_frame_is_read_at_any_offset() -> None:
    assert frames.read_header(b"..." + frames.data(5, b"abc", end=True), 3) == (3 << 8 | frames.DATA, 1, 5)


def test_settings_are_read_in_order() -> None:
    assert frames.read_settings(frames.settings([(4, 1), (4, 2)])[9:]) == [(4, 1), (4, 2)]
