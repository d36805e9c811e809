"""Responses to requests that schemathesis derives from the OpenAPI document are as documented, on both databases."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from headgate.admin.api import application
from headgate.admin.audit import Actor
from headgate.admin.catalog import Catalog
from headgate.admin.database import Database
from headgate.admin.keys import AdminKeys
from headgate.admin.service import AdminService
from headgate.engine import AsyncEngine
from headgate.policy.loading import from_data
from tests.admin.planes import DOCUMENT
from tests.servers import until

KEY = "the-operator-s-own-key"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
)


@contextmanager
def served(url: str) -> Iterator[str]:
    """Serve an admin plane, whose limits nobody reaches, in a thread; yields its address."""
    listening = socket.create_server(("127.0.0.1", 0))
    servers: list[uvicorn.Server] = []

    async def main() -> None:
        database = await Database.open(url)
        catalog, engine = Catalog(database), AsyncEngine(from_data(DOCUMENT))
        await catalog.apply(DOCUMENT, Actor("start-up"))
        admin = AdminService(catalog, engine, AdminKeys(database, KEY), database=database)
        app = application(admin, reads="1000000/day", writes="1000000/day")
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, access_log=False))
        servers.append(server)
        await server.serve([listening])
        await engine.close()
        await database.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        until(lambda: bool(servers) and servers[0].started, "the admin plane")
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        servers[0].should_exit = True
        thread.join()


def ran(address: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run schemathesis, always in the same way."""
    fixed = (
        "--generation-deterministic",
        "--no-shrink",
        "--continue-on-failure",
        "--request-timeout=120",
        "--suppress-health-check=too_slow",
    )
    command = [
        str(Path(sys.executable).with_name("st")),
        *("run", f"{address}/openapi.json", f"--url={address}", f"--checks={','.join(CHECKS)}", "--no-color"),
        *(f"--header=Authorization:Bearer {KEY}", "--warnings=off", *fixed, *options),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=folder)


def test_responses_are_as_documented(url: str, tmp_path: Path) -> None:
    """Examples and random requests on PostgreSQL; the corners of parameters of queries on SQLite."""
    with served(url) as address:
        options = ["--phases=examples,fuzzing"]
        if url.startswith("sqlite"):
            options = ["--phases=coverage", "--include-method=GET"]
        done = ran(address, tmp_path, "--max-examples=3", *options)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
