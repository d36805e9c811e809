"""Middleware for any WSGI application::

    app = RateLimitMiddleware(app, limits="100/minute")

Every response has the header fields; refusals are problem documents (429). Bodies are passed on unchanged, so that
servers can send files efficiently; they are wrapped only where a failure is refunded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any, TypeAlias, Unpack
from urllib.parse import quote

from headgate.integrations.answers import Refusal
from headgate.integrations.exchange import Exchange, ResponseStart
from headgate.integrations.limiter import LimiterBase, LimiterSettings, RequestLimiter, nothing_limited
from headgate.web.problem import CONTENT_TYPE

Environ: TypeAlias = dict[str, Any]
Application: TypeAlias = Callable[[Environ, Any], Iterable[bytes]]
Fields: TypeAlias = list[tuple[str, str]]

OURS = frozenset({"x-ratelimit-limit", "ratelimit"})
"""Fields, in lower case, that an inner application has written if it limits, too."""
_RAW = ("RAW_URI", "REQUEST_URI")
"""Where servers put the path as it was sent, which WSGI does not define."""
_UNQUOTED = "/:@!$&'()*+,;=~"


class RateLimitMiddleware:
    """Limits a WSGI application. The settings are those of `LimiterSettings`; functions get the environment.

    Attributes:
        limiter: of the application, to reset keys.
    """

    def __init__(self, app: Application, **settings: Unpack[LimiterSettings]) -> None:
        self.app, self.limiter = app, RequestLimiter(settings)
        if self.limiter.enabled and not self.limiter.budgets:
            raise nothing_limited("RateLimitMiddleware")

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        limiter, exchange = self.limiter, exchange_of(self.limiter, environ, environ)
        refusal = limiter.check(exchange, limiter.budgets)
        if refusal is not None:
            return respond(refusal, environ, start_response)

        def start(status: str, headers: Fields, *exc_info: Any) -> Any:
            if exchange.is_open:
                code = int(status[:3])
                limiter.run(exchange.respond(ResponseStart(code, headers), code))
            if OURS.isdisjoint([name.lower() for name, _ in headers]):
                headers = [*headers, *exchange.fields()]
            return start_response(status, headers, *exc_info)

        try:
            body = self.app(environ, start)
        except Exception:
            limiter.run(exchange.fail())
            raise
        return _RefundedBody(body, exchange) if exchange.is_open else body


class _RefundedBody:
    """A body that refunds its request if it fails."""

    def __init__(self, body: Iterable[bytes], exchange: Exchange) -> None:
        self._body, self._exchange = body, exchange

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        except Exception:
            self._exchange.limiter.run(self._exchange.fail())
            raise

    def close(self) -> None:
        close = getattr(self._body, "close", None)
        if close is not None:
            close()


class Lines:
    """The header lines of an environment, in which a server has joined lines of one name."""

    __slots__ = ("_environ",)

    def __init__(self, environ: Environ) -> None:
        self._environ = environ

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for name, value in self._environ.items():
            if name.startswith("HTTP_"):
                yield name[5:].replace("_", "-").lower().encode("latin-1"), value.encode("latin-1")


def exchange_of(limiter: LimiterBase, request: Any, environ: Environ) -> Exchange:
    path, method = path_of(environ) if limiter.has_rules else "/", environ.get("REQUEST_METHOD", "GET")
    return Exchange(limiter, request, environ.get("REMOTE_ADDR"), Lines(environ), path, method)


def path_of(environ: Environ) -> str:
    """Return the path as it was sent, or the decoded one, encoded again."""
    for name in _RAW:
        raw = environ.get(name)
        if raw and raw[0] == "/":
            return str(raw)
    decoded = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return quote(decoded.encode("latin-1"), safe=_UNQUOTED) or "/"


def respond(refusal: Refusal, environ: Environ, start_response: Any) -> Iterable[bytes]:
    """Send a refusal, or the response that replaces it: any WSGI application."""
    if refusal.answer is not None:
        answer: Iterable[bytes] = refusal.answer(environ, start_response)
        return answer
    body, status = refusal.problem.encode(), refusal.status
    headers = [("Content-Type", CONTENT_TYPE), ("Content-Length", str(len(body))), *refusal.fields]
    start_response(f"{status} {HTTPStatus(status).phrase}", headers)
    return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]
