"""Middleware for any WSGI application::

    app = RateLimitMiddleware(app, limits="100/minute")

Every answer has the header fields, refusals are problem documents (429). Bodies are passed on as they are, so that a
server may send a file its own way; only where a failure would be given back, an iterable is watched while it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any, TypeAlias, Unpack
from urllib.parse import quote

from headgate.integrations.answers import Refusal
from headgate.integrations.gate import Gate, Gatekeeping, GateSettings, nothing_limited
from headgate.integrations.visit import Answer, Visit
from headgate.web.errors import InvalidSettings
from headgate.web.problem import CONTENT_TYPE

Environ: TypeAlias = dict[str, Any]
Application: TypeAlias = Callable[[Environ, Any], Iterable[bytes]]
Fields: TypeAlias = list[tuple[str, str]]

VISIT = "headgate.visit"
"""Where an environment has the visit of its request."""
OURS = frozenset({"x-ratelimit-limit", "ratelimit"})
"""Fields by which somebody further inside has said all this, in lower case."""
_RAW = ("RAW_URI", "REQUEST_URI")
"""Where servers put the path as it was sent: the standard has no place for it."""
_UNQUOTED = "/:@!$&'()*+,;=~"


class RateLimitMiddleware:
    """Limits a WSGI application; the rest of the settings are those of `GateSettings`. Functions get the environment.

    Args:
        app: the application.
        gate: a gate that was made before, instead of settings: to reset keys, or to share it.
    """

    def __init__(self, app: Application, *, gate: Gate | None = None, **settings: Unpack[GateSettings]) -> None:
        if gate is not None and settings:
            raise InvalidSettings(f"a gate that is given has its own {', '.join(settings)}")
        self.app, self.gate = app, gate or Gate(settings)
        if self.gate.enabled and not self.gate.budgets:
            raise nothing_limited("RateLimitMiddleware")

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        gate, visit = self.gate, visit_of(self.gate, environ, environ)
        environ[VISIT] = visit
        refusal = gate.enter(visit, gate.budgets)
        if refusal is not None:
            return respond(refusal, environ, start_response)

        def started(status: str, headers: Fields, *exc_info: Any) -> Any:
            if visit.is_open:
                code = int(status[:3])
                gate.run(visit.respond(Answer(code, headers), code))
            if OURS.isdisjoint([name.lower() for name, _ in headers]):
                headers = [*headers, *visit.fields()]
            return start_response(status, headers, *exc_info)

        try:
            body = self.app(environ, started)
        except Exception:
            gate.run(visit.fail())
            raise
        return _Watched(body, gate, visit) if visit.is_open else body


class _Watched:
    """A body that is given back if it fails."""

    def __init__(self, body: Iterable[bytes], gate: Gate, visit: Visit) -> None:
        self._body, self._gate, self._visit = body, gate, visit

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._body
        except Exception:
            self._gate.run(self._visit.fail())
            raise

    def close(self) -> None:
        """Tell the application, as servers do, that nobody reads on."""
        close = getattr(self._body, "close", None)
        if close is not None:
            close()


class Lines:
    """The header lines of an environment; two of one name have become one, with a comma."""

    __slots__ = ("_environ",)

    def __init__(self, environ: Environ) -> None:
        self._environ = environ

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        for name, value in self._environ.items():
            if name.startswith("HTTP_"):
                yield name[5:].replace("_", "-").lower().encode("latin-1"), value.encode("latin-1")


def visit_of(gate: Gatekeeping, request: Any, environ: Environ) -> Visit:
    """Return the visit of a request that the environment describes; the path only where rules ask for it."""
    path = path_of(environ) if gate.by_rules else "/"
    return Visit(gate, request, environ.get("REMOTE_ADDR"), Lines(environ), path, environ.get("REQUEST_METHOD", "GET"))


def path_of(environ: Environ) -> str:
    """Return the path as it was sent, or as it may have been: what was decoded is encoded again."""
    for name in _RAW:
        raw = environ.get(name)
        if raw and raw[0] == "/":
            return str(raw)
    decoded = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
    return quote(decoded.encode("latin-1"), safe=_UNQUOTED) or "/"


def respond(refusal: Refusal, environ: Environ, start_response: Any) -> Iterable[bytes]:
    """Send a refusal, or what the application wants to answer instead: a WSGI application, such as a response."""
    if refusal.answer is not None:
        answer: Iterable[bytes] = refusal.answer(environ, start_response)
        return answer
    body, status = refusal.problem.encode(), refusal.status
    headers = [("Content-Type", CONTENT_TYPE), ("Content-Length", str(len(body))), *refusal.fields]
    start_response(f"{status} {HTTPStatus(status).phrase}", headers)
    return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]
