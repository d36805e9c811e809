"""The applications: one route that responds at once, without a limiter and with each, called without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from wsgiref.util import setup_testing_defaults

import flask_limiter
import redis.asyncio
import slowapi.util
import uvloop
from fastapi import Depends, FastAPI
from fastapi_limiter.depends import RateLimiter
from flask import Flask
from pyrate_limiter import Duration, InMemoryBucket, Limiter, Rate, RedisBucket
from slowapi.middleware import SlowAPIASGIMiddleware
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from headgate.integrations.fastapi import RateLimitMiddleware, limited
from headgate.integrations.flask import RateLimits

PLAIN, OURS = "without", "headgate"
MEMORY = "memory"
"""The store of limits of one process; all others are addresses of Redis."""
CLIENT = "203.0.113.9"
KEPT: list[Any] = []
"""All applications and event loops there were: limiters leave connections open, and uvloop would wait for their end."""
AT_ONCE = 16
"""Requests that are under way at a time where the application is asynchronous, as in a server that is busy."""
Requests = Callable[[int], list[int]]
"""Sends a number of requests; returns the statuses of the responses."""


def starlette(name: str, store: str, limits: str) -> Any:
    """An application that is limited by a middleware, for all routes."""

    def home(request: Request) -> PlainTextResponse:  # noqa: ARG001  as Starlette calls it
        return PlainTextResponse("hello")

    async def home_async(request: Request) -> PlainTextResponse:  # not in a thread, which would cost more than all this
        return home(request)

    app = Starlette(routes=[Route("/", home_async)])
    if name == OURS:
        app.add_middleware(RateLimitMiddleware, limits=limits, store=_patient(store))
    elif name != PLAIN:
        app.state.limiter = slowapi.Limiter(
            key_func=slowapi.util.get_remote_address,
            default_limits=[limits],
            headers_enabled=True,
            storage_uri="memory://" if store == MEMORY else store,
        )
        app.add_middleware(SlowAPIASGIMiddleware)
    return app


def fastapi(name: str, store: str, limits: str) -> Any:
    """An application that is limited for all routes: by the middleware, or by a dependency of the application."""
    app = FastAPI()
    if name == OURS:
        app.add_middleware(RateLimitMiddleware, limits=limits, store=_patient(store))
    elif name != PLAIN:
        app = FastAPI(dependencies=[Depends(_dependency(store, limits))])

    @app.get("/")
    async def home() -> str:
        return "hello"

    return app


def fastapi_without_fields(name: str, store: str, limits: str) -> Any:
    """The same without header fields, which the other one does not have either."""
    if name != OURS:
        return fastapi(name, store, limits)
    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limits=limits, store=_patient(store), headers=None)

    @app.get("/")
    async def home() -> str:
        return "hello"

    return app


def fastapi_route(name: str, store: str, limits: str) -> Any:
    """An application that is limited for one route: by the decorator, or by a dependency of the route."""
    app, dependencies = FastAPI(), []

    async def home() -> str:
        return "hello"

    if name == OURS:
        app.add_middleware(RateLimitMiddleware, store=_patient(store))
        home = limited(limits)(home)  # type: ignore[assignment]
    elif name != PLAIN:
        dependencies = [Depends(_dependency(store, limits))]
    app.get("/", dependencies=dependencies)(home)
    return app


def _patient(store: str) -> str:
    """Give Redis on a busy machine more time than the default deadline; a decision costs the same."""
    return store if store == MEMORY else f"{store}?timeout=5"


def _dependency(store: str, limits: str) -> Any:
    most, _, unit = limits.partition("/")
    rates = [Rate(int(most), Duration[unit.upper()])]
    return RateLimiter(Limiter(InMemoryBucket(rates))) if store == MEMORY else _OnRedis(rates, store)


class _OnRedis:
    """A dependency of fastapi-limiter whose bucket is created in its event loop."""

    def __init__(self, rates: list[Rate], store: str) -> None:
        self._rates, self._store = rates, store
        self._made: asyncio.Task[RateLimiter] | None = None

    async def __call__(self, request: Request) -> None:
        if self._made is None:  # once, also for requests that come at once
            self._made = asyncio.create_task(self._make())
        await (await self._made)(request, PlainTextResponse())

    async def _make(self) -> RateLimiter:
        bucket: Any = RedisBucket.init(self._rates, redis.asyncio.Redis.from_url(self._store), "fastapi-limiter")
        return RateLimiter(Limiter(await bucket))


def flask(name: str, store: str, limits: str) -> Any:
    """An application that is limited by an extension, for all routes."""
    app = Flask("bench")
    if name == OURS:
        RateLimits(app, limits=limits, store=_patient(store))
    elif name != PLAIN:
        flask_limiter.Limiter(
            lambda: CLIENT,
            app=app,
            default_limits=[limits],
            headers_enabled=True,
            storage_uri="memory://" if store == MEMORY else store,
        )
    app.get("/")(lambda: "hello")
    return app


@contextmanager
def called_by_asgi(app: Any) -> Iterator[Requests]:
    """Call an ASGI application as a server does, in a new event loop of uvloop, as in uvicorn."""
    loop = uvloop.new_event_loop()
    asgi = {"version": "3.0", "spec_version": "2.3"}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def statuses_of(times: int) -> list[int]:
        statuses: list[int] = []
        left = iter(range(times))
        await asyncio.gather(*[one_after_the_other(left, statuses) for _ in range(AT_ONCE)])
        return statuses

    async def one_after_the_other(left: Iterator[int], statuses: list[int]) -> None:
        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        for _ in left:
            scope = {"type": "http", "asgi": asgi, "method": "GET", "path": "/", "raw_path": b"/", "query_string": b""}
            headers = [(b"host", b"localhost"), (b"accept", b"*/*")]
            more = {"root_path": "", "scheme": "http", "server": ("localhost", 80), "http_version": "1.1"}
            await app({**scope, **more, "headers": headers, "client": (CLIENT, 4711), "state": {}}, receive, send)

    KEPT.append((loop, app))
    yield lambda times: loop.run_until_complete(statuses_of(times))


@contextmanager
def called_by_wsgi(app: Any) -> Iterator[Requests]:
    """Call a WSGI application as a server does."""
    KEPT.append(app)

    def statuses_of(times: int) -> list[int]:
        statuses = []

        def start_response(status: str, headers: Any, exc_info: Any = None) -> None:  # noqa: ARG001
            statuses.append(int(status[:3]))

        for _ in range(times):
            environ = {"REMOTE_ADDR": CLIENT, "PATH_INFO": "/", "SCRIPT_NAME": "", "QUERY_STRING": ""}
            setup_testing_defaults(environ)
            answer = app(environ, start_response)
            for _ in answer:
                pass
            answer.close()
        return statuses

    yield statuses_of


CASES = {
    "Starlette, all routes": (starlette, called_by_asgi, "slowapi"),
    "FastAPI, all routes": (fastapi, called_by_asgi, "fastapi-limiter"),
    "FastAPI, all routes, no header fields": (fastapi_without_fields, called_by_asgi, "fastapi-limiter"),
    "FastAPI, one route": (fastapi_route, called_by_asgi, "fastapi-limiter"),
    "Flask, all routes": (flask, called_by_wsgi, "flask-limiter"),
}
"""The application, how to call it, and its usual limiters."""
