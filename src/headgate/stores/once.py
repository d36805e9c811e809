"""Answers that are given again: what a store in this process remembers for `check_once`."""

from __future__ import annotations

from collections import OrderedDict

from msgspec.structs import replace

from headgate.core.decision import Decision
from headgate.core.key import ONCE_US


class Answers:
    """Admissions by token, each for `ONCE_US`; not safe for threads by itself.

    Args:
        most: how many there may be. Beyond that the oldest is forgotten first, and its question counts again.
    """

    __slots__ = ("_answers", "_most")

    def __init__(self, most: int) -> None:
        # With the time when each ends, the oldest first. (A plain dict is slow to find its first key after deletions.)
        self._answers: OrderedDict[bytes, tuple[int, Decision]] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, token: bytes, now: int) -> Decision | None:
        """Return the answer that goes with `token`, if it is remembered."""
        until, decision = self._answers.get(token, (now, None))
        return decision if now < until else None

    def keep(self, token: bytes, decision: Decision, now: int) -> None:
        """Remember an answer given `now`."""
        self._answers.pop(token, None)  # an answer that ended, which must not keep its place among the oldest
        if len(self._answers) >= self._most:
            self._answers.popitem(last=False)
        self._answers[token] = now + ONCE_US, replace(decision)  # as it was, also once it is refunded

    def drop_ended(self, now: int) -> bool:
        """Forget the oldest answer if it has ended; says whether it had.

        After the clock was set back, answers that end earlier may be behind it; those wait for their turn.
        """
        for until, _ in self._answers.values():
            if until <= now:
                self._answers.popitem(last=False)
                return True
            break
        return False

    def clear(self) -> None:
        self._answers.clear()
