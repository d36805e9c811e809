"""Clients of proxies: their identification, and the responses that their proxy passes on to them.

Proxies use forward authentication (`headgate.server.api.forward_auth`); Envoy also external authorization
(`headgate.server.authz`). Both pass on header fields, and a problem document to a client that is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

import msgspec

from headgate.cache import Prepared
from headgate.core.mode import Mode
from headgate.core.quota import SECOND, Quota
from headgate.engine import AsyncEngine, Ruling
from headgate.web.headers import (
    MOST_PREPARED,
    HeaderWriter,
    LimitFields,
    ResponseHeaders,
    Spelling,
    most_shown,
    policy_names,
)
from headgate.web.identity import Identifier, Identity
from headgate.web.problem import (
    NOT_ADMITTED,
    LimitTexts,
    ProblemDocument,
    exceeded,
    of_status,
    prepare,
    reduced,
    reworded,
)

Field = TypeVar("Field")
LOOPBACK = ("127.0.0.0/8", "::1/128", "unix")
"""Proxies trusted by default: those on this machine."""
NOT_TRUSTED = "only the configured trusted proxies may send this request"
Identifying: TypeAlias = Callable[[], Identifier]
"""Returns the identifier of the present settings. Use one identifier throughout a request."""
_UNREMARKABLE = {"not configured", "absent", "of another scheme", "known key", "verified"}
_LOG = logging.getLogger("headgate.server")


class ClientAnswer(msgspec.Struct, Generic[Field], frozen=True, gc=False):
    """The response for a client, if it is refused, or the fields to add to it."""

    fields: Sequence[Field] = ()
    """Header fields of the response."""
    problem: ProblemDocument | None = None
    """Why it is refused; None if it may pass."""


class ClientAnswers(Generic[Field]):
    """Makes the responses for clients of proxies; `spelling` is the form of a header field for the proxy.

    Header fields list a bounded number of limits: a proxy treats a head that is too long as a failure, and may let the
    request pass.
    """

    def __init__(self, engine: AsyncEngine, headers: ResponseHeaders, spelling: Spelling[Field]) -> None:
        self._mode_of, self._refusal_of = engine.mode_of, engine.refusal_of
        self._writer = HeaderWriter(headers, spelling)
        self._prepared = Prepared(self._prepare, MOST_PREPARED)
        self._no_store = spelling("Cache-Control")("no-store")

    def of(self, ruling: Ruling, now: int) -> ClientAnswer[Field]:
        """Return the response to a request that arrived at `now`, in microseconds since the epoch."""
        decision = ruling.decision
        if decision is None:
            return ClientAnswer() if ruling.allowed else self.refused(of_status(403, NOT_ADMITTED))
        if decision.parts:
            names = policy_names(ruling.rules, len(decision.parts))
            limits = [self._prepared.of(name, part.quota) for name, part in zip(names, decision.parts, strict=True)]
        else:
            limits = [self._prepared.of(ruling.rule_id, decision.quota)]
        shown, few = most_shown(decision, limits)
        reset_at = -(-(now + decision.reset_after_us) // SECOND)
        fields = self._writer.write(shown, [limit[0] for limit in few], reset_at)
        if ruling.allowed:
            return ClientAnswer(fields)
        texts = [limit[1] for limit in limits]
        if ruling.degraded and self._mode_of(ruling.rule_id) is Mode.DENY:  # the store's failure caused it
            return ClientAnswer(fields, ProblemDocument(503, reduced(decision, texts)))
        status, message = self._refusal_of(ruling.rule_id)
        document = reworded(exceeded(decision, texts), status, message)
        return ClientAnswer(fields, ProblemDocument(status, document))

    def refused(self, problem: ProblemDocument) -> ClientAnswer[Field]:
        """Return a refusal without limits."""
        return ClientAnswer((self._no_store,), problem)

    def _prepare(self, name: str, quota: Quota) -> tuple[LimitFields[Field], LimitTexts]:
        return self._writer.prepare(name, quota), prepare(name, quota)


def log_reasons(identity: Identity) -> Identity:
    """Log at debug level why a credential was not accepted; returns the same identity."""
    if _LOG.isEnabledFor(logging.DEBUG):
        for credential in ("apikey", "jwt"):
            if (reason := identity.reasons[credential]) not in _UNREMARKABLE:
                _LOG.debug("a client's %s is not accepted: %s", credential, reason)
    return identity
