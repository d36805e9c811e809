"""The commands for a database in docs/deploy.md run in order, on a PostgreSQL with passwords."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_blocks import BLOCKS, run
from tests.postgres import PostgresServer, postgres_server
from tests.servers import redis_server

PASSWORD, TRUSTED = "scram-sha-256", "trust"
SHOWN = [block for block in BLOCKS if block.needs_database]


@pytest.fixture
def postgres(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """A server with the database and the password of the page."""
    programs = [str(folder) for folder in Path("/usr/lib/postgresql").glob("*/bin")]
    monkeypatch.setenv("PATH", os.pathsep.join([os.environ["PATH"], *programs]))
    with postgres_server() as server:
        create = f"createdb -h 127.0.0.1 -p {server.port} -U headgate headgate"
        alter = f"psql -qh 127.0.0.1 -p {server.port} -U headgate headgate -c \"ALTER USER headgate PASSWORD 'secret'\""
        assert os.system(f"{create} && {alter}") == 0  # noqa: S605  both are our own
        access = server.folder / "pg_hba.conf"
        access.write_text(access.read_text().replace(TRUSTED, PASSWORD))
        assert server.process is not None
        server.process.send_signal(signal.SIGHUP)
        yield server


def test_the_commands_for_a_database_run_as_printed(postgres: PostgresServer, tmp_path: Path) -> None:
    assert len(SHOWN) == 4
    with redis_server() as redis:
        for block in SHOWN:
            text = block.text.replace("5432", str(postgres.port))
            output = run(block, text, tmp_path, redis, None)
            for command, answer in {
                "rules apply": "revision 1 in force",
                "keys create": "the key is shown only this once",
                "database status": "version ",
                "audit verify": "intact: ",
            }.items():
                assert (f"headgate {command}" in block.text) == (answer in output), f"{block}: {output}"
        served = (tmp_path / "served").read_text()
    assert f"4, from postgresql://headgate@localhost:{postgres.port}/headgate" in served
    assert "shared by 2 workers" in served
    assert "the first key" not in served
