"""Middleware for any ASGI application::

    app = RateLimitMiddleware(app, limits="100/minute")

Every answer has the header fields, refusals are problem documents (429). Answers are passed on as they come, piece by
piece. The connection of a WebSocket counts as a request; one that is refused is answered as an HTTP request where the
server can do that, and else closed before it is accepted. Messages that it receives count where `messages` says so.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, TypeAlias, Unpack

from headgate.core.errors import UsageError
from headgate.core.numbers import short
from headgate.integrations.answers import Refusal
from headgate.integrations.budgets import Budget, Quotas
from headgate.integrations.gate import AsyncGate, GateSettings, nothing_limited
from headgate.integrations.visit import DEFAULT, UNDECIDED, Answer, Visit
from headgate.web.errors import InvalidSettings
from headgate.web.headers import as_bytes
from headgate.web.problem import CONTENT_TYPE

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

VISIT = "headgate.visit"
"""Where a scope has the visit of its request, for whoever limits routes."""
TRY_LATER = 1013
"""The code that closes a connection with too many messages: "try again later", as IANA lists it."""
MOST_LAYERS = 100
"""Of middleware that are looked through, each by the attribute `app` that nearly all of them have."""
_REQUESTS = frozenset({"http", "websocket"})
_OURS = frozenset({b"x-ratelimit-limit", b"ratelimit"})
_PROBLEM = (b"content-type", CONTENT_TYPE.encode())


class Denied(Exception):
    """A WebSocket connection is refused by a limit of its route: raised through the application to the middleware."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal


class RateLimitMiddleware:
    """Limits an ASGI application; the rest of the settings are those of `GateSettings`.

    Functions, such as `key`, get what `present` makes of a scope: by default, the scope itself.

    Args:
        app: the application.
        gate: a gate that was made before, instead of settings: to reset keys, or to share it.
        messages: how many messages a client may send over all of its WebSocket connections, such as ``"10/s"``.
        on_message: what becomes of one too many: ``"close"`` ends the connection, ``"wait"`` lets it wait for its turn,
            and with it all that come behind it.
    """

    has_routes = False
    """Whether routes may have limits of their own."""
    is_made_late = False
    """Whether it is made when the application is told to start, as Starlette makes its middleware. Servers take an
    exception at that point for an application that cannot be told, and serve it: so mistakes are kept for `check`."""
    present: Callable[[Scope], Any] | None = None
    """Makes of a scope what functions of the application want to see; None: they see it as it is."""
    limits_of: Callable[[Visit, Scope], tuple[Sequence[Budget], str]] | None = None
    """Says what a request is limited by before it reaches the application, and the name of its route; None: what is for
    all routes."""

    def __init__(
        self,
        app: Application,
        *,
        gate: AsyncGate | None = None,
        messages: Quotas | Budget | None = None,
        on_message: str = "close",
        **settings: Unpack[GateSettings],
    ) -> None:
        self.app, self._owned, self._waits = app, gate is None, on_message == "wait"
        self._messages: tuple[Budget, ...] = ()
        self._mistake: UsageError | None = None
        self._is_checked = False
        try:
            if gate is not None and settings:
                raise InvalidSettings(f"a gate that is given has its own {', '.join(settings)}")
            if gate is not None and gate.spelling is not as_bytes:
                raise InvalidSettings("a gate of ASGI applications is made by headgate.integrations.asgi.gate(...)")
            if on_message not in {"close", "wait"}:
                raise InvalidSettings(f"on_message is 'close' or 'wait', not {short(on_message)}")
            self.gate = gate or AsyncGate(settings, as_bytes)
            if messages is not None:
                budget = messages if isinstance(messages, Budget) else Budget(limits=messages, name="messages")
                self._messages = self.gate.checked(budget)
            if not self.has_routes:
                self.check({})
        except UsageError as error:
            if not (self.is_made_late or _is_within_starlette(app)):
                raise
            self._mistake, self.gate, self._owned = error, AsyncGate({}, as_bytes), True

    def check(self, scope: Scope) -> None:
        """Look at an application that starts, or at the scope of its first request. Raises UsageError."""
        if self._mistake is not None:
            raise self._mistake.with_traceback(None)
        if not (self.limited_routes(scope) or self.gate.budgets or self._messages) and self.gate.enabled:
            raise nothing_limited(type(self).__name__.lstrip("_"))
        self._is_checked = True

    def limited_routes(self, scope: Scope) -> bool:  # noqa: ARG002  others need it
        """Say whether any route has limits of its own, which are checked. Raises UsageError."""
        return False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind, gate = scope["type"], self.gate
        if kind not in _REQUESTS:
            await self._others(kind, scope, receive, send)
            return
        if not self._is_checked:  # a server does not have to say that it starts
            self.check(scope)
        client = scope.get("client")
        peer, lines = client[0] if client else None, scope["headers"]
        visit = scope[VISIT] = _Exchange(gate, scope, peer, lines, present=self.present, receive=receive, send=send)
        if gate.by_rules:
            raw_path = scope.get("raw_path")
            visit.path = raw_path.decode("latin-1") if raw_path else scope["path"]
            visit.method = scope.get("method", "GET")
        asked = (gate.budgets, DEFAULT) if self.limits_of is None else self.limits_of(visit, scope)
        refusal = visit.at_once(*asked)
        if refusal is UNDECIDED:
            refusal = await gate.enter(visit, *asked)
        if kind == "websocket":
            await self._websocket(visit, refusal, scope, receive, send)
            return
        if refusal is not None:
            scope.pop(VISIT, None)
            await self.refuse(refusal, scope, receive, send)
            return
        try:
            await self.app(scope, visit.received, visit.sent)
        except Exception:
            if visit.is_open and not visit.has_left:  # who hangs up gets nothing back
                await gate.run(visit.fail())
            raise
        finally:
            scope.pop(VISIT, None)  # it knows the scope, too: without this, only the garbage collector would end both

    async def refuse(self, refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that is refused."""
        await respond(refusal, scope, receive, send)

    async def _others(self, kind: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve what is not a request."""
        if kind == "lifespan":
            try:
                self.check(scope)
            except UsageError as error:  # servers take an exception alone for an application that cannot be told
                await receive()
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                raise
        try:
            await self.app(scope, receive, send)
        finally:
            if kind == "lifespan" and self._owned:
                await self.gate.close()

    async def _websocket(
        self, visit: Visit, refusal: Refusal | None, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if refusal is not None:
            scope.pop(VISIT, None)
            await receive()  # that somebody wants to connect
            await deny(refusal, scope, receive, send)
            return
        connection = _Connection(receive, send, visit, self._counted if self._messages else None)
        try:
            await self.app(scope, connection.receive, connection.send)
        except Denied as denied:
            if not connection.is_known:
                await receive()
            await deny(denied.refusal, scope, receive, send)
        except Exception:
            if visit.is_open and not visit.has_left:
                await self.gate.run(visit.fail())
            raise
        finally:
            scope.pop(VISIT, None)

    async def _counted(self, connection: Visit) -> Refusal | None:
        """Take what a message costs; if messages wait for their turn, wait for it."""
        of = connection.request, connection.peer, connection.lines, connection.path, connection.method
        while True:
            refusal = await self.gate.enter(Visit(self.gate, *of), self._messages)
            if refusal is None or not self._waits or refusal.decision is None:
                return refusal
            await asyncio.sleep(refusal.decision.retry_after)


class _Exchange(Visit, eq=False, kw_only=True):
    """The visit of a request, with what its application receives and sends."""

    receive: Receive
    send: Send

    async def received(self) -> Message:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            self.has_left = True
        return message

    def sent(self, message: Message) -> Awaitable[None]:
        if self.is_open:
            return self._settled(message)
        return self.send(with_fields(message, self) if message["type"] == "http.response.start" else message)

    async def _settled(self, message: Message) -> None:
        """Pass on a message of the response that decides what a request costs."""
        if message["type"] == "http.response.start":
            gate: Any = self.gate
            status = message["status"]
            await gate.run(self.respond(Answer(status, message.get("headers", ())), status))
            message = with_fields(message, self)
        try:
            await self.send(message)
        except OSError:
            self.has_left = True
            raise


class _Connection:
    """A WebSocket connection, as the application sees it."""

    def __init__(
        self, receive: Receive, send: Send, visit: Visit, count: Callable[[Visit], Awaitable[Refusal | None]] | None
    ) -> None:
        self._receive, self._send, self._visit, self._count = receive, send, visit, count
        self.is_known = False
        """Whether the application has received anything yet."""
        self._is_closed = False

    async def send(self, message: Message) -> None:
        if self._is_closed:  # by us: there is nobody left to tell
            return
        await self._send(with_fields(message, self._visit) if message["type"] == "websocket.accept" else message)

    async def receive(self) -> Message:
        message = await self._receive()
        self.is_known = True
        if message["type"] == "websocket.disconnect":
            self._visit.has_left = True
        if message["type"] != "websocket.receive" or self._count is None or self._is_closed:
            return message
        refusal = await self._count(self._visit)
        if refusal is None:
            return message
        self._is_closed = True
        reason = f"Too many messages. Retry in {refusal.retry_after or 1} s."
        await self._send({"type": "websocket.close", "code": TRY_LATER, "reason": reason})
        return {"type": "websocket.disconnect", "code": TRY_LATER, "reason": reason}


def _is_within_starlette(app: Any) -> bool:
    """Whether Starlette makes a middleware around `app`: its own innermost one is inside, which nobody else makes."""
    module = sys.modules.get("starlette.middleware.exceptions")
    for _ in range(MOST_LAYERS):
        if module is None or app is None:
            return False
        if isinstance(app, module.ExceptionMiddleware):
            return True
        app = getattr(app, "app", None)
    return False


def gate(**settings: Unpack[GateSettings]) -> AsyncGate:
    """Return a gate for ASGI applications, to share it between them, or to reset keys."""
    return AsyncGate(settings, as_bytes)


def with_fields(message: Message, visit: Visit) -> Message:
    """Return the start of a response with the header fields, unless somebody further inside has sent them."""
    fields = visit.fields()
    if not fields:
        return message
    headers = list(message.get("headers", ()))
    for name, _ in headers:
        if name in _OURS:
            break
    else:
        headers += fields
    return {**message, "headers": headers}


async def respond(refusal: Refusal, scope: Scope, receive: Receive, send: Send, prefix: str = "") -> None:
    """Send a refusal, or what the application wants to answer instead: an ASGI application, such as a response."""
    if refusal.answer is not None:
        await refusal.answer(scope, receive, send)
        return
    body = refusal.problem.encode()
    headers = [_PROBLEM, (b"content-length", b"%d" % len(body)), *refusal.fields]
    await send({"type": f"{prefix}http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": f"{prefix}http.response.body", "body": b"" if scope.get("method") == "HEAD" else body})


async def deny(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    """Refuse a WebSocket connection that is not accepted yet."""
    if "websocket.http.response" in scope.get("extensions", {}):
        await respond(refusal, scope, receive, send, "websocket.")
    else:  # the server answers 403
        await send({"type": "websocket.close", "code": TRY_LATER, "reason": refusal.detail})
