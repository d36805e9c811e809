"""The script on a real server, without a store around it: for tests of what it does at a given time."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Self

import hiredis

from headgate.core.decision import Decision
from headgate.core.plan import Plan
from headgate.stores.redis import scripts
from headgate.stores.redis.resp import command
from tests.servers import RedisServer


class Script:
    """A connection to `server`, for a with block."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    def __enter__(self) -> Self:
        self._socket = socket.create_connection(("127.0.0.1", self._server.port), 20)
        self._reader = hiredis.Reader()
        self.converse(command(b"SCRIPT", b"LOAD", scripts.SCRIPT))
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def converse(self, sent: bytes) -> object:
        """Send one command, and return its reply."""
        self._socket.sendall(sent)
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65_536))
        if isinstance(reply, Exception):
            raise reply
        return reply

    def answer(self, question: scripts.Question, now: int | None) -> Sequence[int]:
        (answer,) = scripts.answers(self.converse(scripts.evaluation([question], now)), [question])
        return answer

    def check(self, plan: Plan, cost: int, now: int) -> Decision:
        return scripts.decision_of(plan, self.answer(scripts.question(scripts.CHECK, plan, cost), now), cost)

    def peek(self, plan: Plan, now: int) -> Decision:
        return scripts.decision_of(plan, self.answer(scripts.question(scripts.PEEK, plan, 1), now))

    def once(self, plan: Plan, cost: int, now: int, token: bytes) -> Decision:
        question = scripts.question(scripts.ONCE, plan, cost, token=token)
        return scripts.decision_of(plan, self.answer(question, now), cost)

    def undo(self, plan: Plan, cost: int, since: int, now: int, token: bytes | None = None) -> Decision:
        question = scripts.question(scripts.UNDO, plan, cost, since=since, token=token)
        return scripts.decision_of(plan, self.answer(question, now))
