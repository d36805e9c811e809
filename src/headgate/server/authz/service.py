"""Envoy's external authorization: one call identifies the client of a request, and checks its limits.

1. Only trusted proxies may call, as for forward authentication: others could choose whose limit is used.
2. A request with an invalid credential is refused (401), and counted for its address, so that guesses are limited.
   Only a request without a credential is anonymous, if its route permits that.
3. A request that cannot be parsed, or not be matched with rules, is refused (400), and so is one that fails here (503):
   an error of gRPC might let it pass, if Envoy is configured to let requests pass while no service responds.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Coroutine
from time import monotonic, perf_counter_ns
from typing import Any

import msgspec

from headgate.core.errors import CostTooLarge, StoreError, UsageError
from headgate.engine import Ruling
from headgate.policy.request import Request
from headgate.server.api.checks import problem_of
from headgate.server.authz import answers
from headgate.server.authz.answers import PREFIX, UPSTREAM, header, removal
from headgate.server.authz.requests import AuthzRequest, InvalidRoute, RequestReader
from headgate.server.decisions import Decisions
from headgate.server.proxied_clients import NOT_TRUSTED, ClientAnswer, ClientAnswers, Identifying, log_reasons
from headgate.server.wire.grpc.calls import UnaryCall
from headgate.web.headers import ResponseHeaders
from headgate.web.identity import Identifier, Identity
from headgate.web.lines import spellings
from headgate.web.problem import ProblemDocument, of_status

API = "ext_authz"
"""The name of the service in metrics."""
_LOG = logging.getLogger("headgate.server")
_LOG_EVERY = 10.0
"""Seconds between log messages about Envoy's configuration."""
_FAILED = "The request could not be checked. The error is in the server's log."
_REQUIRED = {
    "any": "a credential is required",
    "user": "a user is required: send a token, or an API key of a user",
    "apikey": "an API key is required",
}
_OURS = PREFIX.encode()
_ANSWERED = frozenset([_OURS + what.encode() for what in UPSTREAM])
"""Headers that every response sets or removes."""


class _UntrustedProxy(Exception):
    """The caller is no trusted proxy."""


class _Read(msgspec.Struct, frozen=True, gc=False):
    """A parsed request: its client, and the request to check."""

    http: AuthzRequest
    identifier: Identifier
    identity: Identity
    objection: ProblemDocument | None
    """Why it is refused whatever its limits are; it is then charged to the address."""
    request: Request


class AuthorizationService:
    """The service; `headers` are the fields that Envoy's clients get."""

    def __init__(self, decisions: Decisions, identifier: Identifying, headers: ResponseHeaders) -> None:
        self._decisions, self._identifier = decisions.via(API), identifier
        self._reader = RequestReader()
        self._clients = ClientAnswers(decisions.engine, headers, header)
        self._now, self._called = decisions.engine.clock.now, decisions.recorder.record_call
        self._log_at = 0.0

    def check(self, call: UnaryCall) -> bytes | Coroutine[Any, Any, bytes]:
        """Handle a call. It never raises: a refusal is a response."""
        began, now = perf_counter_ns(), self._now()
        try:
            identifier, peer = self._identifier(), call.peer.address
            _check_trust(identifier, peer)
            parsed = _read(self._reader.read(call.message, call.metadata), identifier, peer, now)
            ruling = self._decisions.in_time(call.timeout).decide(parsed.request)
            if isinstance(ruling, Ruling):
                return self._answer(parsed, ruling, began, now)
        except Exception as error:  # noqa: BLE001  whatever it is, an error might let the request pass
            return self._failed(error, call, began)
        return self._awaited(parsed, ruling, call, began, now)

    async def _awaited(self, parsed: _Read, ruling: Awaitable[Ruling], call: UnaryCall, began: int, now: int) -> bytes:
        try:
            decided = await ruling
            if not call.is_abandoned:
                return self._answer(parsed, decided, began, now)
            if parsed.objection is None:  # guessing credentials is charged, even if the caller no longer waits
                await self._decisions.engine.undo((decided,))
            return self._answer(parsed, decided, began, now, "cancelled")
        except Exception as error:  # noqa: BLE001  likewise
            return self._failed(error, call, began)

    def _answer(self, parsed: _Read, ruling: Ruling, began: int, now: int, outcome: str = "") -> bytes:
        client, objection, identity = self._clients.of(ruling, now), parsed.objection, parsed.identity
        if client.problem is not None:
            answer = answers.refused(client, client.problem, ruling, identity)
        elif objection is not None:
            answer = answers.refused(_challenged(client, parsed.identifier), objection, ruling, identity)
        else:
            answer = answers.allowed(client, ruling, identity, _removed(parsed.http, parsed.identifier))
        passes = objection is None and client.problem is None
        self._called(API, outcome or ("allowed" if passes else "denied"), perf_counter_ns() - began)
        return answer

    def _failed(self, error: Exception, call: UnaryCall, began: int) -> bytes:
        """Return the refusal of a request that was not decided."""
        outcome, problem = "error", of_status(503, _FAILED)
        if isinstance(error, _UntrustedProxy):
            self._complain(f"{error}, and was refused: {NOT_TRUSTED}")
            problem = of_status(403, NOT_TRUSTED)
        elif isinstance(error, InvalidRoute):
            self._complain(f"Envoy's requests are refused because of its configuration: {error}")
        elif isinstance(error, CostTooLarge):
            outcome, problem = "denied", of_status(429, str(error))
        elif isinstance(error, UsageError | StoreError):
            problem = problem_of(error)
        else:
            _LOG.error("an authorization failed: the request is refused", exc_info=error)
        self._called(API, "cancelled" if call.is_abandoned else outcome, perf_counter_ns() - began)
        return self._refused(problem)

    def unreadable(self, detail: str) -> bytes:
        """Return the response to a request that cannot be parsed."""
        return self._refused(of_status(400, f"the request cannot be read: {detail}"))

    def _refused(self, problem: ProblemDocument) -> bytes:
        """Return a refusal that no rule decided."""
        return answers.refused(self._clients.refused(problem), problem)

    def _complain(self, message: str) -> None:
        now = monotonic()
        if now >= self._log_at:
            _LOG.warning("%s", message)
            self._log_at = now + _LOG_EVERY


def _objection(identity: Identity, require: str) -> ProblemDocument | None:
    """Return why a request is refused whatever its limits are; None if it is not."""
    if identity.unproven == "apikey":
        return of_status(401, "the API key is not accepted")
    if identity.unproven:
        return of_status(401, "the token is not accepted")
    if require == "none" or (identity.source != "ip" if require == "any" else require in identity.principal):
        return None
    return of_status(401, _REQUIRED[require])


def _check_trust(identifier: Identifier, peer: str | None) -> None:
    if not identifier.addresses.trusts(peer):
        raise _UntrustedProxy(f"{peer or 'a Unix socket'} sent an authorization request")


def _read(http: AuthzRequest, identifier: Identifier, peer: str | None, now: int) -> _Read:
    """Identify the client of a request. Raises UsageError."""
    address = identifier.addresses.attested(peer, http.address)
    payloads = http.payloads(identifier)
    identity = log_reasons(identifier.identify_at(address, http.lines, now, http.query, payloads))
    route, principal, tier = http.route, identity.principal, identity.tier
    objection = _objection(identity, route.require)
    if objection is not None:
        principal, tier = {"ip": address.key}, ""
    client = "" if address.client is None else address.client.text
    request = Request(principal, http.target, http.method, route.attributes, route.cost, tier, client)
    return _Read(http, identifier, identity, objection, request)


def _challenged(client: ClientAnswer[bytes], identifier: Identifier) -> ClientAnswer[bytes]:
    """Add the accepted kinds of credentials to the fields for a client."""
    challenges = ["Bearer"] if identifier.tokens or identifier.verified else []
    if identifier.api_keys is not None:
        challenges.append(f'ApiKey header="{identifier.api_keys.header}"')
    more = [header("Cache-Control")("no-store"), header("WWW-Authenticate")(", ".join(challenges) or "Bearer")]
    return ClientAnswer([*client.fields, *more])


def _removed(http: AuthzRequest, identifier: Identifier) -> bytes:
    """Return the removals for the upstream: forged headers of ours and, if its route is set so, the credentials."""
    forged = [
        name
        for name, _ in http.lines
        if name[:1] == b"x" and name.replace(b"_", b"-").startswith(_OURS) and name not in _ANSWERED
    ]
    if not http.route.removes_credentials:
        return removal(forged) if forged else b""
    parameter = b"" if identifier.api_keys is None else identifier.api_keys.parameter
    spelt = spellings(http.query, parameter) if parameter else ()
    return removal([*forged, *identifier.credentials], spelt)
