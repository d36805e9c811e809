"""The same applications with a service that decides: they differ in one setting, `engine`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import Depends, FastAPI
from flask import Flask

from headgate import StoreError, UnknownRule
from headgate.integrations.fastapi import RateLimitMiddleware, limit
from headgate.integrations.flask import RateLimits
from headgate.sdk import AsyncClient, Client
from tests.integrations.clients import TestClient
from tests.server.process.service import Service, service
from tests.servers import until

RULES = """
version: 1
rules:
  - {id: searches, limit: 2, window: 1h, dimension: user, endpoint: /search}
  - {id: exports, limit: 1, window: 1h, dimension: user, endpoint: /nowhere}
deny: [{user: mallory}]
"""


@pytest.fixture(scope="module")
def decider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    rules = Path(tmp_path_factory.mktemp("remote")) / "rules.yaml"
    rules.write_text(RULES)
    with service("--rules", str(rules)) as found:
        yield found.started()


def test_flask_with_a_service(decider: Service) -> None:
    app = Flask(__name__)
    with Client(f"http://127.0.0.1:{decider.http_port}", timeout=20) as client:
        limits = RateLimits(app, engine=client, key=lambda request: request.headers["x-user"])
        app.get("/search", endpoint="search")(lambda: "found")
        app.get("/export", endpoint="export")(limits.limit(rule="exports", refund_on_error=True)(lambda: "exported"))

        def statuses(user: str, *paths: str) -> list[int]:
            return [app.test_client().get(path, headers={"x-user": user}).status_code for path in paths]

        assert statuses("ada", "/search", "/search", "/search", "/export", "/export") == [200, 200, 429, 200, 429]
        assert statuses("mallory", "/search") == [403]
        with app.app_context():
            limits.reset("user:ada")
        answer = app.test_client().get("/search", headers={"x-user": "ada"})
        assert (answer.status_code, answer.headers["RateLimit"]) == (200, '"searches";r=1;t=1800')
        until(lambda: _knows(client), "the client has the rules")
        with pytest.raises(UnknownRule, match="log-ins"):
            limits.limit(rule="log-ins")


def _knows(client: Client) -> bool:
    try:
        return "exports" in client.policy.rules
    except StoreError:  # not yet
        return False


def test_fastapi_with_a_service_and_with_one_that_is_down(decider: Service) -> None:
    def application(address: str) -> FastAPI:
        client = AsyncClient(address, timeout=20, without_rules="deny")

        @asynccontextmanager
        async def lifespan(_: FastAPI) -> AsyncIterator[None]:
            async with client:
                yield

        app = FastAPI(lifespan=lifespan)
        app.add_middleware(RateLimitMiddleware, engine=client, key=lambda request: request.headers["x-user"])
        app.get("/search")(lambda: "found")
        app.get("/export", dependencies=[Depends(limit(rule="exports"))])(lambda: "exported")
        return app

    with TestClient(application(f"http://127.0.0.1:{decider.http_port}"), headers={"x-user": "bob"}) as client:
        paths = ("/search", "/search", "/search", "/export", "/export")
        assert [client.get(path).status_code for path in paths] == [200, 200, 429, 200, 429]
    with TestClient(application("http://127.0.0.1:1"), headers={"x-user": "bob"}) as client:
        answer = client.get("/search")
        assert (answer.status_code, answer.json()["status"]) == (503, 503)
