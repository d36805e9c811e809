"""A node that starts: what takes time is done before the first request, and a store that is away is not waited for."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.observe.readings import value
from tests.server.process.service import SECONDS, service
from tests.servers import free_port, until

RULES = "version: 1\nrules:\n  - {id: orders, dimension: user, limit: 100, window: 1h}\n"
TOLD = """
import gc, sys
from headgate.cli import greeting
from headgate.cli.__main__ import main
from headgate.server.node import Node
from headgate.server.wire.listener import Listener


def told(owner, name):
    original = getattr(owner, name)

    def telling(*args, **options):
        print("did", name, file=sys.stderr, flush=True)
        return original(*args, **options)

    setattr(owner, name, telling)


told(gc, "collect")
told(greeting, "sample_request")
for name in ("_meet_stores", "_http", "_grpc"):
    told(Node, name)
told(Listener, "serve_http")
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def rules(tmp_path: Path) -> str:
    file = tmp_path / "rules.yaml"
    file.write_text(RULES)
    return str(file)


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


def test_what_takes_time_is_done_before_requests_are_accepted(rules: str) -> None:
    with service("--rules", rules, program=("-c", TOLD)) as found:
        found.started()
        assert found.check("u1")["allowed"]
        did = [line.removeprefix("did ") for line in found.complained.splitlines() if line.startswith("did ")]
    assert did[-1] == "serve_http"
    assert {*did} == {"collect", "sample_request", "_meet_stores", "_http", "_grpc", "serve_http"}


def test_a_store_that_says_nothing_is_taken_to_be_away_before_the_first_request(rules: str, silent: str) -> None:
    with service("--rules", rules, "--store", silent) as found:
        found.started()
        until(lambda: b"headgate_store_circuit_state" in found.get("/metrics")[1], "the circuit is shown", SECONDS)
        shown = found.get("/metrics")[1]
        assert value(shown, "headgate_store_circuit_openings_total") == 1
        assert value(shown, "headgate_store_calls_total") == 0
        answers = [found.check("u1") for _ in range(5)]
        assert all(answer["allowed"] and answer["degraded"] for answer in answers)
        assert "the store is unavailable" in found.complained
        assert "no answer in 0.25 s" in found.complained


def test_a_store_that_is_not_there_does_not_keep_a_node_from_answering(rules: str) -> None:
    with service("--rules", rules, "--store", f"redis://127.0.0.1:{free_port()}/0") as found:
        found.started()
        answer = found.check("u1")
        assert answer["allowed"]
        assert answer["degraded"]
        assert "the store is unavailable" in found.complained
