"""What this package raises: branches of the tree in `headgate.core.errors`.

::

    UsageError
    ├── InvalidSettings     an operator's setting cannot work: raised when it is built, never while serving
    ├── InvalidHeader       a name or reason that cannot be written into a response header
    ├── AmbiguousIdentity   the request says twice who asks: answer 400
    └── InvalidToken        the token proves nothing: answer 401, or go on without it
"""

from __future__ import annotations

from headgate.core.errors import UsageError


class InvalidSettings(UsageError):
    """The settings cannot work as written."""


class InvalidHeader(UsageError):
    """The text cannot be written into a header."""


class AmbiguousIdentity(UsageError):
    """The request carries one credential header more than once.

    It is refused rather than read: whoever serves the request may read the other one.
    """


class InvalidToken(UsageError):
    """The token is not accepted. The message never repeats any of it.

    Attributes:
        reason: one word for metrics, such as "expired".
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return self.message
