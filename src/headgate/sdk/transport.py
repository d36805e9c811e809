"""The contract of transports, which carry a client's calls to one node, and their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from headgate.core.errors import InvalidCost, OutcomeUnknown, StoreBusy, StoreError, UsageError
from headgate.engine.ruling import Reset
from headgate.engine.ruling_json import RulingMessage
from headgate.policy.request import InvalidRequest, Request
from headgate.sdk.settings import ClientSettings, NodeAddress
from headgate.stores.circuits import Reason

Outcome: TypeAlias = RulingMessage | UsageError
"""A ruling, or what is wrong with the check."""
T = TypeVar("T")
MAX_BATCH_BYTES = 200_000
"""Of a batch: the service limits gRPC messages to 256 KB."""


class CallerRefused(UsageError):
    """The service requires a caller key, or a different one."""


class BatchTooLarge(StoreBusy):
    """The batch is too large for the node."""


class Check(NamedTuple):
    request: Request
    consume: bool = True
    """Whether to take the cost if the request passes."""
    idempotency_key: str = ""
    client_id: str = ""
    """The value that the rule counts by, if only the service knows its dimension."""

    @property
    def is_repeatable(self) -> bool:
        return not self.consume or self.idempotency_key != "" or self.request.cost == 0


class ServiceFailure(NamedTuple):
    reason: Reason
    error: StoreError
    wait_us: int
    """Microseconds until the next attempt."""


class FetchedRules(msgspec.Struct, frozen=True):
    version: int
    enforcing: bool
    rules: msgspec.Raw
    etag: str = ""


class Problem(msgspec.Struct):
    title: str = ""
    detail: str = ""
    code: str = ""
    errors: tuple[dict[str, Any], ...] = ()

    @property
    def places(self) -> list[str]:
        return [f"{each.get('pointer') or 'the request'} {each.get('detail', '')}" for each in self.errors]

    def __str__(self) -> str:
        return "; ".join([self.detail or self.title, *self.places])


class Transport(Protocol):
    """Calls one node, within a number of seconds, and encodes checks for that.

    Its errors state what happened. StoreUnavailable, StoreBusy: the node did nothing. OutcomeUnknown: it may have.
    UsageError: the call or the caller is refused.
    """

    def __init__(self, endpoint: NodeAddress, settings: ClientSettings) -> None: ...

    @staticmethod
    def encode(check: Check) -> bytes:
        """Encode a check. Raises InvalidRequest, InvalidKey, InvalidCost."""
        ...

    @staticmethod
    def with_key(check: bytes, key: str) -> bytes: ...

    async def check(self, checks: Sequence[bytes], seconds: float) -> Sequence[Outcome]: ...

    async def refund(self, request: Request, charge: str, seconds: float) -> RulingMessage: ...

    async def reset(self, request: Request, seconds: float, *, is_whole: bool) -> Reset:
        """Reset the limits of a request, or with `is_whole` all limits of its principals."""
        ...

    async def rules(self, etag: str, seconds: float) -> FetchedRules | None:
        """Return the rules in force; None if they still have this ETag."""
        ...

    async def ready(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


def decode(node: NodeAddress, body: str | bytes, form: type[T]) -> T:
    """Return the JSON of a response as `form`. Raises OutcomeUnknown."""
    try:
        return msgspec.json.decode(body, type=form)
    except (ValueError, RecursionError) as error:
        raise OutcomeUnknown(f"{node} responded, but is not a Headgate service: {error}") from None


def result_of(outcome: Any) -> Any:
    """Return an outcome; raise it if it is a failure or an error."""
    if isinstance(outcome, ServiceFailure):
        raise outcome.error
    if isinstance(outcome, UsageError):
        raise outcome
    return outcome


def validate(request: Request) -> Request:
    """Return the request if its types are valid. Raises InvalidRequest, InvalidCost."""
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
    if type(request.cost) is not int:
        raise InvalidCost(f"cost must be a whole number, not {request.cost!r:.100}")
    return request
