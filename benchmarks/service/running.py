"""Runs the whole part about the service: starts all servers, lets them take turns, and ends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks.on_redis.servers import Server, redis_server
from benchmarks.service import observing, servers
from benchmarks.service.asking import GRPC_CHECK, HTTP_CHECK, RLS, Question
from benchmarks.service.figures import Cost, Costs
from benchmarks.service.load import require
from benchmarks.service.measuring import Subject, measure
from benchmarks.service.servers import Cores, Served
from benchmarks.timing import Figure, Pace

OURS = "headgate"
SUBJECTS = 11
"""How many are measured."""
STORE_SECONDS = 2
"""What Redis gets for an answer: flat out, requests wait longer than the 10 ms that it gets otherwise."""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much is measured."""

    seconds: float
    """Of load per round; wrk takes whole seconds, and at least one."""
    pace: Pace


@dataclass(frozen=True, slots=True)
class ServiceResults:
    """All that was measured of servers."""

    costs: Costs
    observing: Figure
    """Nanoseconds that metrics, hot keys and logs of denials add to a check."""
    cores: Cores
    versions: dict[str, str]


def steps() -> int:
    """Return how many steps there are to report."""
    return 2 * SUBJECTS + 1


def run(amount: Amount, done: Callable[[str], None]) -> ServiceResults:
    """Measure everything; `done` is told of each step.

    Raises LoadError if a program is missing, with the words that install it.
    """
    require()
    cores = Cores.split()
    with ExitStack() as stack:
        store = stack.enter_context(_pinned_redis(cores))
        subjects = _subjects(stack, cores, store)
        prompt = ("http", "grpc", "rls", "rls_redis")
        found = measure(subjects, amount.seconds, amount.pace, prompt, done)
    versions = {name: servers.version(name) for name in ("nginx", "wrk", "h2load")}
    observed = observing.measure(amount.pace)
    done(f"observing: {observed.best / 1000:.2f} us")
    return ServiceResults(_sorted(found), observed, cores, versions)


def _subjects(stack: ExitStack, cores: Cores, store: Server) -> dict[str, Subject]:
    nginx = stack.enter_context(servers.nginx(cores))
    uvicorn = stack.enter_context(servers.uvicorn(cores))
    grpcio = stack.enter_context(servers.grpcio(cores))
    memory = stack.enter_context(servers.headgate(cores))
    encrypted = stack.enter_context(servers.headgate(cores, tls=True))
    redis = stack.enter_context(servers.headgate(cores, f"{store.address()}?timeout={STORE_SECONDS}"))
    two = Cores.split(2)
    shared = f"{store.address(1)}?timeout={STORE_SECONDS}"
    pair = stack.enter_context(servers.headgate(two, shared, ("--workers", "2")))

    def ours(
        what: str, served: Served, question: Question, cores: Cores = cores, store: Server | None = None
    ) -> Subject:
        return Subject(OURS, what, served, question, cores, counts=True, store=store)

    return {
        "floor": Subject("nginx", "a constant over HTTP", nginx, HTTP_CHECK, cores),
        "uvicorn": Subject("uvicorn", "a trivial check over HTTP", uvicorn, HTTP_CHECK, cores),
        "grpcio": Subject("grpcio", "a trivial RLS", grpcio, RLS, cores),
        "http": ours("HTTP check, memory", memory, HTTP_CHECK),
        "grpc": ours("gRPC check, memory", memory, GRPC_CHECK),
        "rls": ours("RLS, memory", memory, RLS),
        "rls_redis": ours("RLS, Redis", redis, RLS, store=store),
        "http_redis": ours("HTTP check, Redis", redis, HTTP_CHECK, store=store),
        "http_tls": ours("HTTP check, memory, TLS", encrypted, HTTP_CHECK),
        "rls_pair": ours("RLS, Redis, 2 workers", pair, RLS, two, store),
        "http_pair": ours("HTTP check, Redis, 2 workers", pair, HTTP_CHECK, two, store),
    }


def _sorted(found: dict[str, Cost]) -> Costs:
    judged = ("floor", "uvicorn", "grpcio", "http", "grpc", "rls", "rls_redis")
    others = tuple(cost for name, cost in found.items() if name not in judged)
    return Costs(**{name: found[name] for name in judged}, others=others)


@contextmanager
def _pinned_redis(cores: Cores) -> Iterator[Server]:
    with redis_server() as server:
        servers.pin(int(server.control.info("server")["process_id"]), cores.others)
        yield server
