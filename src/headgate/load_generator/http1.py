"""A client of HTTP/1.1 without I/O: one question at a time, on a connection that stays open."""

from __future__ import annotations

from headgate.core.errors import not_installed
from headgate.load_generator.outcomes import DENIED, SHED, BadAnswer, Outcome, failed
from headgate.load_generator.questions import Template, read_http

MOST_HEADERS = 65_536
MOST_BODY = 262_144
"""Bytes of an answer; more is no answer to a check."""


class Http1:
    """One connection."""

    def __init__(self, question: Template) -> None:
        try:
            import httptools  # noqa: PLC0415  an extra
        except ImportError:
            raise ImportError(not_installed("httptools", "server")) from None
        self._parser, self._error = httptools.HttpResponseParser(self), httptools.HttpParserError
        self._question, self._asked, self._waiting = question, 0, False
        self._body, self._header_bytes = b"", 0
        self._ended: list[tuple[int, Outcome | None]] = []
        self.is_over = False

    def greeting(self) -> bytes:
        return b""

    def room(self) -> int:
        return 0 if self._waiting or self.is_over else 1

    def ask(self, user: int) -> tuple[int, bytes]:
        self._waiting = True
        self._asked += 1
        return self._asked, self._question.filled(user)

    def receive(self, data: bytes) -> list[tuple[int, Outcome | None]]:
        try:
            self._parser.feed_data(data)
        except self._error as error:
            cause = error.__context__
            raise BadAnswer(str(cause if isinstance(cause, BadAnswer) else error)) from None
        ended, self._ended = self._ended, []
        return ended

    def reply(self) -> bytes:
        return b""

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._body, self._header_bytes = b"", 0

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > MOST_HEADERS:
            raise BadAnswer("its headers do not end")

    def on_body(self, part: bytes) -> None:
        self._body += part
        if len(self._body) > MOST_BODY:
            raise BadAnswer("its body does not end")

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # the answer is yet to come
            return
        if not self._waiting:
            raise BadAnswer("an answer that nobody asked for")
        self._waiting = False
        if not self._parser.should_keep_alive():
            self.is_over = True
        self._ended.append((self._asked, _outcome(status, self._body)))


def _outcome(status: int, body: bytes) -> Outcome:
    if status == 200:
        return read_http(body)
    if status == 429:
        return DENIED
    return SHED if status == 503 else failed(f"HTTP {status}")
