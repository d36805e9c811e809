"""A gateway that decides itself knows the consumers of a database, also while that is unavailable."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.cli.__main__ import main
from tests.gateway.gateways import SECONDS, Gateway, minimal, upstream
from tests.postgres import postgres_server
from tests.servers import redis_server, until

RULES = {
    "version": 1,
    "rules": [{"id": "per-user", "dimension": "user", "limit": 1, "window": "1h"}],
    "tiers": {"premium": {"per-user": {"limit": 100_000}}},
    "users": {"acme": {"tier": "premium"}},
}


def test_keys_are_issued_and_revoked_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def made(*words: str) -> str:
        assert main(["consumers", *words, "--database", url]) == 0
        return capsys.readouterr().out.splitlines()[-1]

    def comes_to(key: str, status: int) -> None:
        until(lambda: {running.get("/a", x_api_key=key).status for _ in range(8)} == {status}, f"{status}", SECONDS)

    with postgres_server() as postgres, redis_server() as redis, upstream("orders") as orders:
        url = postgres.database()
        file = {**minimal(orders.port), "rules": RULES, "decisions": {"workers": 2, "timeout": "10s"}}
        file["store"] = redis.address
        file["identity"] = {"api_keys": {"consumers": url}}
        running = Gateway(tmp_path, file)
        try:
            running.started()
            acme, small = made("create", "acme"), made("create", "small", "--tenant", "t")
            comes_to(acme, 200)
            until(lambda: running.get("/a", x_api_key=small).status == 429, "its one request is used", SECONDS)
            assert running.get("/a", x_api_key=acme).json["headers"]["x-headgate-user"] == "acme"
            newer = made("rotate", "acme", "--overlap", "3600")
            comes_to(newer, 200)
            comes_to(acme, 200)
            assert made("revoke", "small") == "all keys of small are revoked"
            comes_to(small, 401)
            postgres.stop()
            running.stop()
            running = Gateway(tmp_path, file)
            running.started()
            comes_to(newer, 200)
            comes_to(small, 401)
            postgres.start()
            made("rotate", "acme")
            comes_to(newer, 401)
        finally:
            running.stop()


def test_tiers_are_set_in_the_rules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    assert main(["consumers", "create", "acme", "--tier", "premium", "--database", url]) == 2
    assert "--tier belongs to the rules" in capsys.readouterr().err
