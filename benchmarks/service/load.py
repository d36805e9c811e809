"""Runs wrk, h2load and our own load of gRPC for a bounded time or number of requests, and reads what they found."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.service.asking import EXPONENT, SOAK_PATHS, SOAK_USERS, Question, Wire

PACKAGES = {"wrk": "wrk", "h2load": "nghttp2-client", "nginx": "nginx-light", "redis-server": "redis-server"}
"""Programs that this part needs, and the packages of Debian that have them."""
CONNECTIONS = 64
STREAMS = 32
"""Calls in flight on one connection of gRPC."""
GRPC_CONNECTIONS = 8
ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
"""Seconds after which a load that does not end is a failure."""


class LoadError(RuntimeError):
    """A program is missing, or the load did not go well, so that its numbers would mean nothing."""


class Load(msgspec.Struct, frozen=True):
    """What came of a load."""

    requests: int
    seconds: float
    failed: int = 0
    """How many were not decided: no answer, or an error."""
    refused: int | None = None
    """How many were decided, and not allowed; None where the program does not look."""


@dataclass(frozen=True, slots=True)
class Latency:
    """What came of a load at a constant rate. Times in milliseconds."""

    asked: float
    """Requests per second that were asked for."""
    rate: float
    """Requests per second that were answered."""
    p50: float
    p99: float
    worst: float
    waited: float = 0.0
    """Milliseconds of a second in which the server could have run, but others had its core."""


def require(programs: Iterable[str] = PACKAGES) -> None:
    """Raise LoadError, with the words that install them, if programs are missing."""
    missing = [PACKAGES[program] for program in programs if not shutil.which(program)]
    if missing:
        raise LoadError(f"this part needs more programs: apt-get install --no-install-recommends {' '.join(missing)}")


class Loader:
    """Puts load on one port of the loopback.

    Args:
        question: what is asked.
        port: who is asked.
        users: how many users ask.
        cores: the processor cores that the load may use.
        tls: whether to encrypt.
    """

    def __init__(self, question: Question, port: int, users: int, cores: Iterable[int], *, tls: bool = False) -> None:
        self._question, self._users = question, users
        self._pin = ["taskset", "-c", ",".join(map(str, cores))]
        self._port = port
        self._url = f"http{'s' if tls else ''}://127.0.0.1:{port}"

    def flat_out(self, seconds: float, rate: float) -> Load:
        """Ask as fast as answers come, for about so many seconds; `rate` is a guess of the rate."""
        if self._question.wire is Wire.HTTP:
            return self._wrk(seconds, "random" if self._question.random else "zipf")
        return self.ask(max(CONNECTIONS, int(seconds * rate)))

    def ask(self, requests: int, *, in_turn: bool = False) -> Load:
        """Ask so many times over gRPC, as fast as answers come."""
        words = [*self._flooding(requests), "--streams", str(STREAMS), *["--in-turn"] * in_turn]
        return read_json(self._run(words))

    def ask_all(self, rate: float) -> None:
        """Ask for every user at least once, in turn; `rate` is a guess of the rate."""
        if self._question.wire is Wire.GRPC:
            self.ask(self._users, in_turn=True)
            return
        seconds = 1 + self._users / rate
        while self._wrk(seconds, "turn").requests < self._users + CONNECTIONS:
            seconds *= 2

    def at_rate(self, rate: float, seconds: float) -> Latency:
        """Ask at a constant rate, whatever the answers take."""
        if self._question.wire is not Wire.HTTP:
            words = self._flooding(max(GRPC_CONNECTIONS, int(seconds * rate)))
            return msgspec.json.decode(self._run([*words, "--rate", f"{rate:.0f}"]), type=Latency)
        clients = CONNECTIONS
        each = max(1.0, rate / clients)
        with TemporaryDirectory(prefix="headgate-bench-") as folder:
            log = Path(folder) / "log"
            options = (f"--rps={each:.3f}", f"--log-file={log}")
            found = self._h2load(max(clients, int(seconds * each) * clients), clients, options)
            return latency(rate, found, log.read_text())

    def _wrk(self, seconds: float, order: str) -> Load:
        script = Path(__file__).with_name("many_users.lua")
        whole = max(1, round(seconds))
        users = SOAK_USERS if self._question.random else self._users
        words = ["--timeout", "60s", "-s", str(script), self._url, self._question.path, self._question.template]
        words += [order, *map(str, (users, SOAK_PATHS, EXPONENT))]

        def run(seconds: int) -> str:
            return self._run(["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", *words])

        told = run(whole)
        if '"requests":0,' in told:  # a machine that is busy with others may not answer within a second
            told = run(30 * whole)
        return read_json(told)

    def _flooding(self, requests: int) -> list[str]:
        words = [sys.executable, "-m", "benchmarks.service.flood", "--question", self._question.name]
        words += ["--port", str(self._port), "--requests", str(requests), "--users", str(self._users)]
        return [*words, "--connections", str(GRPC_CONNECTIONS)]

    def _h2load(self, requests: int, clients: int, options: Sequence[str] = ()) -> Load:
        with TemporaryDirectory(prefix="headgate-bench-") as folder:
            body = Path(folder) / "body"
            body.write_bytes(self._question.body_of(0))
            words = ["h2load", "--h1", "-t1", f"-c{clients}", f"-n{requests}", "-d", str(body), *options]
            words += ["-H", f"content-type: {self._question.content_type}", self._url + self._question.path]
            return read_h2load(self._run(words))

    def _run(self, words: Sequence[str]) -> str:
        ended = subprocess.run(  # noqa: S603  programs of this list, on the path
            [*self._pin, *words], capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT
        )
        if ended.returncode:
            raise LoadError(f"{words[0]} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        return ended.stdout


def framed(message: bytes) -> bytes:
    """Return a message as gRPC sends it: not compressed, and its length before it."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def read_json(told: str) -> Load:
    """Read the line that our script for wrk, and our own load, end with.

    Raises LoadError if a request failed, or there was none.
    """
    return _good(msgspec.json.decode(told.rstrip().rpartition("\n")[2], type=Load), told)


def read_h2load(told: str) -> Load:
    """Read what h2load says at its end.

    Raises LoadError if a request failed, or was not answered 200, or there was none.
    """
    lines = {name: rest for name, _, rest in (line.partition(":") for line in told.splitlines())}
    took = next((line for line in told.splitlines() if line.startswith("finished in ")), None)
    if took is None or "requests" not in lines or "status codes" not in lines:
        raise LoadError(f"h2load does not say how it went:\n{told}")
    counts = {what: int(number) for number, what in _pairs(lines["requests"])}
    fine = {what: int(number) for number, what in _pairs(lines["status codes"])}["2xx"]
    return _good(Load(counts["done"], _seconds(took.split()[2]), counts["total"] - fine), told)


def latency(asked: float, found: Load, log: str) -> Latency:
    """Read the times of all requests from h2load's log: start, status, microseconds."""
    return percentiles(asked, found, [int(line.split("\t")[2]) for line in log.splitlines()])


def percentiles(asked: float, found: Load, took_us: Iterable[int]) -> Latency:
    """Return how long requests took, of which all times are known, in microseconds."""
    took = sorted(took_us)
    if not took:
        raise LoadError("no request was timed")
    return Latency(asked, found.requests / found.seconds, _share(took, 0.5), _share(took, 0.99), took[-1] / 1000)


def _share(took: Sequence[int], share: float) -> float:
    """Return the milliseconds within which that share was answered."""
    return took[min(len(took) - 1, int(len(took) * share))] / 1000


def _pairs(counts: str) -> Iterable[tuple[str, str]]:
    for each in counts.split(","):
        number, what = each.split()
        yield number, what


def _seconds(duration: str) -> float:
    """Read a duration of h2load's: ``1.05s,``, ``950.20ms,`` or ``800us,``."""
    number = duration.rstrip(",")
    for unit, size in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0)):
        if number.endswith(unit):
            return float(number.removesuffix(unit)) * size
    raise LoadError(f"no duration: {duration!r}")


def _good(found: Load, told: str) -> Load:
    if found.failed or found.requests <= 0:
        raise LoadError(f"{found.failed} of {found.requests} requests failed:\n{told}")
    return found
