"""``/api/v1/forward-auth``: a proxy asks whether a request may pass, and passes on the answer.

nginx (``auth_request``) and others can be told to send ``X-Original-URI`` and ``X-Original-Method``; Traefik
(``forwardAuth``) and Caddy (``forward_auth``) send ``X-Forwarded-Uri`` and ``X-Forwarded-Method`` by themselves. The
client's address comes in ``X-Forwarded-For``, its credentials in their own headers.

All of them also send what *their* client sent. So:

1. Only a trusted proxy is answered: whoever else could ask would choose whose limit is used.
2. A header that is there twice, or headers of both kinds at once, are refused (400), unless the settings say which kind
   the proxy writes: one of the two is the client's, and would choose which rules apply.
3. The path and the method are both needed: without a method, rules for some methods would not apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Protocol

from headgate.core.decision import Decision
from headgate.core.errors import StoreError, UsageError
from headgate.core.mode import Mode
from headgate.core.numbers import short, whole
from headgate.core.quota import SECOND, Quota
from headgate.engine import Ruling
from headgate.policy.request import InvalidRequest, Request
from headgate.server.api.checks import PROBLEM, problem_of
from headgate.server.decisions import Decisions
from headgate.server.wire.messages import Fields, Headers, HttpRequest, HttpResponse
from headgate.web.address import AddressReader, Finding
from headgate.web.errors import InvalidSettings
from headgate.web.headers import (
    HeaderWriter,
    LimitFields,
    Prepared,
    ResponseHeaders,
    as_bytes,
    most_shown,
    policy_names,
)
from headgate.web.identity import Identifier, Identity
from headgate.web.lines import Lines, collect
from headgate.web.problem import NOT_ADMITTED, LimitTexts, Problem, exceeded, of_status, prepare, reduced

LOOPBACK = ("127.0.0.0/8", "::1/128", "unix")
"""Who is trusted unless the settings say otherwise: what runs on this machine."""
_PASSED_ON = 429
"""The status of refusals to proxies that pass on whatever is not 2xx, and so understand all of them."""
_KINDS = {
    "original": (b"x-original-uri", b"x-original-method", b"x-original-host"),
    "forwarded": (b"x-forwarded-uri", b"x-forwarded-method", b"x-forwarded-host"),
}


class Identifies(Protocol):
    """Finds out who asks: an `Identifier`, or what stands for one."""

    @property
    def addresses(self) -> AddressReader: ...

    def identify(self, peer: str | None, lines: Lines, now: int) -> Identity: ...


@dataclass(frozen=True, slots=True)
class ForwardAuth:
    """How proxies ask. Raises InvalidSettings."""

    trusted: Sequence[str] = LOOPBACK
    """Networks of the proxies; ``unix`` means whoever is on a Unix socket."""
    deny_status: int = 429
    """Of refusals. nginx understands 401 and 403 only, and takes any other for a failure of ours."""
    kind: str = "either"
    """Which headers the proxy writes: ``original``, ``forwarded``, or ``either`` where only one of them comes."""
    host: bool = False
    """Whether the host is an attribute of requests. The proxy must write it: X-Original-Host or X-Forwarded-Host."""
    identifier: Identifies | None = None
    """Finds out who asks; its address reader trusts proxies. None: by address, in X-Forwarded-For."""
    headers: ResponseHeaders = field(default_factory=ResponseHeaders)
    """Which header fields answers have. They are for the proxy's client."""

    @property
    def unreadable_status(self) -> int | None:
        """Of requests that are not even HTTP, where the proxy knows one status only; None for HTTP's own."""
        return None if self.deny_status == _PASSED_ON else self.deny_status

    def __post_init__(self) -> None:
        whole("deny_status", self.deny_status, 400, 599, InvalidSettings)
        if self.kind not in {*_KINDS, "either"}:
            raise InvalidSettings(f"kind is one of original, forwarded, either, not {short(self.kind)}")
        if self.identifier is not None and self.identifier.addresses.source == "peer":
            raise InvalidSettings(
                "the peer of a forward authentication is a proxy: say where it writes the address of its client, with "
                "AddressReader('x-forwarded-for', trusted=['10.0.0.0/8'])"
            )


class ForwardChecks:
    """Answers proxies."""

    def __init__(self, decisions: Decisions, settings: ForwardAuth) -> None:
        self._decisions, self._settings = decisions.via("forward_auth"), settings
        reader = AddressReader("x-forwarded-for", trusted=settings.trusted)
        self._identifier: Identifies = settings.identifier or Identifier(reader)
        self._kinds = tuple(_KINDS.values()) if settings.kind == "either" else (_KINDS[settings.kind],)
        self._wanted = frozenset([name for names in self._kinds for name in names])
        self._now = decisions.engine.clock.now
        self._writer = HeaderWriter(settings.headers, as_bytes)
        self._prepared = Prepared(self._prepare)

    async def check(self, request: HttpRequest) -> HttpResponse:
        """Answer 200 and no body, or the status of refusals and a problem."""
        began, now = perf_counter_ns(), self._now()
        outcome = "error"
        try:
            asked = self._asked(request, now)
            if asked is None:
                detail = "only proxies that the settings name as trusted may ask this"
                return self._refused(of_status(403, detail))
            ruling = await self._decisions.check(asked)
            outcome = "allowed" if ruling.allowed else "denied"
        except (UsageError, StoreError) as error:
            return self._refused(problem_of(error))
        finally:
            self._decisions.recorder.called("forward_auth", outcome, perf_counter_ns() - began)
        if ruling.decision is not None:
            return self._decided(ruling, ruling.decision, now)
        return HttpResponse(200) if ruling.allowed else self._refused(of_status(403, NOT_ADMITTED))

    def _asked(self, request: HttpRequest, now: int) -> Request | None:
        """Return what the proxy's client asks; None if the proxy is not trusted. Raises InvalidRequest and its kind."""
        identity = self._identifier.identify(request.peer.address, request.headers, now)
        if identity.address.finding is Finding.UNTRUSTED_PEER:
            return None
        uri, method, host = self._original(request.headers)
        attributes = {"host": host.lower()} if host and self._settings.host else {}
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
                "the request has both X-Original- and X-Forwarded- headers, and one of them may be the client's: say "
                "which kind the proxy writes"
            )
        texts = []
        for name in kinds[0] if kinds else self._kinds[0]:
            values = found.get(name, [])
            if len(values) > 1:
                raise InvalidRequest(f"the request has {len(values)} headers {name.decode()}: the proxy sends one")
            if not values and name.endswith((b"uri", b"method")):
                raise InvalidRequest(
                    "the proxy sends the path and the method of the request: X-Original-URI and X-Original-Method, or "
                    "X-Forwarded-Uri and X-Forwarded-Method"
                )
            texts.append(_text(name, values[0]) if values else "")
        uri, method, host = texts
        if not uri or not method:
            raise InvalidRequest("the path or the method that the proxy sends is empty")
        return uri, method, host

    def _refused(self, problem: Problem, fields: Fields = ()) -> HttpResponse:
        """Return a refusal; where the proxy knows only one status for all of them, with that one."""
        status = problem.status if self._settings.unreadable_status is None else self._settings.deny_status
        if not any(name == b"cache-control" for name, _ in fields):
            fields = (*fields, (b"cache-control", b"no-store"))
        return HttpResponse(status, problem.encode(), (PROBLEM, *fields))

    def _decided(self, ruling: Ruling, decision: Decision, now: int) -> HttpResponse:
        """Return what limits say.

        Header fields list only so many of them: to a proxy, a head that is too long is a failure, which may let the
        request pass.
        """
        if decision.parts:
            names = policy_names(ruling.rules, len(decision.parts))
            parts = zip(names, decision.parts, strict=True)
            limits = [self._prepared.of(name, part.quota) for name, part in parts]
        else:
            limits = [self._prepared.of(ruling.rule_id, decision.quota)]
        shown, few = most_shown(decision, limits)
        reset_at = -(-(now + decision.reset_after_us) // SECOND)
        fields = tuple(self._writer.write(shown, few[shown.index][0], reset_at, [limit[0] for limit in few]))
        if ruling.allowed:
            return HttpResponse(200, b"", fields)
        texts = [limit[1] for limit in limits]
        if decision.degraded and self._decisions.engine.mode_of(ruling.rule_id) is Mode.DENY:  # nobody's fault but ours
            return self._refused(Problem(503, reduced(decision, texts)), fields)
        return self._refused(Problem(429, exceeded(decision, texts)), fields)

    def _prepare(self, name: str, quota: Quota) -> tuple[LimitFields[tuple[bytes, bytes]], LimitTexts]:
        return self._writer.prepare(name, quota), prepare(name, quota)


def _text(name: bytes, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise InvalidRequest(f"the header {name.decode()} is not UTF-8") from None
