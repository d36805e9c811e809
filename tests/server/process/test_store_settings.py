"""The read cache and the circuit breaker of a service are as its settings say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.process.service import Service, service
from tests.servers import redis_server

RULES = "version: 1\nrules: [{id: r, limit: 1, window: 365d, algorithm: fixed_window, on_store_failure: allow}]\n"


def repeated(found: Service) -> bool:
    lines = found.get("/metrics")[1].decode().splitlines()
    return any(line.startswith("headgate_store_cached_total{") and not line.endswith(" 0.0") for line in lines)


@pytest.mark.parametrize(
    ("options", "is_cached"), [(("--cache-denials", "60"), True), (("--cache-denials", "0"), False)]
)
def test_refusals_are_repeated_only_if_they_may_be(tmp_path: Path, options: tuple[str, ...], is_cached: bool) -> None:  # noqa: FBT001  a table
    (tmp_path / "rules.yaml").write_text(RULES)
    with redis_server() as redis:
        given = "--rules", str(tmp_path / "rules.yaml"), "--store", redis.address
        with service(*given, "--cache-peeks", "0", *options) as found:
            found.started()
            assert [found.check("ada")["allowed"] for _ in range(5)] == [True, *[False] * 4]
            assert repeated(found) == is_cached


@pytest.mark.parametrize(("failures", "opens"), [("2", 1), ("1000000", 0)])
def test_the_circuit_opens_after_so_many_failures(tmp_path: Path, failures: str, opens: int) -> None:
    (tmp_path / "rules.yaml").write_text(RULES)
    with redis_server() as redis:
        given = "--rules", str(tmp_path / "rules.yaml"), "--store", redis.address
        with service(*given, "--breaker-failures", failures, "--breaker-pause", "60") as found:
            found.started()
            redis.stop()
            reasons = [found.check("ada")["reason"] for _ in range(8)]
    assert ("circuit_open" in reasons[2:]) == bool(opens)
