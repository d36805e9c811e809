"""Rules, caller keys and certificates change without a restart; invalid ones change nothing."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from headgate.cli.__main__ import main
from headgate.web.apikey import digest
from tests.observe.readings import value
from tests.server.process.certificates import Authority
from tests.server.process.service import SECONDS, Service, service, written
from tests.servers import RedisServer, until

RULES = "version: 1\nrules:\n  - {{id: orders, dimension: user, limit: {}, window: 1h}}\n"


def complaining(found: Service) -> list[str]:
    lines = [line for line in found.complained.splitlines() if "the previous rules stay in force" in line]
    return sorted(line.rpartition(" ")[2] for line in lines)


def test_changed_rules_are_in_force_in_all_workers_and_wrong_ones_are_not(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    rules = tmp_path / "rules.yaml"
    written(rules, RULES.format(100))
    with service("--workers", "2", "--store", own_redis.address, "--rules", str(rules)) as found:
        found.started()
        assert found.check("u1")["limit"] == 100
        written(rules, RULES.format(200))
        until(lambda: all(found.check("u1")["limit"] == 200 for _ in range(20)), "all have the new rules", SECONDS)
        written(rules, "version: 1\nrules: [{id: x}]\n")
        until(lambda: complaining(found) == ["worker=0", "worker=1"], "both log it, with their numbers", SECONDS)
        assert all(found.check("u1")["limit"] == 200 for _ in range(20))
        written(rules, RULES.format(300))
        found.signal(signal.SIGHUP)
        until(lambda: all(found.check("u1")["limit"] == 300 for _ in range(20)), "all have the new rules", SECONDS)


def test_caller_keys_are_read_again_automatically_and_on_sighup(tmp_path: Path) -> None:
    keys = tmp_path / "callers"
    written(keys, f"edge {digest('first')}\n")
    with service("--caller-keys", str(keys)) as found:
        found.started()
        assert found.check("u1")["status"] == 401
        assert found.check("u1", authorization="Bearer first")["allowed"]
        assert found.get("/healthz")[0] == found.get("/readyz")[0] == found.get("/metrics")[0] == 200
        before = "first"
        for key in ("second", "third"):
            written(keys, f"edge {digest(key)}\n")
            if key == "third":
                found.signal(signal.SIGHUP)
            until(lambda: "allowed" in found.check("u1", **{"x-api-key": key}), "the new key counts", SECONDS)  # noqa: B023
            assert found.check("u1", authorization=f"Bearer {before}")["status"] == 401
            before = key
        written(keys, "edge\n")
        until(lambda: "the previous caller keys stay in force" in found.complained, "it logs the error", SECONDS)
        assert found.check("u1", authorization="Bearer third")["allowed"]

        def shown(name: str, config: str = "caller_keys") -> float:
            return value(found.get("/metrics")[1], f"headgate_config_{name}", config=config)

        def counts_loads() -> bool:
            logged = found.complained.count("of the caller keys is in force")  # once more if the signal comes late
            return logged > 0 and shown("loads_total") == 1 + logged

        until(lambda: shown("broken") == 1, "it is shown", SECONDS)
        until(counts_loads, "the good ones are counted, and no other", SECONDS)
        assert shown("broken", "rules") == 0


def shown(port: int, authority: Path) -> bytes:
    context = ssl.create_default_context(cafile=str(authority))
    address = ("127.0.0.1", port)
    with socket.create_connection(address) as plain, context.wrap_socket(plain, server_hostname="localhost") as secure:
        found = secure.getpeercert(binary_form=True)
        assert found
        return found


def test_both_ports_speak_tls_and_a_new_certificate_needs_no_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    cert, key = authority.signed("server")
    with service("--tls-cert", str(cert), "--tls-key", str(key)) as found:
        found.started()
        assert json.loads(subprocess.run(found.suggested(), capture_output=True, check=True).stdout)["allowed"]
        for is_signalled in (False, True):
            before = [shown(port, authority.path) for port in (found.http_port, found.grpc_port)]
            authority.signed("server")
            if is_signalled:
                found.signal(signal.SIGHUP)
            for old, port in zip(before, (found.http_port, found.grpc_port), strict=True):
                until(lambda: shown(port, authority.path) != old, "there is a new one", SECONDS)  # noqa: B023
        cert.write_text("no certificate")
        until(lambda: "the previous certificates stay in force" in found.complained, "it logs the error", SECONDS)
        assert shown(found.http_port, authority.path)


def test_a_certificate_and_a_key_that_do_not_match_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cert, key = Authority(tmp_path).signed("server")
    another = Authority(tmp_path, "another").signed("other")[1]
    for files, message in (
        ((key, cert), "they are swapped"),
        ((key, key), "they must be PEM files"),
        ((cert, another), "the key belongs to another certificate"),
    ):
        assert main(["serve", "--check", "--tls-cert", str(files[0]), "--tls-key", str(files[1])]) == 2
        assert message in capsys.readouterr().err
