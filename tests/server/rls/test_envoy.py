"""A real Envoy and a real service, with the configurations of the documentation."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.server.hostile import hostile, sent
from tests.server.process.service import Service, service
from tests.server.rls.conftest import PATH as METHOD
from tests.server.rls.envoys import EXAMPLES, IMPATIENT, Envoy, envoy
from tests.server.rls.messages import OK, OVER_LIMIT, answered, encoded
from tests.servers import Reply, redis_server, until

PATH = METHOD.decode()
RULES = str(EXAMPLES / "rules.yaml")
TOKENS = str(EXAMPLES / "tokens")
WITH_HEADERS = "edge\n                      enable_x_ratelimit_headers: DRAFT_VERSION_03"


@pytest.fixture(scope="module")
def rules() -> Iterator[Service]:
    with service("--rules", RULES) as found:
        yield found.started()


@pytest.fixture(scope="module")
def by_rules(rules: Service) -> Iterator[Envoy]:
    with envoy(rules.grpc_port) as found:
        yield found


@pytest.fixture(scope="module")
def by_trees(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Envoy]:
    """With the files of the documentation, where no window ends meanwhile."""
    folder, text = tmp_path_factory.mktemp("trees"), (EXAMPLES / "ratelimit" / "edge.yaml").read_text()
    assert "unit: hour" in text
    (folder / "edge.yaml").write_text(text.replace("unit: hour", "unit: year"))
    options = "--envoy-config", str(folder), "--envoy-metadata", "on"
    with service(*options) as found, envoy(found.started().grpc_port, "drop-in.yaml") as asking:
        yield asking


def order(asking: Envoy, user: str) -> Reply:
    return asking.get("/orders/7?x=1", "POST", x_user=user)


def test_clients_get_their_limits_and_refusals_and_the_access_log_has_the_rules(by_rules: Envoy) -> None:
    first, *others, refused = (order(by_rules, "bob") for _ in range(4))
    assert (first.status, first.body) == (200, b"from upstream")
    assert (first.headers["x-ratelimit-limit"], first.headers["x-ratelimit-remaining"]) == ("3", "2")
    assert '"orders-user";q=3;w=3600' in first.headers["ratelimit-policy"]
    assert [reply.status for reply in (*others, refused)] == [200, 200, 429]
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["retry-after"]) > 0
    assert refused.headers["x-envoy-ratelimited"] == "true"
    problem = json.loads(refused.body)
    assert (problem["status"], problem["violated-policies"]) == (429, ["orders-user"])
    assert order(by_rules, "eve").status == 200
    assert by_rules.get("/orders/7", x_user="bob").status == 200  # another method
    by_rules.logged("POST /orders/7?x=1 429 rule=orders-user state=throttled degraded=-")
    by_rules.logged("GET /orders/7 200 rule=per-ip state=normal degraded=-")


USED_UP = {
    "envoy.yaml": ("--rules", "version: 1\nrules: [{id: all-ip, dimension: ip, limit: 1, window: 365d}]"),
    "drop-in.yaml": (
        "--envoy-config",
        "domain: edge\ndescriptors: [{key: remote_address, rate_limit: {unit: year, requests_per_unit: 1}}]",
    ),
}


@pytest.mark.parametrize("file", USED_UP)
def test_no_hostile_request_passes_beyond_the_limit(tmp_path: Path, file: str) -> None:
    """What Envoy lets through and Headgate cannot read is over the limit, and no address is believed but the peer's."""
    option, limits = USED_UP[file]
    path = tmp_path / "limits.yaml"
    path.write_text(limits)
    with (
        service(option, str(path if option == "--rules" else tmp_path)) as headgate,
        envoy(headgate.started().grpc_port, file) as found,
    ):
        assert found.get().status == 200
        passed = []
        for name, data in hostile():
            found.upstream.served.clear()
            answer = sent(found.port, data)
            if found.upstream.served or b" 200 OK" in answer:
                passed.append((name, found.upstream.served[:], answer[:200]))
        assert passed == []
        assert found.get().status == 429


def test_envoy_can_trust_a_proxy_and_write_headers_of_its_own(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nrules: [{id: all-ip, dimension: ip, limit: 1, window: 365d}]")
    with (
        service("--rules", str(rules)) as headgate,
        envoy(headgate.started().grpc_port, xff_num_trusted_hops="1", domain=WITH_HEADERS) as found,
    ):
        addresses = ["198.51.100.1, 203.0.113.9", "198.51.100.2, 203.0.113.9", "203.0.113.10"]
        replies = [found.get(x_forwarded_for=each) for each in addresses]
    assert [reply.status for reply in replies] == [200, 429, 200]
    assert '1;w=31536000;name="all-ip"' in replies[0].headers["x-ratelimit-limit"]


def test_files_of_envoyproxy_ratelimit_are_kept_with_hits_and_metadata_of_each_descriptor(by_trees: Envoy) -> None:
    replies = [by_trees.get("/search?q=x") for _ in range(4)]
    assert [reply.status for reply in replies] == [200, 200, 200, 429]
    assert [reply.headers["x-ratelimit-remaining"] for reply in replies] == ["4", "2", "0", "0"]
    assert json.loads(replies[3].body)["violated-policies"] == ["searches"]
    assert by_trees.get("/other").status == 200
    by_trees.logged("GET /other 200 domain=edge rule=per-ip owner=- state=normal degraded=-")
    by_trees.logged("GET /search?q=x 200 domain=edge rule=searches owner=search-team state=normal degraded=-")
    by_trees.logged("GET /search?q=x 429 domain=edge rule=searches owner=- state=throttled degraded=-")


def test_beside_the_service_in_force_headgate_counts_alike_and_clients_notice_nothing(tmp_path: Path) -> None:
    text = (EXAMPLES / "ratelimit" / "edge.yaml").read_text()
    (tmp_path / "edge.yaml").write_text(text.replace("unit: hour", "unit: year"))
    files = "--envoy-config", str(tmp_path)
    with (
        service(*files, "--envoy-headers", "off") as in_force,
        service(*files, "--envoy-headers", "off", "--envoy-shadow", "on") as trial,
        envoy(in_force.started().grpc_port, "beside.yaml", str(trial.started().grpc_port)) as found,
    ):
        replies = [found.get("/search?q=x") for _ in range(9)]
        assert [reply.status for reply in replies] == [200] * 6 + [429] * 3
        assert not any("ratelimit" in name for reply in replies[:6] for name in reply.headers)
        for asking, refused in ((in_force, "denied"), (trial, "shadow_denied")):
            metrics = asking.get("/metrics")[1].decode()
            counted = re.findall(r'rule="edge.path_class_search",outcome="(\w+)",domain="edge"\} (\d+)', metrics)
            assert {name: number for name, number in counted if number != "0"} == {"allowed": "6", refused: "3"}
        counts = found.admin("/stats?filter=ratelimit").decode()
        assert "cluster.upstream.ratelimit.headgate.ok: 9" in counts
        assert "cluster.upstream.ratelimit.over_limit: 3" in counts


def test_tokens_that_are_known_after_the_response_are_counted_even_beyond_the_limit() -> None:
    """A first look with 0 hits, and the tokens when the response is there: the request after too many is refused."""
    options = "--envoy-config", TOKENS, "--envoy-count-refused", "on"
    with service(*options) as headgate, envoy(headgate.started().grpc_port, "tokens.yaml") as found:
        assert found.get(x_user="ada").status == 200
        until(lambda: found.get(x_user="ada").status == 429, "what was used is counted")
        assert found.get(x_user="bob").status == 200


def test_any_grpc_client_gets_a_response_or_a_useful_error(rules: Service) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{rules.grpc_port}") as channel:
        ask: Any = channel.unary_unary(PATH)
        for unreadable in (b"\x0a\x09short", encoded("edge", [("user", "u" * 300_000)])):
            assert answered(ask(unreadable, timeout=60)).overall_code == OVER_LIMIT
        assert answered(ask(encoded("edge", [("remote_address", "203.0.113.77")]), timeout=60)).overall_code == OK
        for wrong in (encoded("", [("a", "b")]), encoded("edge")):
            with pytest.raises(grpc.RpcError) as caught:
                ask(wrong, timeout=60)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(("denies", "status"), [("false", 200), ("true", 500)])
def test_without_headgate_envoy_fails_as_configured(denies: str, status: int) -> None:
    with service("--rules", RULES) as headgate, envoy(headgate.started().grpc_port, failure_mode_deny=denies) as found:
        assert order(found, "ada").status == 200
        headgate.signal(signal.SIGKILL)
        headgate.ended()
        reply = order(found, "ada")
        assert reply.status == status
        assert "x-ratelimit-limit" not in reply.headers


def test_requests_are_decided_before_envoy_gives_up_while_the_store_hangs(tmp_path: Path) -> None:
    """With Envoy's own deadline, and failing closed: a late answer would be a 500.

    Any reason but "circuit_open" says that the store, or a new connection to it, was waited for in vain. The store gets
    less time than usual, since a busy machine needs more for all the rest.
    """
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\nrules: [{id: per-ip, dimension: ip, limit: 1000000, window: 1h}]\n")
    with (
        redis_server() as redis,
        service("--rules", str(rules), "--store", f"redis://127.0.0.1:{redis.port}/0?timeout=0.003") as headgate,
        envoy(headgate.started().grpc_port, timeout=IMPATIENT, failure_mode_deny="true") as found,
    ):

        def is_decided() -> bool:
            reply = found.get()
            return reply.status == 200 and "x-ratelimit-degraded" not in reply.headers

        def is_in_time() -> bool:
            reply = found.get()
            reason = reply.headers.get("x-ratelimit-degraded-reason")
            return reply.status == 200 and reason in {"outcome_unknown", "storage_unavailable"}

        until(is_decided, "the store decides", 60)
        redis.send(signal.SIGSTOP)
        until(is_in_time, "an answer in time", 60)
        redis.send(signal.SIGCONT)
        until(is_decided, "the store decides again", 60)
