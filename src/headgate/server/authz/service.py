"""Envoy's external authorization: one call asks who sent a request, and whether it may pass.

1. Only a trusted proxy is answered, as by forward authentication: whoever else could ask would choose whose limit is
   used.
2. A credential that is there proves something, or the request is refused: 401, counted for its address, so that guesses
   are limited as anything else is. Only a request without any is one of nobody in particular, where its route allows.
3. Whatever cannot be read, or cannot be matched with rules, is refused (400), and so is whatever fails here (503): an
   error of gRPC might let it pass, where Envoy is told to let requests pass while nobody answers.
"""

from __future__ import annotations

import logging
from time import monotonic, perf_counter_ns

from headgate.core.errors import CostTooLarge, StoreError, UsageError
from headgate.policy.request import Request
from headgate.server.api.checks import problem_of
from headgate.server.authz import answers
from headgate.server.authz.answers import PREFIX, UPSTREAM, header, removal
from headgate.server.authz.questions import AuthzQuestion, InvalidRoute, Questions
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
"""Seconds between messages about calls that Envoy's configuration is to blame for."""
_FAILED = "The request could not be checked. The error is in the server's log."
_REQUIRED = {
    "any": "this needs a credential",
    "user": "this needs a user: send a token, or an API key of a user",
    "apikey": "this needs an API key",
}
_OURS = PREFIX.encode()
_ANSWERED = frozenset([_OURS + what.encode() for what in UPSTREAM])
"""Headers that every answer sets or removes."""


class AuthorizationService:
    """Answers Envoy. `headers` are the fields that its clients get."""

    def __init__(self, decisions: Decisions, identifier: Identifying, headers: ResponseHeaders) -> None:
        self._decisions, self._identifier = decisions.via(API), identifier
        self._questions = Questions()
        self._clients = ClientAnswers(decisions.engine, headers, header)
        self._now, self._called = decisions.engine.clock.now, decisions.recorder.called
        self._log_at = 0.0

    async def check(self, call: UnaryCall) -> bytes:
        """Answer a call. It never raises: a refusal is an answer."""
        began, now = perf_counter_ns(), self._now()
        outcome = "error"
        try:
            outcome, answer = await self._answer(call, now)
        except InvalidRoute as error:
            self._complain(f"Envoy is not configured as it should be, and its requests are refused: {error}")
            answer = self._refused(of_status(503, _FAILED))
        except CostTooLarge as error:
            outcome, answer = "denied", self._refused(of_status(429, str(error)))
        except (UsageError, StoreError) as error:
            answer = self._refused(problem_of(error))
        except Exception:  # noqa: BLE001  whatever it is, an error might let the request pass
            _LOG.exception("an authorization failed, and its request is refused")
            answer = self._refused(of_status(503, _FAILED))
        self._called(API, "cancelled" if call.is_abandoned else outcome, perf_counter_ns() - began)
        return answer

    async def _answer(self, call: UnaryCall, now: int) -> tuple[str, bytes]:
        """Return how a call ended, for metrics, and its answer. Raises UsageError and StoreError."""
        identifier, peer = self._identifier(), call.peer.address
        if not identifier.addresses.trusts(peer):
            self._complain(f"{peer or 'a Unix socket'} asked to authorize requests, and is refused: {NOT_TRUSTED}")
            return "error", self._refused(of_status(403, NOT_TRUSTED))
        question = self._questions.read(call.message, call.metadata)
        address = identifier.addresses.attested(peer, question.address)
        payloads = question.payloads(identifier)
        identity = log_reasons(identifier.identify_at(address, question.lines, now, question.query, payloads))
        objection = _objection(identity, question.route.require)
        ruling = await self._decisions.in_time(call.timeout).check(
            _request(question, identity, by_address=objection is not None)
        )
        if call.is_abandoned and objection is None:  # who guesses credentials pays for it, whether they wait or not
            await self._decisions.undo((ruling,))
        told = self._clients.of(ruling, now)
        if told.problem is not None:
            return "denied", answers.refused(told, told.problem, ruling, identity)
        if objection is not None:
            return "denied", answers.refused(_challenged(told, identifier), objection, ruling, identity)
        return "allowed", answers.allowed(told, ruling, identity, _removed(question, identifier))

    def unreadable(self, detail: str) -> bytes:
        """Return the answer to what cannot be read."""
        return self._refused(of_status(400, f"the request cannot be read: {detail}"))

    def _refused(self, problem: ProblemDocument) -> bytes:
        """Return the refusal of what no rule was asked about."""
        return answers.refused(self._clients.refused(problem), problem)

    def _complain(self, message: str) -> None:
        now = monotonic()
        if now >= self._log_at:
            _LOG.warning("%s", message)
            self._log_at = now + _LOG_EVERY


def _objection(identity: Identity, require: str) -> ProblemDocument | None:
    """Return why a request may not pass, whatever its limits say; None if nothing is against it."""
    if identity.unproven == "apikey":
        return of_status(401, "the API key is not accepted")
    if identity.unproven:
        return of_status(401, "the token is not accepted")
    if require == "none" or (identity.source != "ip" if require == "any" else require in identity.principal):
        return None
    return of_status(401, _REQUIRED[require])


def _request(question: AuthzQuestion, identity: Identity, *, by_address: bool) -> Request:
    address, route = identity.address, question.route
    client = "" if address.client is None else address.client.text
    principal, tier = identity.principal, identity.tier
    if by_address:
        principal, tier = {"ip": address.key}, ""
    return Request(principal, question.target, question.method, route.attributes, route.cost, tier, client)


def _challenged(told: ClientAnswer[bytes], identifier: Identifier) -> ClientAnswer[bytes]:
    """Add to what a client is told how it can prove who it is."""
    challenges = ["Bearer"] if identifier.tokens or identifier.verified else []
    if identifier.api_keys is not None:
        challenges.append(f'ApiKey header="{identifier.api_keys.header}"')
    more = [header("Cache-Control")("no-store"), header("WWW-Authenticate")(", ".join(challenges) or "Bearer")]
    return ClientAnswer([*told.fields, *more])


def _removed(question: AuthzQuestion, identifier: Identifier) -> bytes:
    """Return what of a request its upstream does not get: forged headers of ours and, if so told, the credentials."""
    forged = [
        name
        for name, _ in question.lines
        if name[:1] == b"x" and name.replace(b"_", b"-").startswith(_OURS) and name not in _ANSWERED
    ]
    if not question.route.removes_credentials:
        return removal(forged) if forged else b""
    parameter = b"" if identifier.api_keys is None else identifier.api_keys.parameter
    spelt = spellings(question.query, parameter) if parameter else ()
    return removal([*forged, *identifier.credentials], spelt)
