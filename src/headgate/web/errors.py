"""The errors of this package; see `headgate.core.errors` for the whole tree.

::

    UsageError
    ├── InvalidSettings     a setting is invalid: raised at construction, never while serving
    ├── InvalidHeader       a name or reason cannot be written into a response header
    ├── AmbiguousIdentity   the request has a credential twice: answer 400
    └── InvalidToken        the token is not accepted: answer 401, or ignore it
"""

from __future__ import annotations

from headgate.core.errors import UsageError


class InvalidSettings(UsageError):
    """A setting is invalid."""


class InvalidHeader(UsageError):
    """A text cannot be written into a header."""


class AmbiguousIdentity(UsageError):
    """The request has a credential more than once; the application might read another one than Headgate."""


class InvalidToken(UsageError):
    """The token is not accepted. The message never quotes it.

    Attributes:
        reason: one word for metrics, such as "expired".
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason
        self.message = message

    def __str__(self) -> str:
        return self.message
