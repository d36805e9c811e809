"""The WSGI middleware: every answer has the fields, and bodies pass as they are."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any
from wsgiref.util import FileWrapper, setup_testing_defaults
from wsgiref.validate import validator

import pytest

from headgate import load_rules
from headgate.integrations.limiter import RequestLimiter
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


def test_every_answer_has_the_fields_and_a_refusal_is_a_problem_document() -> None:
    app = validator(limited(validator(hello)))
    status, headers, body = call(app)
    assert (status, headers["X-RateLimit-Remaining"], body) == (200, "1", b"hello")
    call(app)
    status, headers, body = call(app)
    assert (status, headers["Retry-After"]) == (429, "30")
    assert headers["Content-Type"] == "application/problem+json"
    assert json.loads(body)["status"] == 429
    assert call(app, method="HEAD")[2] == b""
    assert call(app, REMOTE_ADDR="203.0.113.10")[0] == 200


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


def test_a_stream_that_fails_is_closed_and_costs_nothing_where_that_is_asked_for() -> None:
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


def test_an_application_that_fails_at_once_or_says_so_afterwards_costs_nothing_either() -> None:
    def fails(environ: Any, start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/raise":
            raise LookupError
        start_response("200 OK", [])
        try:
            json.loads("")
        except ValueError:
            start_response("500 Internal Server Error", [], sys.exc_info())
        return [b"sorry"]

    app = limited(fails, limits="1/minute", refund_on_error=True)
    for _ in range(2):
        with pytest.raises(LookupError):
            call(app, path="/raise")
        assert call(app)[0] == 500


def test_a_condition_is_about_the_response() -> None:
    answers = iter([200, 401, 200])

    def log_in(environ: Any, start_response: Any) -> Any:
        start_response(f"{next(answers)} Whatever", [])
        yield b""

    app = limited(log_in, limits="1/minute", count_when=lambda response: response.status_code == 401)
    assert [call(app)[0] for _ in range(3)] == [200, 401, 429]


def test_the_hook_may_answer_with_an_application() -> None:
    app = limited(limits="1/minute", on_refused=lambda environ, refusal: hello)
    assert [call(app)[0] for _ in range(2)] == [200, 200]


def test_functions_see_the_environment_and_rules_see_the_path_as_it_was_sent() -> None:
    rules = load_rules(
        "{version: 1, rules: [{id: logins, limit: 1, window: 1m, dimension: user, endpoint: /log%20in}]}"
    )
    app = limited(limits=None, rules=rules, key=lambda environ: environ["HTTP_X_USER"])
    asked = [call(app, path="/log in", HTTP_X_USER=user)[0] for user in ("ada", "ada", "bob")]
    assert asked == [200, 429, 200]
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


def test_a_middleware_that_limits_nothing_is_a_mistake_unless_it_says_so() -> None:
    with pytest.raises(InvalidSettings, match="limits nothing"):
        RateLimitMiddleware(hello, store="memory")
    RateLimitMiddleware(hello, enabled=False)


def test_a_gate_that_is_given_has_its_own_settings() -> None:
    with pytest.raises(InvalidSettings, match="own limits"):
        RateLimitMiddleware(hello, gate=RequestLimiter({"limits": "1/minute"}), limits="2/minute")
