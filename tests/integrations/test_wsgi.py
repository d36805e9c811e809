"""The WSGI middleware: every answer has the fields, and bodies pass as they are."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any
from wsgiref.util import FileWrapper, setup_testing_defaults

import pytest

from headgate import load_rules
from headgate.integrations.wsgi import RateLimitMiddleware, path_of
from headgate.testing import ManualClock
from headgate.web.errors import InvalidSettings


def hello(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hel", b"lo"]


def limited(app: Any = hello, **settings: Any) -> Any:
    settings.setdefault("limits", "2/minute")
    return RateLimitMiddleware(app, clock=ManualClock(), **settings)


def environ_of(path: str = "/", method: str = "GET", **more: str) -> dict[str, Any]:
    usual = {"SCRIPT_NAME": "", "QUERY_STRING": "", "REMOTE_ADDR": "203.0.113.9"}
    environ = {**usual, "PATH_INFO": path, "REQUEST_METHOD": method, **more}
    setup_testing_defaults(environ)
    return environ


def call(app: Any, **more: Any) -> tuple[int, dict[str, str], bytes]:
    """Call an application as a careful server does."""
    seen: list[Any] = []

    def start_response(status: str, headers: Any, exc_info: Any = None) -> Any:
        seen.append((int(status[:3]), dict(headers)))
        return lambda data: None

    body = app(environ_of(**more), start_response)
    try:
        content = b"".join(body)
    finally:
        if hasattr(body, "close"):
            body.close()
    return *seen[-1], content


def test_a_body_is_passed_on_as_it_is() -> None:
    wrapper = FileWrapper(io.BytesIO(b"file"))

    def file(environ: Any, start_response: Any) -> Any:
        hello(environ, start_response)
        return wrapper

    assert limited(file)(environ_of(), lambda *_: None) is wrapper


class Stream:
    """A body that fails after its first piece, and knows whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield b"a"
        raise LookupError("broken")

    def close(self) -> None:
        self.is_closed = True


def test_a_stream_that_fails_is_closed_and_refunded_by_refund_on_error() -> None:
    streams: list[Stream] = []

    def broken(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [("Content-Type", "text/plain")])
        streams.append(Stream())
        return streams[-1]

    app = limited(broken, limits="1/minute", refund_on_error=True)
    for _ in range(2):
        with pytest.raises(LookupError, match="broken"):
            call(app)
    assert [stream.is_closed for stream in streams] == [True, True]


def test_a_late_error_status_is_refunded_by_refund_on_error() -> None:
    def fails(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        try:
            json.loads("")
        except ValueError:
            start_response("500 Internal Server Error", [], sys.exc_info())
        return [b"sorry"]

    app = limited(fails, limits="1/minute", refund_on_error=True)
    for _ in range(2):
        assert call(app)[0] == 500


def test_functions_see_the_environment_and_rules_see_the_path_as_it_was_sent() -> None:
    rules = load_rules(
        "{version: 1, rules: [{id: logins, limit: 1, window: 1m, dimension: user, endpoint: /log%20in}]}"
    )
    app = limited(limits=None, rules=rules, key=lambda environ: environ["HTTP_X_USER"])
    statuses = [call(app, path="/log in", HTTP_X_USER=user)[0] for user in ("ada", "ada", "bob")]
    assert statuses == [200, 429, 200]
    assert call(app, path="/other", HTTP_X_USER="ada")[0] == 200


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"PATH_INFO": "/a b/ä".encode().decode("latin-1")}, "/a%20b/%C3%A4"),
        ({"SCRIPT_NAME": "/app", "PATH_INFO": "/x"}, "/app/x"),
        ({"PATH_INFO": "/a/b", "RAW_URI": "/a%2fb?q"}, "/a%2fb?q"),
        ({"PATH_INFO": "/a", "REQUEST_URI": "http://example.com/a"}, "/a"),
        ({"PATH_INFO": ""}, "/"),
    ],
)
def test_the_path_is_as_it_was_sent_or_encoded_again(environ: dict[str, str], path: str) -> None:
    assert path_of(environ) == path


def test_a_middleware_that_limits_nothing_is_an_error_unless_it_is_disabled() -> None:
    with pytest.raises(InvalidSettings, match="limits nothing"):
        RateLimitMiddleware(hello, store="memory")
    RateLimitMiddleware(hello, enabled=False)
