"""The script on a real server, without a store around it: for tests of what it does at a given time."""

from __future__ import annotations

import socket
from typing import Self

import hiredis

from headgate import Decision, StoreError
from headgate.core.plan import Call, Charge, Plan, Verb
from headgate.stores.redis import script
from headgate.stores.redis.address import Address
from tests.servers import RedisServer

ADDRESS = Address()
"""What errors would name."""


class Script:
    def __init__(self, server: RedisServer) -> None:
        self._server = server

    def __enter__(self) -> Self:
        self._socket = socket.create_connection(("127.0.0.1", self._server.port), 20)
        self._reader = hiredis.Reader()
        self.converse(script.LOAD)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def converse(self, sent: bytes) -> object:
        self._socket.sendall(sent)
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(65_536))
        if isinstance(reply, Exception):
            raise reply
        return reply

    def run_all(self, calls: list[Call], now: int | None) -> list[Decision | StoreError]:
        queries = [script.query(call) for call in calls]
        return script.decisions(self.converse(script.evaluation(queries, now)), queries, ADDRESS)

    def run(self, call: Call, now: int | None) -> Decision:
        (answer,) = self.run_all([call], now)
        assert isinstance(answer, Decision), answer
        return answer

    def check(self, plan: Plan, cost: int, now: int) -> Decision:
        return self.run(Call(Verb.CHECK, plan, cost), now)

    def peek(self, plan: Plan, now: int) -> Decision:
        return self.run(Call(Verb.PEEK, plan), now)

    def once(self, plan: Plan, cost: int, now: int, token: bytes) -> Decision:
        return self.run(Call(Verb.CHECK_ONCE, plan, cost, token), now)

    def refund(self, plan: Plan, cost: int, since: int, now: int) -> Decision:
        return self.run(Call(Verb.REFUND, plan, cost, charge=Charge((since,) * len(plan))), now)

    def attempt(self, plan: Plan, cost: int, now: int, token: bytes = b"") -> Decision:
        """Check what may be undone."""
        return self._attempt(Call(Verb.CHECK_ONCE if token else Verb.CHECK, plan, cost, token), now)

    def undo(self, plan: Plan, cost: int, since: int, now: int, token: bytes = b"") -> Decision:
        return self._attempt(Call(Verb.REFUND, plan, cost, token, Charge((since,) * len(plan))), now)

    def _attempt(self, call: Call, now: int) -> Decision:
        queries = [script.query(call, attempt=True)]
        (answer,) = script.decisions(self.converse(script.evaluation(queries, now)), queries, ADDRESS)
        assert isinstance(answer, Decision), answer
        return answer
