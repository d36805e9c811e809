"""A real nginx, with the configuration of the documentation, asks before it passes requests on."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headgate.server.api.forward_auth import ForwardAuth
from tests.server.listening import listening
from tests.servers import _LAUNCHER, free_port, until

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "proxies" / "nginx.conf"
RULES = """
version: 1
rules:
  - {id: orders-ip, dimension: ip, endpoint: /orders/**, methods: [POST], limit: 2, window: 1m, algorithm: fixed_window}
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


class App(BaseHTTPRequestHandler):
    """What nginx protects."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("Content-Length", "6")
        self.end_headers()
        self.wfile.write(b"served")

    do_POST = do_GET  # noqa: N815  the names that http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as it is called there
        pass


@contextmanager
def app() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), App) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


def started(folder: Path, headgate: int, behind: int) -> tuple[subprocess.Popen[bytes], int]:
    program = shutil.which("nginx")
    assert program, "nginx is needed: apt-get install nginx-light"
    (folder / "temp").mkdir()
    for _ in range(20):
        port = free_port()
        server = EXAMPLE.read_text().replace("127.0.0.1:8080", f"127.0.0.1:{headgate}")
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


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[int]:
    with app() as behind, listening(RULES, forward_auth=ForwardAuth(deny_status=403)) as served:
        process, port = started(tmp_path, served.http, behind)
        try:
            yield port
        finally:
            process.terminate()
            process.wait(30)


def test_requests_pass_until_their_limit_and_are_told_when_to_come_back(nginx: int) -> None:
    status, headers, body = ask(nginx, "POST", "/orders/7?a=b")
    assert (status, body) == (200, b"served")
    assert (headers["x-ratelimit-limit"], headers["x-ratelimit-remaining"]) == ("2", "1")
    assert ask(nginx, "POST", "/orders/8")[0] == 200
    status, headers, _ = ask(nginx, "POST", "/orders/9")
    assert (status, headers["retry-after"], headers["x-ratelimit-remaining"]) == (429, "20", "0")
    assert ask(nginx, "GET", "/orders/9")[0] == 200


def test_what_a_client_says_chooses_nothing(nginx: int) -> None:
    """Each of these headers would, if it were believed, make the request another one."""
    forged = {
        "X-Original-URI": "/free",
        "X-Original-Method": "GET",
        "X-Forwarded-Uri": "/free",
        "X-Forwarded-Method": "GET",
        "X-Forwarded-For": "198.51.100.7",
    }
    assert [ask(nginx, "POST", "/orders/7", forged)[0] for _ in range(3)] == [200, 200, 429]


def test_a_path_that_servers_read_differently_does_not_pass(nginx: int) -> None:
    assert ask(nginx, "POST", "/orders/%2e%2e/free")[0] == 429


def test_requests_pass_when_nobody_decides(tmp_path: Path) -> None:
    with app() as behind:
        process, port = started(tmp_path, free_port(), behind)
        try:
            assert ask(port, "POST", "/orders/7")[::2] == (200, b"served")
        finally:
            process.terminate()
            process.wait(30)
