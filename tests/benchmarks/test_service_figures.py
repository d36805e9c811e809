"""The ratios and verdicts of the part about the service, from given numbers."""

from __future__ import annotations

import pytest

from benchmarks.report import Results, render
from benchmarks.service.figures import Cost, Costs
from benchmarks.service.load import Latency
from benchmarks.service.report import summary
from benchmarks.service.running import ServiceResults
from benchmarks.service.servers import Cores
from benchmarks.service.sizing import Fleet, fleet
from benchmarks.timing import Figure


def cost(name: str, what: str, us: float, *, p99: float | None = None, store_us: float = 0.0) -> Cost:
    late = None if p99 is None else Latency(1000, 999, 0.5, p99, 20)
    figure = Figure((us * 1000,) * 3)
    return Cost(name, what, figure, figure, store_us, late)


def costs(*, http: float = 20, rls: float = 20, redis: float = 30, p99: float = 3) -> Costs:
    return Costs(
        floor=cost("nginx", "a constant", 8),
        uvicorn=cost("uvicorn", "a trivial check", 40),
        grpcio=cost("grpcio", "a trivial RLS", 300),
        http=cost("headgate", "HTTP check", http, p99=p99),
        grpc=cost("headgate", "gRPC check", 25),
        rls=cost("headgate", "RLS, memory", rls),
        rls_redis=cost("headgate", "RLS, Redis", redis, store_us=6),
        others=(cost("headgate", "RLS, Redis, 2 workers", 33, store_us=6),),
    )


@pytest.mark.parametrize(
    ("found", "aim", "passed"),
    [
        (costs(http=24), "HTTP check: processor time, x nginx", True),
        (costs(http=24.1), "HTTP check: processor time, x nginx", False),
        (costs(rls=20), "RLS: x less processor time than grpcio", True),
        (costs(rls=20.1), "RLS: x less processor time than grpcio", False),
        (costs(rls=20, redis=40), "RLS on Redis: rate, x RLS on memory", True),
        (costs(rls=20, redis=40.1), "RLS on Redis: rate, x RLS on memory", False),
        (costs(p99=9.9), "HTTP check: p99 at half of the highest rate, ms", True),
        (costs(p99=10), "HTTP check: p99 at half of the highest rate, ms", False),
    ],
)
def test_each_aim_is_met_or_missed(found: Costs, aim: str, *, passed: bool) -> None:
    assert {each.what: each.passed for each in found.aims()}[aim] is passed


def test_a_ratio_is_taken_within_the_rounds() -> None:
    slow_second_round = Figure((8000, 80_000, 8000))
    floor = Cost("nginx", "a constant", slow_second_round, slow_second_round)
    ours = Figure((16_000, 160_000, 16_000))
    assert Cost("headgate", "HTTP check", ours, ours).cpu.over(floor.cpu) == pytest.approx(2)


def test_rates_are_those_of_the_median_round() -> None:
    assert cost("nginx", "a constant", 8).per_second == pytest.approx(125_000)


def test_the_summary_says_what_was_found_and_what_was_asked() -> None:
    told = summary(costs(rls=15))
    assert "| HTTP check: processor time, x nginx | 2.50 | at most 3 | PASS |" in told
    assert "| RLS: x less processor time than grpcio | 20.00 | at least 15 | PASS |" in told
    assert "| RLS on Redis: rate, x RLS on memory | 0.50 | at least 0.5 | PASS |" in told
    assert "| HTTP check: p99 at half of the highest rate, ms | 3.00 | under 10 | PASS |" in told


def test_the_report_has_requests_latencies_and_the_way_to_a_million() -> None:
    results = ServiceResults(costs(), Figure((1000.0,) * 3), Cores((0,), (1,)), {"nginx": "1.22"})
    report = render(Results({"cores": "2"}, service=results))
    assert "the server is bound to core 0; the load, and Redis, to core 1." in report
    assert "| nginx: a constant | 8.0 +0 % | 1.00 | 37.5 | 125,000 | - |" in report
    assert "| headgate: RLS, Redis | 30.0 +0 % | 3.75 | 10.0 | 33,333 | 6.0 |" in report
    assert "| headgate: HTTP check | 1,000 | 999 | 0.50 | 3.00 | 20.00 |" in report
    assert "| RLS, memory | 1.00 | 5.0 % |" in report
    assert "| RLS, Redis | 30.0 | 6.0 | 60 | 12 |" in report
    assert "| RLS, Redis, 2 workers | 33.0" not in report
    assert "## Memory\n" not in report


@pytest.mark.parametrize(
    ("cpu_us", "store_us", "expected"),
    [(20, 0, Fleet(40, 0)), (20, 6, Fleet(40, 12)), (20.1, 6.2, Fleet(41, 13))],
)
def test_cores_are_processor_time_times_rate_at_half_load(cpu_us: float, store_us: float, expected: Fleet) -> None:
    assert fleet(cpu_us, store_us, target=1_000_000, utilisation=0.5) == expected
