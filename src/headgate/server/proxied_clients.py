"""Clients of proxies: their identification, and the answers that their proxy passes on to them.

Proxies use forward authentication (`headgate.server.api.forward_auth`); Envoy also external authorization
(`headgate.server.authz`). Both pass on header fields, and a problem document to a client that is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

import msgspec

from headgate.cache import Prepared
from headgate.core.decision import Decision
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
NOT_TRUSTED = "only the trusted proxies of the settings may send this request"
Identifying: TypeAlias = Callable[[], Identifier]
"""Returns the identifier of the present settings. Use one identifier throughout a request."""
_UNREMARKABLE = {"not configured", "absent", "of another scheme", "known key", "verified"}
_LOG = logging.getLogger("headgate.server")


class ClientAnswer(msgspec.Struct, Generic[Field], frozen=True, gc=False):
    """The answer for a client: it may pass, or why not."""

    fields: Sequence[Field] = ()
    """Header fields of the response."""
    problem: ProblemDocument | None = None
    """Why it is refused; None if it may pass."""


class ClientAnswers(Generic[Field]):
    """Makes the answers for clients of proxies.

    Header fields list a bounded number of limits: a proxy treats a head that is too long as a failure, and may let the
    request pass. `spelling` is the form of a field for the proxy.
    """

    def __init__(self, engine: AsyncEngine, headers: ResponseHeaders, spelling: Spelling[Field]) -> None:
        self._mode_of, self._refusal_of = engine.mode_of, engine.refusal_of
        self._writer = HeaderWriter(headers, spelling)
        self._prepared = Prepared(self._prepare, MOST_PREPARED)
        self._no_store = spelling("Cache-Control")("no-store")

    def of(self, ruling: Ruling, now: int) -> ClientAnswer[Field]:
        """Return the answer to a request that came at `now`, in microseconds since the epoch."""
        if ruling.decision is not None:
            return self._decided(ruling, ruling.decision, now)
        return ClientAnswer() if ruling.allowed else self.refused(of_status(403, NOT_ADMITTED))

    def refused(self, problem: ProblemDocument) -> ClientAnswer[Field]:
        """Return a refusal without limits."""
        return ClientAnswer((self._no_store,), problem)

    def _decided(self, ruling: Ruling, decision: Decision, now: int) -> ClientAnswer[Field]:
        limits: Sequence[tuple[LimitFields[Field], LimitTexts]]
        if decision.made_of:
            names = policy_names(ruling.rules, len(decision.parts))
            limits = [self._prepared.of(name, part.quota) for name, part in zip(names, decision.parts, strict=True)]
        else:
            limits = (self._prepared.of(ruling.rule_id, decision.quota),)
        shown, few = most_shown(decision, limits)
        listed = self._writer.listed([limit[0] for limit in few])
        reset_at = -(-(now + decision.reset_after_us) // SECOND)
        fields = self._writer.write(shown, few[shown.index][0], reset_at, listed)
        if ruling.allowed:
            return ClientAnswer(fields)
        texts = [limit[1] for limit in limits]
        if self._is_ours(ruling):
            return ClientAnswer(fields, ProblemDocument(503, reduced(decision, texts)))
        status, message = self._refusal_of(ruling.rule_id)
        document = reworded(exceeded(decision, texts), status, message)
        return ClientAnswer(fields, ProblemDocument(status, document))

    def _is_ours(self, ruling: Ruling) -> bool:
        """Whether the store's failure caused the refusal, under a mode that refuses then."""
        return ruling.degraded != "" and self._mode_of(ruling.rule_id) is Mode.DENY

    def _prepare(self, name: str, quota: Quota) -> tuple[LimitFields[Field], LimitTexts]:
        return self._writer.prepare(name, quota), prepare(name, quota)


def log_reasons(identity: Identity) -> Identity:
    """Log at debug level why a credential was not accepted; returns the same identity."""
    if _LOG.isEnabledFor(logging.DEBUG):
        for credential in ("apikey", "jwt"):
            if (reason := identity.reasons[credential]) not in _UNREMARKABLE:
                _LOG.debug("a client's %s is not accepted: %s", credential, reason)
    return identity
