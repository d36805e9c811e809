"""What is where, what is not, and what is said of versions that go."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.server.wire.messages import HttpRequest, HttpResponse
from headgate.stores.heartbeat import UNSEEN
from tests.server.serving import Service, fields, problem, serving
from tests.servers import free_port

CHECK = "/api/v1/rate-limit/check"


@pytest.mark.parametrize("path", ["/", "/api/v1/rate-limit/check/", "/API/v1/rate-limit/check", "/healthz/", "/\xff"])
def test_what_is_not_there_is_not_found(service: Service, path: str) -> None:
    assert CHECK in problem(service.send("GET", path), 404)["detail"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", CHECK, "OPTIONS, POST"),
        ("HEAD", CHECK, "OPTIONS, POST"),
        ("PUT", "/api/v1/rate-limit/batch", "OPTIONS, POST"),
        ("POST", "/healthz", "GET, HEAD, OPTIONS"),
        ("BREW", "/metrics", "GET, HEAD, OPTIONS"),
    ],
)
def test_another_method_is_refused_with_those_that_are_not(
    service: Service, method: str, path: str, allow: str
) -> None:
    response = service.send(method, path)
    assert method in problem(response, 405)["detail"]
    assert fields(response)["allow"] == allow


def test_options_are_told(service: Service) -> None:
    response = service.send("OPTIONS", CHECK)
    assert (response.status, response.body, fields(response)) == (204, b"", {"allow": "OPTIONS, POST"})
    assert service.send("OPTIONS", "*").status == 204


def test_a_query_changes_nothing(service: Service) -> None:
    assert service.send("POST", f"{CHECK}?x=1", b'{"principal": {}}').status == 200


def test_health_says_that_the_process_lives(service: Service) -> None:
    for method in ("GET", "HEAD"):
        assert service.send(method, "/healthz").status == 200


@pytest.mark.parametrize("path", ["/readyz", "/healthcheck"])
def test_a_node_is_ready_until_it_drains(service: Service, path: str) -> None:
    assert json.loads(service.send("GET", path).body) == {"status": "ready"}
    service.readiness.drain()
    response = service.send("GET", path)
    assert (response.status, json.loads(response.body)) == (503, {"status": "draining"})
    assert service.send("GET", "/healthz").status == 200


def test_a_node_whose_store_is_away_is_ready_and_says_that_it_is_degraded() -> None:
    with serving(store=f"redis://127.0.0.1:{free_port()}/0") as service:
        response = service.send("GET", "/readyz")
    assert response.status == 200
    assert json.loads(response.body) == {"status": "degraded", "reason": "storage_unavailable", "nodes": UNSEEN}


def test_metrics_count_calls(service: Service) -> None:
    service.check({"principal": {}})
    response = service.send("GET", "/metrics")
    assert fields(response)["content-type"].startswith("text/plain")
    assert b'"check"' in response.body
    assert service.send("GET", "/hotkeys").status == 200


def test_other_handlers_get_their_paths() -> None:
    async def json_form(request: HttpRequest) -> HttpResponse:
        return HttpResponse(200, request.method)

    with serving(others={b"/json": json_form}) as service:
        assert service.send("PATCH", "/json").body == b"PATCH"


@given(st.binary() | st.sampled_from([b"GET", b"OPTIONS", b"HEAD"]), st.binary() | st.sampled_from([b"/healthz", b"*"]))
def test_any_method_and_any_path_are_answered(method: bytes, path: bytes) -> None:
    with serving() as service:
        assert service.ask(HttpRequest(method, path)).status in {200, 204, 400, 404, 405}
