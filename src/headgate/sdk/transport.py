"""What a client asks, and the contract of what carries it to one node of a service and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from headgate.core.errors import StoreBusy, StoreError, UsageError
from headgate.engine.ruling import Reset
from headgate.engine.written import WrittenRuling
from headgate.policy.request import InvalidRequest, Request
from headgate.stores.circuits import Reason

Outcome: TypeAlias = WrittenRuling | UsageError
"""What a service says to a question: a ruling, or what is wrong with the question."""
MOST_BYTES = 200_000
"""Of all questions of a batch: a message of gRPC has at most 256 KB."""


class CallerRefused(UsageError):
    """The service does not know who calls: it wants a caller key, or another one."""


class BatchTooLarge(StoreBusy):
    """The node never takes so many questions at once."""


class Question(NamedTuple):
    """What is asked about a request."""

    request: Request
    consume: bool = True
    """Whether the cost is taken if the request passes."""
    idempotency_key: str = ""
    client_id: str = ""
    """The value of what the rule counts by, where only the service knows what that is."""

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be asked again though perhaps it was answered."""
        return not self.consume or self.idempotency_key != "" or self.request.cost == 0


class Unanswered(NamedTuple):
    """That the service did not answer, and why."""

    reason: Reason
    error: StoreError
    wait_us: int
    """Microseconds until it is asked again."""


class FetchedRules(msgspec.Struct, frozen=True):
    """The rules of a service."""

    version: int
    enforcing: bool
    rules: msgspec.Raw
    etag: str = ""


class Transport(Protocol):
    """Asks one node. What it raises says what is known about the question that was asked.

    StoreUnavailable: the node surely did nothing; StoreBusy: nor did it, though it is well. OutcomeUnknown: perhaps it
    did. UsageError: the question is wrong, or who asks. All take the seconds that they have.
    """

    async def check(self, questions: Sequence[bytes], seconds: float) -> Sequence[Outcome]:
        """Ask several questions, each as `encoded` by this transport."""
        ...

    async def refund(self, request: Request, charge: str, seconds: float) -> WrittenRuling:
        """Have given back what a charge took."""
        ...

    async def reset(self, request: Request, seconds: float, *, is_whole: bool) -> Reset:
        """Have what was used of the limits of a request forgotten; as a whole: of all that count by its principals."""
        ...

    async def rules(self, etag: str, seconds: float) -> FetchedRules | None:
        """Return the rules in force; None if they are what has this ETag."""
        ...

    async def ready(self, seconds: float) -> None:
        """Return when the node may be asked."""
        ...

    async def close(self) -> None:
        """Hang up."""
        ...


def answer_of(outcome: Any) -> Any:
    """Return what the service said; raises that it did not, or what it says is wrong."""
    if isinstance(outcome, Unanswered):
        raise outcome.error
    if isinstance(outcome, UsageError):
        raise outcome
    return outcome


def checked(request: Request) -> Request:
    """Return a request that can be written down; whether it makes sense, the service says. Raises InvalidRequest."""
    try:
        texts = [*request.principal.items(), *request.attributes.items()]
        texts.append((request.endpoint, request.method))
        texts.append((request.tier, request.address + request.rule_id))
    except (AttributeError, TypeError):
        right = "a Request, such as Request({'user': '42'}, '/api/v1/orders', 'POST')"
        raise InvalidRequest(f"what is decided is {right}, of text, not {request!r:.200}") from None
    for name, value in texts:
        if not (isinstance(name, str) and isinstance(value, str)):
            raise InvalidRequest(f"a request is made of text: {name!r:.100} is {value!r:.100}")
    return request
