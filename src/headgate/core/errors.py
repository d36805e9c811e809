"""Every exception Headgate raises, split by who must act.

::

    HeadgateError
    ├── UsageError              the caller wrote something that cannot work; also a ValueError
    │   ├── InvalidQuota        limit, window, burst or algorithm
    │   ├── InvalidKey          key or name
    │   ├── InvalidCost         cost is not a whole number in range
    │   │   └── CostTooLarge    cost is above the capacity: no wait would ever admit it
    │   ├── InvalidStore        a store address that names no known store
    │   ├── InvalidRule         a rule, or a file of rules
    │   └── ...                 headgate.policy has InvalidRequest, headgate.web has errors of its own
    ├── StoreError              the store did not answer; an operator acts
    │   ├── StoreUnavailable    nothing was done: a repetition is safe
    │   │   └── StoreBusy       the store is healthy, but had no room for this call
    │   └── OutcomeUnknown      the call was sent, and perhaps executed: it is never repeated automatically
    └── LimitExceeded           raised only on request, by ``guard``; carries the decision

A refusal is not an error: ``check`` returns it as a `Decision`.
"""

from __future__ import annotations

from collections.abc import Callable


class HeadgateError(Exception):
    """Base of all exceptions of this package."""

    def __init__(self, *args: object) -> None:  # Exception's own has no signature to show
        super().__init__(*args)


class UsageError(HeadgateError, ValueError):
    """The call or the configuration cannot work as written.

    Attributes:
        fields: the arguments that it is about, the likeliest culprit first; empty if it is about none in particular.
    """

    fields: tuple[str, ...] = ()

    def __init__(self, *args: object, fields: tuple[str, ...] = ()) -> None:
        super().__init__(*args)
        if fields:
            self.fields = fields


class InvalidQuota(UsageError):
    """The numbers of a quota, or its text, are invalid."""


class InvalidKey(UsageError):
    """The key or name is invalid."""


class InvalidCost(UsageError):
    """The cost is not a whole number in the accepted range."""


class CostTooLarge(InvalidCost):
    """The cost is above the capacity of a limit, so it could never pass."""


class InvalidStore(UsageError):
    """The store address is invalid."""


class InvalidRule(UsageError):
    """A rule, tier, user or list is invalid, or the file that contains them."""


class StoreError(HeadgateError):
    """The store did not answer.

    Attributes:
        incident: the same for all errors that have one cause, such as a connection that was lost; None: not known.
        server: the name of the server that did not answer, for a store that has several; empty: not known.
    """

    incident: object = None
    server: str = ""


class StoreUnavailable(StoreError):
    """The store could not be called, or refused the call; nothing was done."""


class StoreBusy(StoreUnavailable):
    """The store is healthy, but had no room for this call: too many are waiting, or its keys are moving."""


class OutcomeUnknown(StoreError):
    """The store was called and did not answer; the cost may have been taken, or not.

    Attributes:
        on_late_answer: a handler that catches the error may set it; it is called with the call and the decision if the
            answer arrives later. It may be about some limits of the plan only.
    """

    on_late_answer: Callable[..., object] | None = None


class LimitExceeded(HeadgateError):
    """A guarded call was refused.

    Attributes:
        decision: the refusal, with `retry_after` and the limit that blocked.
    """

    def __init__(self, key: str, decision: decisions.Decision) -> None:
        super().__init__(key, decision)
        self.key = key
        self.decision = decision

    def __str__(self) -> str:
        return f"limit {self.decision.quota} exceeded for {self.key!r}: retry in {self.decision.retry_after:g} s"


# Last, and as a module, since decisions are made of what raises these errors.
from headgate.core import decision as decisions  # noqa: E402
