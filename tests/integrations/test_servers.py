"""Under real servers, with several processes and threads: limits on Redis are exact."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.servers import _LAUNCHER, RedisServer, fetched, free_port, redis_server, until

ROOT = Path(__file__).parents[2]
HERE = "tests.integrations"
LIMIT, ASKED, SECONDS = 20, 60, 120
GUNICORN = [sys.executable, "-m", "gunicorn", "--bind", "127.0.0.1:{port}", "--no-control-socket"]
UVICORN = [sys.executable, "-m", "uvicorn", "--port", "{port}", "--log-level", "warning"]
RUNSERVER = f"""
from {HERE} import site
from django.core.management import call_command
call_command("runserver", "127.0.0.1:{{port}}", use_reloader=False)
"""
SERVERS = {
    "uvicorn": [*UVICORN, "--workers", "2", f"{HERE}.applications:fastapi_app"],
    "gunicorn-threads": [*GUNICORN, "--workers=2", "--threads=4", "--preload", f"{HERE}.flask_application:flask_app"],
    "django-gunicorn": [*GUNICORN, "--workers", "2", f"{HERE}.site:application"],
    "django-uvicorn": [*UVICORN, "--workers", "2", "--lifespan", "off", f"{HERE}.site:asgi"],
    "django-runserver": [sys.executable, "-c", RUNSERVER],
}


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@contextmanager
def serving(name: str, redis: RedisServer, folder: Path) -> Iterator[int]:
    """Start a server; returns its port when it answers."""
    port = free_port()
    settings = {"limits": f"{LIMIT}/hour", "store": redis.address}
    if name.startswith("django"):
        settings["key"] = f"{HERE}.test_servers.by_header"
    environment = {**os.environ, "HEADGATE_SITE": json.dumps(settings), "PYTHONPATH": str(ROOT)}
    command = ["setpriv", "--pdeathsig", "TERM", *[part.replace("{port}", str(port)) for part in SERVERS[name]]]
    with (folder / "log").open("wb") as log:
        process = _LAUNCHER.submit(
            subprocess.Popen, command, cwd=ROOT, env=environment, stdout=log, stderr=log
        ).result()
    try:
        until(lambda: answers(port) or process.poll() is not None, (folder / "log").read_text(), SECONDS)
        assert process.poll() is None, (folder / "log").read_text()
        yield port
    finally:
        process.terminate()
        process.wait(SECONDS)


def by_header(request: object) -> str:
    """The key, for sites of Django."""
    headers: dict[str, str] = getattr(request, "headers", {})
    return headers["x-key"]


def answers(port: int) -> bool:
    try:
        return get(port, "warm")[0] in {200, 429}
    except OSError:
        return False


def get(port: int, key: str) -> tuple[int, str]:
    status, headers, body = fetched(port, x_key=key, connection="close")
    assert headers["ratelimit-policy"].startswith(f'"default";q={LIMIT};w=3600')
    return status, body.decode()


@pytest.mark.parametrize("name", SERVERS)
def test_all_workers_together_let_exactly_as_many_pass(name: str, redis: RedisServer, tmp_path: Path) -> None:
    wants_several = name in {"uvicorn", "gunicorn-threads"}
    processes, turns = set[str](), count()
    with serving(name, redis, tmp_path) as port, ThreadPoolExecutor(12) as pool:

        def several_have_answered() -> bool:
            key = f"{name}-{next(turns)}"
            seen = list(pool.map(lambda _: get(port, key), range(ASKED)))
            assert sorted(status for status, _ in seen) == [200] * LIMIT + [429] * (ASKED - LIMIT)
            processes.update(body for status, body in seen if status == 200)
            return len(processes) > 1 or not wants_several

        until(several_have_answered, "more than one of its processes answers", SECONDS)
        if name == "uvicorn":
            check_connections(port)


def check_connections(port: int) -> None:
    """Check WebSocket connections, streams, and clients that disconnect from them."""
    address, headers = f"ws://127.0.0.1:{port}/socket", {"X-Key": "socket"}
    with connect(address, additional_headers=headers, open_timeout=SECONDS) as connection:
        connection.send("hello")
        assert connection.recv() == "hello"
        assert connection.response is not None
        assert connection.response.headers["X-RateLimit-Remaining"] == str(LIMIT - 1)
    for _ in range(LIMIT - 1):
        assert get(port, "socket")[0] == 200
    with pytest.raises(InvalidStatus) as refused, connect(address, additional_headers=headers):
        pass
    assert refused.value.response.status_code == 429
    assert json.loads(refused.value.response.body)["status"] == 429
    for _ in range(LIMIT):
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as client:
            client.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\nX-Key: gone\r\n\r\n")
            assert b"X-RateLimit-Remaining".lower() in client.recv(65_536).lower()
    assert get(port, "gone")[0] == 429  # clients that disconnect are counted
    assert get(port, "still there")[0] == 200


MISTAKEN = {
    "FastAPI": """
from fastapi import FastAPI
from headgate.integrations.fastapi import RateLimitMiddleware
app = FastAPI()
app.add_middleware(RateLimitMiddleware, limits="3/minuet")
""",
    "Starlette": """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from headgate.integrations.asgi import RateLimitMiddleware
limits = Middleware(RateLimitMiddleware, limits="3/minuet")
app = Starlette(middleware=[limits, Middleware(GZipMiddleware)])
""",
}
"""Applications whose middleware is created, with an error in its settings, when they start."""


@pytest.mark.parametrize("framework", MISTAKEN)
def test_uvicorn_does_not_start_an_application_whose_limits_cannot_work(framework: str, tmp_path: Path) -> None:
    """It takes an exception alone for an application that has no lifespan, and would serve it."""
    (tmp_path / "mistaken.py").write_text(MISTAKEN[framework])
    command = [sys.executable, "-m", "uvicorn", "--port", "0", "--app-dir", str(tmp_path), "mistaken:app"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode != 0
    assert "bad quota '3/minuet'" in ended.stderr
