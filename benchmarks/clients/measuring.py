"""Measures clients that keep within the limits of a server: each case is a server and one process or several.

All cases run at the same time: they mostly wait.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection

from benchmarks.on_redis.servers import redis_server
from headgate.core.algorithms import State
from headgate.core.quota import SECOND, Quota

LONGEST = 1.05
"""The most that a case may take, as a multiple of the ideal schedule."""
MOST_REFUSED = 0.01
"""At most this share of requests is refused."""
_SECONDS = 120
_CLIENT = """
import sys
from concurrent.futures import ThreadPoolExecutor
import httpx
from headgate.pacing import HttpxTransport
url, count, store = sys.argv[1], int(sys.argv[2]), sys.argv[3] or None
with httpx.Client(transport=HttpxTransport(store=store), timeout=60) as client, ThreadPoolExecutor(4) as threads:
    print("ready", flush=True)
    input()
    print(sum(threads.map(lambda _: client.get(url).status_code == 200, range(count))), flush=True)
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A server, and the requests that processes send to it."""

    style: str
    quota: str
    requests: int
    processes: int


@dataclass(frozen=True, slots=True)
class Row:
    """The result of a case."""

    case: Case
    seconds: float
    """From the first request that the server saw to the last that passed."""
    ideal: float
    """The same for the fastest schedule that the server would not have refused."""
    refused: int

    @property
    def ratio(self) -> float:
        return self.seconds / self.ideal

    @property
    def passed(self) -> bool:
        return self.ratio <= LONGEST and self.refused <= MOST_REFUSED * self.case.requests


@dataclass(frozen=True, slots=True)
class ClientsResults:
    """The results of all cases."""

    rows: list[Row]


SERVERS = (
    ("headgate", "40/5s token_bucket", 160),
    ("github", "40/3s fixed_window", 220),
    ("ietf", "40/5s sliding_window_log", 160),
)
QUICK = (("github", "20/s fixed_window", 32),)


def cases(*, quick: bool) -> list[Case]:
    """Return the cases."""
    return [Case(*each, processes) for each in (QUICK if quick else SERVERS) for processes in (1, 4)]


def run(*, quick: bool, done: Callable[[str], None]) -> ClientsResults:
    """Measure all cases."""
    found = cases(quick=quick)
    with redis_server() as redis, ThreadPoolExecutor(len(found)) as threads:

        def one(case: Case) -> Row:
            row = measure(case, redis.address())
            done(f"{case.style}, {case.processes} processes: {row.ratio:.3f} x the ideal, {row.refused} refused")
            return row

        return ClientsResults(list(threads.map(one, found)))


def measure(case: Case, store: str) -> Row:
    """Run one case; its processes, if there are several, share a store."""
    each = case.requests // case.processes
    with _started("-m", "benchmarks.clients.api", case.style, case.quota) as api, ExitStack() as stack:
        port = int(_line(api))
        words = "-c", _CLIENT, f"http://127.0.0.1:{port}/orders", str(each), store if case.processes > 1 else ""
        clients = [stack.enter_context(_started(*words)) for _ in range(case.processes)]
        for client in clients:
            _line(client)
        for client in clients:
            if client.stdin:
                client.stdin.write("go\n")
                client.stdin.flush()
        answered = [int(_line(client)) for client in clients]
        connection = HTTPConnection("127.0.0.1", port, timeout=_SECONDS)
        connection.request("GET", "/report")
        seen = json.loads(connection.getresponse().read())
        connection.close()
    if answered != [each] * case.processes:
        raise RuntimeError(f"{case}: of {each} requests each, the processes saw {answered} answered")
    start, end = min(at for at, _ in seen), max(at for at, status in seen if status == 200)
    (quota,) = Quota.parse(case.quota)
    refused = sum(status == 429 for _, status in seen)
    return Row(case, (end - start) / SECOND, ideal(quota, case.requests, start) / SECOND, refused)


@contextmanager
def _started(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Run Python for the length of a with block."""
    command = [sys.executable, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603  ours
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints."""
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        raise RuntimeError(f"a process of the benchmark ended early: {process.args!r:.200}")
    return line


def ideal(quota: Quota, requests: int, start: int) -> int:
    """Return the microseconds until the last of `requests` passes, if each is sent as soon as it can pass."""
    state: State = None
    now = start
    for _ in range(requests):
        while True:
            state, decision = quota.step(state, 1, now)
            if decision.allowed:
                break
            now += decision.retry_after_us
    return now - start
