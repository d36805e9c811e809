"""One connection of a run: a machine on a transport."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from headgate.load_generator.machine import Machine
from headgate.load_generator.outcomes import LOST, NOT_UNDERSTOOD, BadAnswer, Outcome


class Owner(Protocol):
    """Whoever asks questions on connections."""

    def on_made(self, connection: Connection) -> None:
        """It is there."""
        ...

    def on_room(self, connection: Connection) -> None:
        """It may be asked."""
        ...

    def on_answer(self, outcome: Outcome | None, due: int) -> None:
        """A question that was due then ended; None: surely it was not looked at."""
        ...

    def on_end(self, connection: Connection, outcome: Outcome) -> None:
        """It is gone, and that is why what is still open has no answer."""
        ...


class Connection(asyncio.Protocol):
    """Carries questions and answers, and tells its owner."""

    def __init__(self, machine: Machine, owner: Owner) -> None:
        self._machine, self._owner = machine, owner
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[int, tuple[int, int]] = {}
        """When open questions were due, and when they were asked."""
        self._outgoing: list[bytes] = []
        self._why = LOST
        self._is_ending = False
        self.gone = asyncio.Event()
        self.answered = False
        """Whether anything was answered on it."""
        self.is_listed = False
        """For its owner: whether it is among those with room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._owner.on_made(self)
        if greeting := self._machine.greeting():
            self._transport.write(greeting)
        if self._machine.room():
            self._owner.on_room(self)

    def data_received(self, data: bytes) -> None:
        machine = self._machine
        try:
            ended = machine.receive(data)
        except BadAnswer:
            self._why = NOT_UNDERSTOOD
            self.abort()
            return
        for number, outcome in ended:
            due, _ = self._waiting.pop(number)
            self.answered = True
            self._owner.on_answer(outcome, due)
        if reply := machine.reply():
            self._outgoing.append(reply)
        if machine.is_over and not self._waiting:
            self._is_ending = True
            if self._transport is not None:
                self._transport.close()
            return
        if machine.room():
            self._owner.on_room(self)
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  it is lost, whatever it says
        self._owner.on_end(self, self._why)
        self.gone.set()

    def has_room(self) -> bool:
        return not self._is_ending and self._machine.room() > 0

    def ask(self, user: int, due: int, now: int) -> None:
        """Ask a question; it goes out with the next `flush`."""
        number, data = self._machine.ask(user)
        self._waiting[number] = (due, now)
        self._outgoing.append(data)

    def flush(self) -> None:
        if self._outgoing and self._transport is not None:
            outgoing, self._outgoing = self._outgoing, []
            self._transport.write(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))

    def asked_before(self, moment: int) -> bool:
        """Is there an open question that was asked before `moment`?"""
        first = next(iter(self._waiting.values()), None)  # they are in the order in which they were asked
        return first is not None and first[1] < moment

    def take_all(self) -> list[tuple[int, int]]:
        """Return when its open questions were due and asked, and forget them."""
        waiting, self._waiting = self._waiting, {}
        return list(waiting.values())

    def abort(self) -> None:
        """Hang up at once."""
        self._is_ending = True
        if self._transport is not None:
            self._transport.abort()
