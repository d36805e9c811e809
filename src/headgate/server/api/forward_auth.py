"""``/api/v1/forward-auth``: a proxy sends the details of a request, and passes the answer on to its client.

nginx (``auth_request``) and others can be configured to send ``X-Original-URI`` and ``X-Original-Method``; Traefik
(``forwardAuth``) and Caddy (``forward_auth``) always send ``X-Forwarded-Uri`` and ``X-Forwarded-Method``. The client's
address comes in ``X-Forwarded-For``, its credentials in their own headers.

All of them also pass on headers of *their* client. So:

1. Only a trusted proxy is answered: others could choose whose limit is used.
2. A duplicate header, or headers of both kinds, are refused (400), unless the settings name the kind that the proxy
   writes: one of the two is the client's, and would choose which rules apply.
3. Both path and method are required: without a method, rules for some methods would not apply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

from headgate.core.errors import StoreError, UsageError
from headgate.core.numbers import short, whole
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

_PASSED_ON = 429
"""Proxies that accept this status pass on every status but 2xx, and so accept all of them."""
_ANOTHER_WAY = (
    "let clients send API keys in another header and no tokens, identify proxies by their certificates (--client-ca), "
    "or use Envoy, which sends both separately"
)
_END_OF_HOST = re.compile(r"\.?(?::[0-9]*)?\Z")
"""A final dot and a port: rules would take them for part of the host."""
_KINDS = {
    "original": (b"x-original-uri", b"x-original-method", b"x-original-host"),
    "forwarded": (b"x-forwarded-uri", b"x-forwarded-method", b"x-forwarded-host"),
}


@dataclass(frozen=True, slots=True)
class ForwardAuth:
    """The settings of forward authentication. Raises InvalidSettings."""

    trusted: Sequence[str] = LOOPBACK
    """Networks of the proxies; ``unix`` for any client of a Unix socket."""
    deny_status: int = 429
    """The status of refusals. nginx understands only 401 and 403, and treats any other as a failure of ours."""
    kind: str = "either"
    """The headers that the proxy writes: ``original``, ``forwarded``, or ``either`` if it sends only one kind."""
    host: bool = False
    """Whether requests have the host as an attribute. The proxy must write it: X-Original-Host or X-Forwarded-Host."""
    identifier: Identifying | None = None
    """Identifies clients; its address reader trusts the proxies. None: by address, in X-Forwarded-For."""
    headers: ResponseHeaders = field(default_factory=ResponseHeaders)
    """The header fields of answers, for the proxy's client."""
    callers: frozenset[bytes] = frozenset()
    """Headers with credentials of the proxies, if they must send any: they are not their clients'."""

    @property
    def unreadable_status(self) -> int | None:
        """The status for requests that are not valid HTTP, if the proxy accepts one status only; None for HTTP's."""
        return None if self.deny_status == _PASSED_ON else self.deny_status

    def __post_init__(self) -> None:
        whole("deny_status", self.deny_status, 400, 599, InvalidSettings)
        if self.kind not in {*_KINDS, "either"}:
            raise InvalidSettings(f"kind is one of original, forwarded, either, not {short(self.kind)}")
        if self.identifier is not None and self.identifier().addresses.source == "peer":
            raise InvalidSettings(
                "the peer of a forward authentication is a proxy: name the header with its client's address, as in "
                "AddressReader('x-forwarded-for', trusted=['10.0.0.0/8'])"
            )


class ForwardChecks:
    """Answers proxies: 200 and no body, or the status of refusals and a problem."""

    def __init__(self, decisions: Decisions, settings: ForwardAuth) -> None:
        self._decisions, self._settings = decisions.via("forward_auth"), settings
        by_address = Identifier(AddressReader("x-forwarded-for", trusted=settings.trusted))
        self._identifier = settings.identifier or (lambda: by_address)
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
            ruling = await self._decisions.check(checked)
            outcome = outcome_of(request, allowed=ruling.allowed)
            if request.is_abandoned:
                await self._decisions.undo((ruling,))
        except (UsageError, StoreError) as error:
            return self._response(self._answers.refused(problem_of(error)))
        finally:
            self._decisions.recorder.called("forward_auth", outcome, perf_counter_ns() - began)
        return self._response(self._answers.of(ruling, now))

    def _request(self, request: HttpRequest, now: int) -> Request | None:
        """Return the request of the proxy's client; None if the proxy is not trusted. Raises UsageError."""
        peer, identifier = request.peer.address, self._identifier()
        if not identifier.addresses.trusts(peer):
            return None
        if self._settings.callers and (taken := identifier.own_credentials & self._settings.callers):
            names = " and ".join(sorted(name.decode() for name in taken))
            raise InvalidSettings(f"with caller keys, {names} of a request belongs to the proxy: {_ANOTHER_WAY}")
        uri, method, host = self._original(request.headers)
        query = uri.partition("?")[2].encode()
        identity = log_reasons(identifier.identify(peer, request.headers, now, query))
        attributes = {"host": _END_OF_HOST.sub("", host.lower())} if host and self._settings.host else {}
        client = identity.address.client
        return Request(
            identity.principal,
            uri,
            method,
            attributes,
            tier=identity.tier,
            address="" if client is None else client.text,
        )

    def _original(self, headers: Headers) -> tuple[str, str, str]:
        found = collect(headers, self._wanted)
        kinds = [names for names in self._kinds if any(name in found for name in names[:2])]
        if len(kinds) > 1:
            raise InvalidRequest(
                "the request has both X-Original- and X-Forwarded- headers, and one of them may be the client's: set "
                "the kind that the proxy writes"
            )
        texts = []
        for name in kinds[0] if kinds else self._kinds[0]:
            values = found.get(name, [])
            if len(values) > 1:
                raise InvalidRequest(f"the request has {len(values)} headers {name.decode()}: the proxy sends one")
            if not values and name.endswith((b"uri", b"method")):
                raise InvalidRequest(
                    "the proxy must send the path and the method of the request: X-Original-URI and X-Original-Method, "
                    "or X-Forwarded-Uri and X-Forwarded-Method"
                )
            texts.append(_text(name, values[0]) if values else "")
        uri, method, host = texts
        if not uri or not method:
            raise InvalidRequest("the path or the method that the proxy sends is empty")
        return uri, method, host

    def _response(self, answer: ClientAnswer[tuple[bytes, bytes]]) -> HttpResponse:
        """Return an answer as a response, with the refusals' own status if the proxy accepts only one."""
        if answer.problem is None:
            return HttpResponse(200, b"", tuple(answer.fields))
        status = answer.problem.status if self._settings.unreadable_status is None else self._settings.deny_status
        return HttpResponse(status, answer.problem.encode(), (PROBLEM, *answer.fields))


def _text(name: bytes, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"the header {name.decode()} is not UTF-8") from None
