"""A real nginx, with the configuration of the documentation."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from headgate.server.admission import AdmissionController
from headgate.server.api.forward_auth import ForwardAuth
from headgate.testing import ManualClock
from tests.server.hostile import Upstream, hostile, post, sent, upstream
from tests.server.listening import listening
from tests.server.process.service import service
from tests.servers import Reply, fetched, free_port, launched, until

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "proxies" / "nginx.conf"
RULES = """
version: 1
rules:
  - {id: orders-ip, dimension: ip, endpoint: /orders/**, methods: [POST], limit: 2, window: 1m, algorithm: fixed_window}
  - {id: queue, dimension: ip, endpoint: /queue, limit: 60, window: 1m, algorithm: leaky_bucket, queue: true}
"""
MAIN = """
daemon off; worker_processes 1; pid nginx.pid; error_log error.log info;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path temp; proxy_temp_path temp; fastcgi_temp_path temp; uwsgi_temp_path temp; scgi_temp_path temp;
    {server}
}}
"""


def started(folder: Path, headgate: int, behind: int) -> tuple[subprocess.Popen[bytes], int]:
    program = shutil.which("nginx")
    assert program, "nginx is needed: apt-get install nginx-light"
    (folder / "temp").mkdir()
    for _ in range(20):
        port = free_port()
        server = EXAMPLE.read_text().replace("127.0.0.1:8080", f"127.0.0.1:{headgate}")
        assert server.count("_timeout 1s;") == 2
        server = server.replace("_timeout 1s;", "_timeout 60s;")  # a busy machine is slow
        server = server.replace("127.0.0.1:9000", f"127.0.0.1:{behind}").replace(
            "listen 8000", f"listen 127.0.0.1:{port}"
        )
        (folder / "nginx.conf").write_text(MAIN.format(server=server))
        command = [program, "-p", str(folder), "-c", "nginx.conf", "-e", "error.log"]
        process = launched(command, folder)
        until(lambda: (folder / "nginx.pid").exists() or process.poll() is not None, "nginx starts")  # noqa: B023
        if process.poll() is None:
            until(lambda: answers(port), "nginx answers")  # noqa: B023
            return process, port
        assert "Address already in use" in (folder / "error.log").read_text(), (folder / "error.log").read_text()
    raise AssertionError("no port is free")


def answers(port: int) -> bool:
    try:
        fetched(port)
    except OSError:
        return False
    return True


def posted(nginx: Nginx, path: str, **headers: str) -> Reply:
    return fetched(nginx.port, path, "POST", body=b"x" * 10, **headers)


class Nginx(NamedTuple):
    port: int
    app: Upstream


@contextmanager
def nginx_before(folder: Path, headgate: int) -> Iterator[Nginx]:
    with upstream() as app:
        process, port = started(folder, headgate, app.port)
        app.served.clear()
        try:
            yield Nginx(port, app)
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module")
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(scope="module")
def running(clock: ManualClock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nginx]:
    with (
        listening(RULES, clock=clock, forward_auth=ForwardAuth(deny_status=403)) as served,
        nginx_before(tmp_path_factory.mktemp("nginx"), served.http) as it,
    ):
        yield it


@pytest.fixture
def nginx(running: Nginx, clock: ManualClock) -> Nginx:
    """One nginx for all tests that do not disturb it; no limit is used at first."""
    clock.advance(120)
    return running


def test_requests_pass_until_their_limit_and_get_a_time_to_retry(nginx: Nginx) -> None:
    reply = posted(nginx, "/orders/7?a=b")
    assert (reply.status, reply.body) == (200, b"from upstream")
    assert (reply.headers["x-ratelimit-limit"], reply.headers["x-ratelimit-remaining"]) == ("2", "1")
    assert posted(nginx, "/orders/8").status == 200
    status, headers, _ = posted(nginx, "/orders/9")
    assert (status, headers["retry-after"], headers["x-ratelimit-remaining"]) == (429, "20", "0")
    assert fetched(nginx.port, "/orders/9").status == 200


def test_a_place_in_a_queue_reaches_the_client(nginx: Nginx) -> None:
    assert [fetched(nginx.port, "/queue").headers.get("x-ratelimit-delay") for _ in range(3)] == [None, "1", "2"]


def test_headers_of_clients_have_no_effect(nginx: Nginx) -> None:
    """Each of these headers would, if it were believed, make the request another one."""
    forged = {
        "X-Original-URI": "/free",
        "X-Original-Method": "GET",
        "X-Forwarded-Uri": "/free",
        "X-Forwarded-Method": "GET",
        "X-Forwarded-For": "198.51.100.7",
    }
    assert [posted(nginx, "/orders/7", **forged).status for _ in range(3)] == [200, 200, 429]


def test_a_path_that_servers_interpret_differently_does_not_pass(nginx: Nginx) -> None:
    assert posted(nginx, "/orders/%2e%2e/free").status == 429


def test_no_hostile_request_passes_beyond_the_limit(tmp_path: Path) -> None:
    """Whatever nginx lets through and Headgate cannot read is refused, by one of them."""
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nrules: [{id: all-ip, dimension: ip, limit: 1, window: 365d}]")
    with (
        service("--rules", str(rules), "--deny-status", "403") as served,
        nginx_before(tmp_path, served.started().http_port) as nginx,
    ):
        passed = []
        for name, data in hostile():
            nginx.app.served.clear()
            answer = sent(nginx.port, data)
            if nginx.app.served or b" 200 OK" in answer:
                passed.append((name, nginx.app.served[:], answer[:200]))
        assert passed == []
        assert sent(nginx.port, post()).startswith(b"HTTP/1.1 429")


def test_requests_pass_while_headgate_is_down(tmp_path: Path) -> None:
    with nginx_before(tmp_path, free_port()) as nginx:
        assert posted(nginx, "/orders/7")[::2] == (200, b"from upstream")


def test_a_node_that_protects_itself_is_not_down(tmp_path: Path) -> None:
    """Whoever floods a node must not thereby lift the limits of all."""
    controller = AdmissionController(per_second=1, clock=ManualClock())
    with (
        listening(RULES, controller=controller, forward_auth=ForwardAuth(deny_status=403)) as served,
        nginx_before(tmp_path, served.http) as nginx,
    ):
        answers = [sent(nginx.port, post()) for _ in range(3)]
        assert [answer[9:12] for answer in answers] == [b"503"] * 3
        assert b"retry-after: 1\r\n" in answers[-1].lower()
        assert nginx.app.served == []
