"""The ratios and verdicts of the part about the service, from given numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.report import Results, render
from benchmarks.service.figures import Cost, Costs, Fleet, fleet
from benchmarks.service.load import Latency
from benchmarks.service.measuring import ServiceResults
from benchmarks.service.report import summary
from benchmarks.service.rows import all_rows
from benchmarks.service.servers import Cores
from benchmarks.timing import Figure


def cost(name: str, what: str, us: float, *, p99: float | None = None, store_us: float = 0.0) -> Cost:
    late = None if p99 is None else Latency(1000, 999, 0.5, p99, 20)
    figure = Figure((us * 1000,) * 3)
    return Cost(name, what, figure, figure, store_us, late)


def costs(*, p99: float = 3, **changed: float) -> Costs:
    """Every row that could be measured, at 20 us of processor time if it is not said otherwise."""
    us = {"floor": 8.0, "uvicorn": 40.0, "grpcio": 300.0, "rls_redis": 30.0, **changed}
    rows = {
        name: cost(row.setup.program, row.what, us.get(name, 20), store_us=6 if row.setup.redis else 0)
        for name, row in all_rows().items()
    }
    return Costs({**rows, "http": replace(rows["http"], latency=Latency(1000, 999, 0.5, p99, 20))})


@pytest.mark.parametrize(
    ("found", "aim", "passed"),
    [
        (costs(http=16), "HTTP check: processor time, x nginx", True),
        (costs(http=16.1), "HTTP check: processor time, x nginx", False),
        (costs(rls=20), "RLS: x less processor time than grpcio", True),
        (costs(rls=20.1), "RLS: x less processor time than grpcio", False),
        (costs(rls=20, rls_redis=40), "RLS on Redis: rate, x RLS on memory", True),
        (costs(rls=20, rls_redis=40.1), "RLS on Redis: rate, x RLS on memory", False),
        (costs(http_denied=22), "HTTP check, memory: denied, x allowed", True),
        (costs(http_denied=22.1), "HTTP check, memory: denied, x allowed", False),
        (costs(grpc_denied=22.1), "gRPC check, memory: denied, x allowed", False),
        (costs(rls_denied_redis=33.1), "RLS by rules, Redis: denied, x allowed", False),
        (costs(both_denied=22.1), "RLS by rules beside a file, memory: denied, x allowed", False),
        (costs(three_denied_redis=22.1), "HTTP check, three rules, Redis: denied, x allowed", False),
        (costs(descriptors=22.1), "RLS by descriptor file, memory, allowed: x by rules", False),
        (costs(descriptors_denied_redis=22.1), "RLS by descriptor file, Redis, denied: x by rules", False),
        (costs(three=32), "three matching rules, memory: x one", True),
        (costs(three=32.1), "three matching rules, memory: x one", False),
        (costs(three_redis=40, shadow_redis=44), "a shadow rule beside them, Redis: x without", True),
        (costs(three_redis=40, shadow_redis=44.1), "a shadow rule beside them, Redis: x without", False),
        (costs(soak=40), "the soak: requests per second of a core", True),
        (costs(soak=40.1), "the soak: requests per second of a core", False),
        (costs(limitador=19), "RLS by descriptor file, memory, allowed: x Limitador", False),
        (costs(ratelimit_denied_redis=60), "RLS by descriptor file, Redis, denied: x ratelimit", True),
        (costs(ratelimit_denied_redis=59), "RLS by descriptor file, Redis, denied: x ratelimit", False),
        (costs(p99=9.9), "HTTP check, memory, allowed: p99 at half of the highest rate, ms", True),
        (costs(p99=10), "HTTP check, memory, allowed: p99 at half of the highest rate, ms", False),
    ],
)
def test_each_aim_is_met_or_missed(found: Costs, aim: str, *, passed: bool) -> None:
    assert {each.what: each.passed for each in found.aims()}[aim] is passed


def test_what_was_not_measured_has_no_verdict() -> None:
    found = costs()
    few = Costs({name: found.rows[name] for name in ("floor", "http", "rls")})
    assert [aim.what for aim in few.aims()] == [
        "HTTP check: processor time, x nginx",
        "HTTP check, memory, allowed: p99 at half of the highest rate, ms",
    ]


def test_a_ratio_is_taken_within_the_rounds() -> None:
    slow_second_round = Figure((8000, 80_000, 8000))
    floor = Cost("nginx", "a constant", slow_second_round, slow_second_round)
    ours = Figure((16_000, 160_000, 16_000))
    assert Cost("headgate", "HTTP check", ours, ours).cpu.over(floor.cpu) == pytest.approx(2)


def test_rates_are_those_of_the_median_round() -> None:
    assert cost("nginx", "a constant", 8).per_second == pytest.approx(125_000)


def test_the_summary_says_what_was_found_and_what_was_asked() -> None:
    told = summary(costs(rls=15, soak=32))
    assert "| HTTP check: processor time, x nginx | 2.50 | at most 2 | **FAIL** |" in told
    assert "| RLS: x less processor time than grpcio | 20.00 | at least 15 | PASS |" in told
    assert "| RLS on Redis: rate, x RLS on memory | 0.50 | at least 0.5 | PASS |" in told
    assert "| the soak: requests per second of a core | 31,250 | at least 25,000 | PASS |" in told
    assert "| HTTP check, memory, allowed: p99 at half of the highest rate, ms | 3.00 | under 10 | PASS |" in told


def results(found: Costs, *missing: str) -> Results:
    service = ServiceResults(found, Figure((1000.0,) * 3), Cores((0,), (1,)), {"nginx": "1.22"}, missing)
    return Results({"cores": "2"}, service=service)


def test_the_report_has_requests_latencies_and_the_way_to_a_million() -> None:
    report = render(results(costs(), "gubernator"))
    assert "the server is bound to core 0; the load, and Redis, to core 1." in report
    assert "| nginx: a constant over HTTP | 8.0 +0 % | 1.00 | 37.5 | 125,000 | - |" in report
    assert "| headgate: RLS by rules, Redis, allowed | 30.0 +0 % | 3.75 | 10.0 | 33,333 | 6.0 |" in report
    assert "| headgate: HTTP check, memory, allowed | 1,000 | 999 | 0.50 | 3.00 | 20.00 |" in report
    assert "| RLS by rules, memory, allowed | 1.00 | 5.0 % |" in report
    assert "| RLS by rules, Redis, allowed | 30.0 | 6.0 | 60 | 12 |" in report
    assert "| RLS by rules, Redis, 2 workers | 20.0" not in report
    assert "| ratelimit: RLS, Redis, denied, its local cache |" in report
    assert "Not on the path, and not measured: gubernator.\n" in report
    assert "## Memory\n" not in report
    assert "against the other" not in report


def test_another_headgate_is_held_against_this_one() -> None:
    found = costs(http=15)
    other = {"other http": replace(found.rows["http"], cpu=Figure((30_000.0,) * 3), name="other headgate")}
    report = render(results(Costs({**found.rows, **other})))
    assert "| HTTP check, memory, allowed | 15.0 | 30.0 | 0.50 |" in report


@pytest.mark.parametrize(
    ("cpu_us", "store_us", "expected"),
    [(20, 0, Fleet(40, 0)), (20, 6, Fleet(40, 12)), (20.1, 6.2, Fleet(41, 13))],
)
def test_cores_are_processor_time_times_rate_at_half_load(cpu_us: float, store_us: float, expected: Fleet) -> None:
    assert fleet(cpu_us, store_us, target=1_000_000, utilisation=0.5) == expected
