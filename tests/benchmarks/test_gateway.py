"""What Envoy is told in each case of the gateway's benchmark, and the verdict on what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.gateway.cases import Case, cases, envoy, file, path
from benchmarks.gateway.measuring import Row
from benchmarks.gateway.report import in_short, summary
from benchmarks.timing import Figure
from headgate.gateway.envoy import validate
from headgate.gateway.loading import load_gateway
from headgate.gateway.routing import AUTHORIZATION, RATE_LIMIT, ROUTER

CASES = {case.name: case for case in cases()}


def row(case: Case, envoy_us: float, decides_us: float) -> Row:
    """Return a row of one round."""
    envoy_time, decides = Figure((1000 * envoy_us,)), Figure((1000 * decides_us,))
    return Row(case, Figure((1e6,)), envoy_time, decides, 0.0)


@pytest.mark.parametrize("limited", [False, True])
def test_envoy_asks_nobody_or_a_rate_limit_service(tmp_path: Path, *, limited: bool) -> None:
    settings = tmp_path / "gateway.yaml"
    settings.write_text(yaml.safe_dump(file(CASES["rls"], 8000, 9001, 8081)))
    whole = envoy(load_gateway(settings), str(tmp_path), limited=limited)
    (listener,) = whole["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    names = [each["name"] for each in manager["http_filters"]]
    assert (AUTHORIZATION in names, RATE_LIMIT in names, names[-1]) == (False, limited, ROUTER)
    assert validate(whole, tmp_path) == ""


def test_the_command_has_the_keys_of_those_who_ask(tmp_path: Path) -> None:
    settings = tmp_path / "gateway.yaml"
    settings.write_text(yaml.safe_dump(file(CASES["authz_redis"], 8000, 9001, store="redis://127.0.0.1:6379/1")))
    gateway = load_gateway(settings)
    assert gateway.api_keys
    assert gateway.api_keys["query"] in path(0)
    assert gateway.decisions.store.startswith("redis://127.0.0.1:6379/1")


@pytest.mark.parametrize(
    ("ours", "told"), [(40.0, "| 0.75 | at most 1 | PASS |"), (110.0, "| 1.10 | at most 1 | **FAIL** |")]
)
def test_the_verdict_is_on_envoy_and_what_decides_together(ours: float, told: str) -> None:
    rows = {"rls_redis": row(CASES["rls_redis"], 110, ours), "ratelimit_redis": row(CASES["ratelimit_redis"], 110, 90)}
    rows["none"] = row(CASES["none"], 50, 0)
    assert told in summary(rows)
    ((_, cost, ratio),) = in_short(rows)
    assert (cost, ratio) == (
        f"{110 + ours:.0f} us of Envoy and Headgate",
        f"{(110 + ours) / 50:.2f} times Envoy without a check",
    )


def test_without_the_peer_there_is_no_verdict() -> None:
    assert "| n/a |" in summary({"none": row(CASES["none"], 50, 0), "rls_redis": row(CASES["rls_redis"], 110, 40)})
    assert "| n/a |" in summary({"none": row(CASES["none"], 50, 0)})
