"""Paths and methods, and the pages of a node."""

from __future__ import annotations

import asyncio
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.observe.recorder import Recorder
from headgate.server.api.pages import MetricsPages
from headgate.server.wire.messages import HttpRequest, HttpResponse
from headgate.stores.heartbeat import UNSEEN
from tests.server.serving import Service, fields, problem, serving
from tests.servers import free_port

CHECK = "/api/v1/rate-limit/check"


def test_unknown_paths_are_not_found(service: Service) -> None:
    for path in ("/", "/api/v1/rate-limit/check/", "/API/v1/rate-limit/check", "/healthz/", "/\xff"):
        assert CHECK in problem(service.send("GET", path), 404)["detail"], path


def test_other_methods_are_refused_with_the_allowed_ones(service: Service) -> None:
    to_post, to_get = "OPTIONS, POST", "GET, HEAD, OPTIONS"
    for method, path, allow in (
        *(("GET", CHECK, to_post), ("HEAD", CHECK, to_post), ("PUT", "/api/v1/rate-limit/batch", to_post)),
        *(("POST", "/healthz", to_get), ("BREW", "/metrics", to_get)),
    ):
        response = service.send(method, path)
        assert method in problem(response, 405)["detail"]
        assert fields(response)["allow"] == allow
    response = service.send("OPTIONS", CHECK)
    assert (response.status, response.body, fields(response)) == (204, b"", {"allow": to_post})
    assert service.send("OPTIONS", "*").status == 204
    assert service.send("POST", f"{CHECK}?x=1", b'{"principal": {}}').status == 200, "a query changes nothing"


@pytest.mark.parametrize("path", ["/readyz", "/healthcheck"])
def test_a_node_is_ready_until_it_drains_and_lives_until_its_end(service: Service, path: str) -> None:
    assert json.loads(service.send("GET", path).body) == {"status": "ready"}
    service.readiness.drain()
    response = service.send("GET", path)
    assert (response.status, json.loads(response.body)) == (503, {"status": "draining"})
    assert [service.send(method, "/healthz").status for method in ("GET", "HEAD")] == [200, 200]


def test_a_node_whose_store_is_down_is_ready_but_degraded() -> None:
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


METRICS = HttpRequest(b"GET", b"/metrics")
OPENMETRICS = HttpRequest(b"GET", b"/metrics", headers=[(b"accept", b"application/openmetrics-text")])


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    threads: list[str] = []
    write = Recorder.metrics

    def noting(self: Recorder, accept: bytes | None = None) -> tuple[bytes, bytes]:
        threads.append(threading.current_thread().name)
        return write(self, accept)

    monkeypatch.setattr(Recorder, "metrics", noting)
    return threads


async def asked_at_once(*requests: HttpRequest) -> list[HttpResponse]:
    pages = MetricsPages(Recorder())
    return await asyncio.gather(*[pages.metrics(request) for request in requests])


def test_concurrent_requests_share_a_page_that_a_thread_writes(written: list[str]) -> None:
    responses = asyncio.run(asked_at_once(*[METRICS] * 500))
    assert {response.status for response in responses} == {200}
    assert len({id(response.body) for response in responses}) == 1
    assert len(written) == 1
    assert written[0] != threading.main_thread().name


def test_each_request_gets_its_format(written: list[str]) -> None:
    responses = asyncio.run(asked_at_once(*[METRICS, OPENMETRICS] * 10))
    kinds = [dict(response.headers)[b"content-type"] for response in responses]
    assert all(kind.startswith(b"text/plain") for kind in kinds[::2])
    assert all(kind.startswith(b"application/openmetrics-text") for kind in kinds[1::2])
    assert len(written) == 2


async def test_a_later_request_gets_a_newer_page_and_no_cancellation_ends_it() -> None:
    recorder = Recorder()
    pages = MetricsPages(recorder)
    bodies = [(await pages.metrics(METRICS)).body]
    recorder.record_call("check", "error", 1000)
    asking = [asyncio.create_task(pages.metrics(METRICS)) for _ in range(2)]
    await asyncio.sleep(0)
    asking.pop().cancel()
    bodies.append((await asking.pop()).body)
    before, after = bodies
    assert before != after
