"""What a client of a protocol is, without I/O: questions become bytes, and bytes become answers."""

from __future__ import annotations

from typing import Protocol

from headgate.load_generator.outcomes import Outcome


class Machine(Protocol):
    """One connection, from the client's side."""

    is_over: bool
    """Whether no more can be asked on it, and it should be closed when all is answered."""

    def greeting(self) -> bytes:
        """Return what a client says first."""
        ...

    def room(self) -> int:
        """Return how many more questions may be asked now."""
        ...

    def ask(self, user: int) -> tuple[int, bytes]:
        """Return the number of a new question, and what to send. Call it only where there is room."""
        ...

    def receive(self, data: bytes) -> list[tuple[int, Outcome | None]]:
        """Take bytes in; returns the numbers of questions that ended, and how. None: surely it was not looked at.

        Raises:
            BadAnswer: this is not the protocol.
        """
        ...

    def reply(self) -> bytes:
        """Return what has to be sent besides questions; empty if nothing."""
        ...
