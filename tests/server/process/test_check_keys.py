"""Keys of the role check, made in the admin plane, open the decision plane of all workers; and nothing else does."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from signal import SIGTERM
from typing import Any

import grpc
import pytest

from headgate.server.rls import SHOULD_RATE_LIMIT
from headgate.web.apikey import digest
from tests.postgres import PostgresServer
from tests.server.process.service import SECONDS, Service, service
from tests.server.process.test_shedding import called
from tests.servers import redis_server, until

ADMIN = "hg_an-operators-own-key-of-some-length"
RPC = b"/headgate.v1.RateLimiter/GetRemainingQuota"


class Keys:
    """A service with keys of both kinds: those of its database, and those of a file."""

    def __init__(self, running: Service) -> None:
        self.service = running

    def admin(self, method: str, path: str, body: object = None, key: str = ADMIN) -> tuple[int, Any]:
        return self.service.admin(key, method, path, body)

    def made(self, **body: object) -> dict[str, str]:
        status, answer = self.admin("POST", "/keys", {"name": "edge", "role": "check", **body})
        assert status == 201, answer
        found: dict[str, str] = answer
        return found

    def opens(self, key: str) -> bool:
        """Whether a key opens the decision plane, by whichever worker."""
        return "allowed" in self.service.check("u1", authorization=f"Bearer {key}")

    def comes_to(self, key: str, *, opens: bool) -> None:
        """Wait until a key opens the decision plane at all workers, or at none of them."""
        until(lambda: {self.opens(key) for _ in range(20)} == {opens}, f"opens: {opens}", SECONDS)


@pytest.fixture(scope="module")
def keys(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keys]:
    """A service of two workers on PostgreSQL, with a file of callers as well."""
    folder = tmp_path_factory.mktemp("keys")
    (folder / "callers").write_text(f"of-the-file {digest('k' * 40)}\n")
    with redis_server() as redis:
        options = ("--database", postgres.database(), "--data-dir", str(folder), "--store", redis.address)
        more = ("--workers", "2", "--caller-keys", str(folder / "callers"))
        with service(*options, *more, environment={"HEADGATE_ADMIN_KEY": ADMIN}) as found:
            yield Keys(found.started())


def test_a_key_opens_all_workers_until_it_is_revoked(keys: Keys) -> None:
    assert keys.service.check("u1")["status"] == 401
    made = keys.made()
    keys.comes_to(made["key"], opens=True)
    assert keys.admin("DELETE", f"/keys/{made['id']}")[0] == 204
    keys.comes_to(made["key"], opens=False)
    assert keys.opens("k" * 40)  # that of the file is still good


def test_a_key_that_expires_is_refused_then_also_on_a_connection_that_it_opened(keys: Keys) -> None:
    made = keys.made()
    keys.comes_to(made["key"], opens=True)
    connection = HTTPConnection("127.0.0.1", keys.service.http_port, timeout=SECONDS)

    def status() -> int:
        connection.request("GET", "/api/v1/rate-limit/rules", headers={"x-api-key": made["key"]})
        answer = connection.getresponse()
        answer.read()
        return answer.status

    assert status() == 200
    replaced, another = keys.admin("POST", f"/keys/{made['id']}/rotate", {"overlap": 2})
    assert replaced == 201
    keys.comes_to(another["key"], opens=True)
    until(lambda: status() == 401, "it expires", SECONDS)
    connection.close()
    keys.comes_to(made["key"], opens=False)


def test_over_grpc_and_for_envoy_it_opens_as_well(keys: Keys) -> None:
    made = keys.made()
    keys.comes_to(made["key"], opens=True)
    with grpc.insecure_channel(f"127.0.0.1:{keys.service.grpc_port}") as channel:
        for method in (SHOULD_RATE_LIMIT, RPC):
            refused = called(channel, method)
            assert refused is not None
            assert refused.code() is grpc.StatusCode.UNAUTHENTICATED
            answer = called(channel, method, ("authorization", f"Bearer {made['key']}"))
            assert answer is None or answer.code() is not grpc.StatusCode.UNAUTHENTICATED


def test_no_other_key_opens_it_and_it_opens_nothing_else(keys: Keys) -> None:
    made = keys.made()
    keys.comes_to(made["key"], opens=True)
    status, problem = keys.admin("GET", "/rules", key=made["key"])
    assert (status, problem["detail"]) == (403, "this key is for the decision plane; it is not accepted here")
    assert keys.admin("GET", "/rules", key="k" * 40)[0] == 401  # a caller's, of the file
    for role in ("viewer", "editor", "admin"):
        other = keys.made(role=role)
        assert keys.admin("GET", "/rules", key=other["key"])[0] == 200
        assert not keys.opens(other["key"])
    assert not keys.opens(ADMIN)


def test_while_the_database_is_away_keys_stay_as_they_were(keys: Keys, postgres: PostgresServer) -> None:
    made, ended = keys.made(), keys.made()
    keys.comes_to(ended["key"], opens=True)
    assert keys.admin("DELETE", f"/keys/{ended['id']}")[0] == 204
    keys.comes_to(ended["key"], opens=False)
    postgres.stop()
    try:
        keys.comes_to(made["key"], opens=True)
        assert not keys.opens(ended["key"])
    finally:
        postgres.start()


def test_without_a_file_only_keys_of_the_database_open(tmp_path: Path) -> None:
    environment = {"HEADGATE_RULES": "", "HEADGATE_ADMIN_KEY": ADMIN}
    with service("--caller-keys", "database", environment=environment, cwd=tmp_path) as found:
        keys = Keys(found.started())
        assert found.check("u1")["status"] == 401
        keys.comes_to(keys.made()["key"], opens=True)
        made = keys.made()
        keys.comes_to(made["key"], opens=True)
        assert keys.admin("DELETE", f"/keys/{made['id']}")[0] == 204
        keys.comes_to(made["key"], opens=False)


def test_the_last_use_of_a_key_is_noted(tmp_path: Path) -> None:
    """At the latest when the service ends; and not of one that nobody has used."""
    environment = {"HEADGATE_RULES": "", "HEADGATE_ADMIN_KEY": ADMIN}
    with service("--caller-keys", "database", environment=environment, cwd=tmp_path) as found:
        keys = Keys(found.started())
        used, unused = keys.made(), keys.made()
        keys.comes_to(used["key"], opens=True)
        named = f'headgate_caller_last_request_timestamp_seconds{{caller="{used["id"]}"}}'
        until(lambda: named in found.get("/metrics")[1].decode(), "it is shown", SECONDS)
        found.signal(SIGTERM)
        assert found.ended() == 0
    with closing(sqlite3.connect(tmp_path / "headgate.db")) as database:
        noted = dict(database.execute("SELECT id, last_used_at FROM api_keys"))
        created = dict(database.execute("SELECT id, created_at FROM api_keys"))
    assert noted[used["id"]] > created[used["id"]]
    assert noted[unused["id"]] is None


def test_without_a_database_there_are_no_keys_of_one(tmp_path: Path) -> None:
    with service("--caller-keys", "database", cwd=tmp_path) as found:
        assert found.ended() == 2
        assert "--caller-keys: there is no database" in found.complained
