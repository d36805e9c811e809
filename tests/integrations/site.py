"""A site of Django: its settings, views and addresses in one module, for tests and for real servers."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

if not settings.configured:
    settings.configure(
        DEBUG=False,
        ALLOWED_HOSTS=["*"],
        ROOT_URLCONF=__name__,
        SECRET_KEY="of nothing",  # noqa: S106
        MIDDLEWARE=["headgate.integrations.django.RateLimitMiddleware"],
        HEADGATE=json.loads(os.environ.get("HEADGATE_SITE", "{}")),
    )
    django.setup()

from headgate.integrations.django import limit  # the settings come first


def home(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


@limit("1/minute")
def own(request: HttpRequest) -> HttpResponse:
    return HttpResponse("own")


@limit("2/minute", replaces=True)
def special(request: HttpRequest) -> HttpResponse:
    return HttpResponse("special")


@limit("1/minute")
async def coroutine(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse("coroutine")


@method_decorator(limit("1/minute"), name="dispatch")
class Items(View):  # type: ignore[misc]
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("items")


@method_decorator(limit("1/minute"), name="dispatch")
class AsyncItems(View):  # type: ignore[misc]
    async def get(self, request: HttpRequest) -> HttpResponse:
        await asyncio.sleep(0)
        return HttpResponse("items")


class Method(View):  # type: ignore[misc]
    @method_decorator(limit("1/minute"))  # type: ignore[untyped-decorator]
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("method")


class Bare(View):  # type: ignore[misc]
    @limit("1/minute")
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("bare")


class AsyncBare(View):  # type: ignore[misc]
    @limit("1/minute")
    async def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("bare")


def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter(["a", "b"]))


urlpatterns: list[Any] = [
    path("", home),
    path("own", own),
    path("special", special),
    path("coroutine", coroutine),
    path("items", Items.as_view()),
    path("items-async", AsyncItems.as_view()),
    path("method", Method.as_view()),
    path("bare", Bare.as_view()),
    path("bare-async", AsyncBare.as_view()),
    path("stream", stream),
]
application = get_wsgi_application()
asgi = get_asgi_application()
