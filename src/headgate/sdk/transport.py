"""The contract of transports, which carry a client's calls to one node, and their values."""

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
"""A ruling, or what is wrong with the check."""
MAX_BATCH_BYTES = 200_000
"""Of a batch: the service limits gRPC messages to 256 KB."""


class CallerRefused(UsageError):
    """The service requires a caller key, or a different one."""


class BatchTooLarge(StoreBusy):
    """The batch is too large for the node."""


class Check(NamedTuple):
    """A check or peek of a request."""

    request: Request
    consume: bool = True
    """Whether to take the cost if the request passes."""
    idempotency_key: str = ""
    client_id: str = ""
    """The value that the rule counts by, if only the service knows its dimension."""

    @property
    def is_repeatable(self) -> bool:
        """Whether it is idempotent."""
        return not self.consume or self.idempotency_key != "" or self.request.cost == 0


class ServiceFailure(NamedTuple):
    """The service did not answer, and why."""

    reason: Reason
    error: StoreError
    wait_us: int
    """Microseconds until the next attempt."""


class FetchedRules(msgspec.Struct, frozen=True):
    version: int
    enforcing: bool
    rules: msgspec.Raw
    etag: str = ""


class Fault(msgspec.Struct):
    pointer: str = ""
    detail: str = ""


class Problem(msgspec.Struct):
    """An error response: RFC 9457."""

    title: str = ""
    detail: str = ""
    code: str = ""
    errors: tuple[Fault, ...] = ()

    def __str__(self) -> str:
        places = [f"{each.pointer or 'the request'} {each.detail}" for each in self.errors]
        return "; ".join([self.detail or self.title, *places])


class Transport(Protocol):
    """Calls one node, within a number of seconds.

    Its errors state what happened. StoreUnavailable, StoreBusy: the node did nothing. OutcomeUnknown: it may have.
    UsageError: the call or the caller is refused.
    """

    async def check(self, checks: Sequence[bytes], seconds: float) -> Sequence[Outcome]:
        """Send a batch of checks, each in the form of this transport's `encode`."""
        ...

    async def refund(self, request: Request, charge: str, seconds: float) -> WrittenRuling:
        """Refund a charge."""
        ...

    async def reset(self, request: Request, seconds: float, *, is_whole: bool) -> Reset:
        """Reset the limits of a request, or with `is_whole` all limits of its principals."""
        ...

    async def rules(self, etag: str, seconds: float) -> FetchedRules | None:
        """Return the rules in force; None if they still have this ETag."""
        ...

    async def ready(self, seconds: float) -> None:
        """Return if the node is ready."""
        ...

    async def close(self) -> None: ...


def result_of(outcome: Any) -> Any:
    """Return an outcome; raise it if it is a failure or an error."""
    if isinstance(outcome, ServiceFailure):
        raise outcome.error
    if isinstance(outcome, UsageError):
        raise outcome
    return outcome


def checked(request: Request) -> Request:
    """Return a request of valid types. Raises InvalidRequest."""
    try:
        texts = [*request.principal.items(), *request.attributes.items()]
        texts.append((request.endpoint, request.method))
        texts.append((request.tier, request.address + request.rule_id))
    except (AttributeError, TypeError):
        right = "a Request, such as Request({'user': '42'}, '/api/v1/orders', 'POST')"
        raise InvalidRequest(f"expected {right}, of text, not {request!r:.200}") from None
    for name, value in texts:
        if not (isinstance(name, str) and isinstance(value, str)):
            raise InvalidRequest(f"a request consists of text: {name!r:.100} is {value!r:.100}")
    return request
