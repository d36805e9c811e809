"""A real nginx, with the configuration of the documentation, asks before it passes requests on."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import pytest

from headgate.server.admission import AdmissionController
from headgate.server.api.forward_auth import ForwardAuth
from headgate.testing import ManualClock
from tests.server.hostile import Upstream, hostile, post, sent, upstream
from tests.server.listening import listening
from tests.server.process.service import service
from tests.servers import _LAUNCHER, free_port, until

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
        server = server.replace("_timeout 1s;", "_timeout 60s;")  # a busy machine is not away
        server = server.replace("127.0.0.1:9000", f"127.0.0.1:{behind}").replace(
            "listen 8000", f"listen 127.0.0.1:{port}"
        )
        (folder / "nginx.conf").write_text(MAIN.format(server=server))
        command = [program, "-p", str(folder), "-c", "nginx.conf", "-e", "error.log"]
        if protector := shutil.which("setpriv"):
            command = [protector, "--pdeathsig", "TERM", *command]
        process = _LAUNCHER.submit(subprocess.Popen, command, stderr=subprocess.DEVNULL).result()
        until(lambda: (folder / "nginx.pid").exists() or process.poll() is not None, "nginx starts")  # noqa: B023
        if process.poll() is None:
            until(lambda: answers(port), "nginx answers")  # noqa: B023
            return process, port
        assert "Address already in use" in (folder / "error.log").read_text(), (folder / "error.log").read_text()
    raise AssertionError("no port is free")


def answers(port: int) -> bool:
    try:
        ask(port, "GET", "/")
    except OSError:
        return False
    return True


def ask(
    port: int, method: str, path: str, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, b"x" * 10 if method == "POST" else None, dict(headers or {}))
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


class Nginx(NamedTuple):
    """A proxy that asks, and what it passes on."""

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


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Nginx]:
    with (
        listening(RULES, forward_auth=ForwardAuth(deny_status=403)) as served,
        nginx_before(tmp_path, served.http) as it,
    ):
        yield it


def test_requests_pass_until_their_limit_and_are_told_when_to_come_back(nginx: Nginx) -> None:
    status, headers, body = ask(nginx.port, "POST", "/orders/7?a=b")
    assert (status, body) == (200, b"from upstream")
    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == ("2", "1")
    assert ask(nginx.port, "POST", "/orders/8")[0] == 200
    status, headers, _ = ask(nginx.port, "POST", "/orders/9")
    assert (status, headers["retry-after"], headers["x-ratelimit-remaining"]) == (429, "20", "0")
    assert ask(nginx.port, "GET", "/orders/9")[0] == 200


def test_a_place_in_a_queue_reaches_the_client(nginx: Nginx) -> None:
    assert [ask(nginx.port, "GET", "/queue")[1].get("x-ratelimit-delay") for _ in range(3)] == [None, "1", "2"]


def test_what_a_client_says_chooses_nothing(nginx: Nginx) -> None:
    """Each of these headers would, if it were believed, make the request another one."""
    forged = {
        "X-Original-URI": "/free",
        "X-Original-Method": "GET",
        "X-Forwarded-Uri": "/free",
        "X-Forwarded-Method": "GET",
        "X-Forwarded-For": "198.51.100.7",
    }
    assert [ask(nginx.port, "POST", "/orders/7", forged)[0] for _ in range(3)] == [200, 200, 429]


def test_a_path_that_servers_read_differently_does_not_pass(nginx: Nginx) -> None:
    assert ask(nginx.port, "POST", "/orders/%2e%2e/free")[0] == 429


def test_nothing_a_hostile_client_sends_passes_once_its_limit_is_used_up(tmp_path: Path) -> None:
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


def test_requests_pass_when_nobody_decides(tmp_path: Path) -> None:
    with nginx_before(tmp_path, free_port()) as nginx:
        assert ask(nginx.port, "POST", "/orders/7")[::2] == (200, b"from upstream")


def test_a_node_that_protects_itself_is_not_away(tmp_path: Path) -> None:
    """Whoever floods a node must not thereby lift the limits of all."""
    gate = AdmissionController(per_second=1, clock=ManualClock())
    with (
        listening(RULES, gate=gate, forward_auth=ForwardAuth(deny_status=403)) as served,
        nginx_before(tmp_path, served.http) as nginx,
    ):
        answers = [sent(nginx.port, post()) for _ in range(3)]
        assert [answer[9:12] for answer in answers] == [b"503"] * 3
        assert b"retry-after: 1\r\n" in answers[-1].lower()
        assert nginx.app.served == []
