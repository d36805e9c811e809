"""``/api/v1/forward-auth``: a proxy sends the details of a request, and passes the response on to its client.

nginx (``auth_request``) and others can be configured to send ``X-Original-URI`` and ``X-Original-Method``; Traefik
(``forwardAuth``) and Caddy (``forward_auth``) always send ``X-Forwarded-Uri`` and ``X-Forwarded-Method``. The client's
address comes in ``X-Forwarded-For``, its credentials in their own headers.

All of them also pass on headers of *their* client. So:

1. Only trusted proxies may call: others could choose whose limit is used.
2. A duplicate header, or headers of both kinds, are refused (400), unless the settings name the kind that the proxy
   writes: one of the two is the client's, and would choose which rules apply.
3. Both path and method are required: without a method, rules for some methods would not apply.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter_ns

from headgate.core.errors import StoreError, UsageError
from headgate.policy.request import InvalidRequest, Request
from headgate.server.api.checks import PROBLEM, outcome_of, problem_of
from headgate.server.decisions import Decisions
from headgate.server.proxied_clients import LOOPBACK, NOT_TRUSTED, ClientAnswer, ClientAnswers, Identifying, log_reasons
from headgate.server.wire.messages import Headers, HttpRequest, HttpResponse
from headgate.web.address import AddressReader
from headgate.web.errors import InvalidSettings
from headgate.web.headers import ResponseHeaders, as_bytes
from headgate.web.identity import Identifier
from headgate.web.lines import collect
from headgate.web.problem import of_status

ANY_STATUS = 429
"""Proxies that accept this status pass on every status but 2xx, and so accept all of them."""
_ANOTHER_WAY = (
    "let clients send API keys in another header and no tokens, identify proxies by their certificates (--client-ca), "
    "or use Envoy, which sends both separately"
)
_KINDS = {
    "original": (b"x-original-uri", b"x-original-method"),
    "forwarded": (b"x-forwarded-uri", b"x-forwarded-method"),
}
_BY_ADDRESS = Identifier(AddressReader("x-forwarded-for", trusted=LOOPBACK))


@dataclass(frozen=True, slots=True)
class ForwardAuth:
    """The settings of forward authentication."""

    deny_status: int = ANY_STATUS
    """The status of refusals. nginx understands only 401 and 403, and treats any other as a failure of ours."""
    kind: str = "either"
    """The headers that the proxy writes: ``original``, ``forwarded``, or ``either`` if it sends only one kind."""
    identifier: Identifying = lambda: _BY_ADDRESS
    """Identifies clients, by an address in a header; its address reader trusts the proxies."""
    headers: ResponseHeaders = field(default_factory=ResponseHeaders)
    """The header fields of responses, for the proxy's client."""
    callers: frozenset[bytes] = frozenset()
    """Headers with credentials of the proxies, if they must send any: they are not their clients'."""


class ForwardChecks:
    """The handler: it returns 200 and no body, or the status of refusals and a problem."""

    def __init__(self, decisions: Decisions, settings: ForwardAuth) -> None:
        self._decisions, self._settings = decisions.via("forward_auth"), settings
        self._kinds = tuple(_KINDS.values()) if settings.kind == "either" else (_KINDS[settings.kind],)
        self._wanted = frozenset([name for names in self._kinds for name in names])
        self._now = decisions.engine.clock.now
        self._answers = ClientAnswers(decisions.engine, settings.headers, as_bytes)

    async def check(self, request: HttpRequest) -> HttpResponse:
        began, now = perf_counter_ns(), self._now()
        outcome = "error"
        try:
            checked = self._request(request, now)
            if checked is None:
                return self._response(self._answers.refused(of_status(403, NOT_TRUSTED)))
            ruling = await self._decisions.engine.check(checked)
            outcome = outcome_of(request, allowed=ruling.allowed)
            if request.is_abandoned:
                await self._decisions.engine.undo((ruling,))
        except (UsageError, StoreError) as error:
            return self._response(self._answers.refused(problem_of(error)))
        finally:
            self._decisions.recorder.record_call("forward_auth", outcome, perf_counter_ns() - began)
        return self._response(self._answers.of(ruling, now))

    def _request(self, request: HttpRequest, now: int) -> Request | None:
        """Return the request of the proxy's client; None if the proxy is not trusted. Raises UsageError."""
        peer, identifier = request.peer.address, self._settings.identifier()
        if not identifier.addresses.trusts(peer):
            return None
        if self._settings.callers and (taken := identifier.own_credentials & self._settings.callers):
            names = " and ".join(sorted(name.decode() for name in taken))
            raise InvalidSettings(f"with caller keys, {names} of a request identifies the proxy: {_ANOTHER_WAY}")
        uri, method = self._original(request.headers)
        query = uri.partition("?")[2].encode()
        identity = log_reasons(identifier.identify(peer, request.headers, now, query))
        client = identity.address.client
        address = "" if client is None else client.text
        return Request(identity.principal, uri, method, tier=identity.tier, address=address)

    def _original(self, headers: Headers) -> tuple[str, str]:
        """Return the path and the method of the client's request. Raises InvalidRequest."""
        found = collect(headers, self._wanted)
        kinds = [names for names in self._kinds if any(name in found for name in names)]
        if len(kinds) > 1:
            raise InvalidRequest(
                "the request has both X-Original- and X-Forwarded- headers, and one of them may be the client's: set "
                "the kind that the proxy writes"
            )
        uri, method = [_only(name, found.get(name, [])) for name in (kinds or self._kinds)[0]]
        if not uri or not method:
            raise InvalidRequest("the proxy sent an empty path or method")
        return uri, method

    def _response(self, answer: ClientAnswer[tuple[bytes, bytes]]) -> HttpResponse:
        """Return the response, with the settings' status of refusals if the proxy accepts only one."""
        if answer.problem is None:
            return HttpResponse(200, b"", tuple(answer.fields))
        deny_status = self._settings.deny_status
        status = answer.problem.status if deny_status == ANY_STATUS else deny_status
        return HttpResponse(status, answer.problem.encode(), (PROBLEM, *answer.fields))


def _only(name: bytes, values: list[bytes]) -> str:
    if not values:
        raise InvalidRequest(
            "the proxy must send the path and the method of the request: X-Original-URI and X-Original-Method, "
            "or X-Forwarded-Uri and X-Forwarded-Method"
        )
    if len(values) > 1:
        raise InvalidRequest(f"the request has {len(values)} headers named {name.decode()}: the proxy must send one")
    try:
        return values[0].decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"the header {name.decode()} is not UTF-8") from None
