"""Runs wrk, h2load and `benchmarks.service.flood` for a bounded time or number of requests; parses their results."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from benchmarks.service.requests import EXPONENT, SOAK_PATHS, SOAK_USERS, RequestKind, Wire

PACKAGES = {"wrk": "wrk", "h2load": "nghttp2-client", "nginx": "nginx-light", "redis-server": "redis-server"}
"""Required programs, and their Debian packages."""
CONNECTIONS = 64
STREAMS = 32
"""Calls in flight on one connection of gRPC."""
GRPC_CONNECTIONS = 8
ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
"""Seconds after which a load that does not end is a failure."""


class LoadError(RuntimeError):
    """A program is missing, or the load failed, so its numbers would be meaningless."""


class Load(msgspec.Struct, frozen=True):
    """The result of a load."""

    requests: int
    seconds: float
    failed: int = 0
    """Requests without a decision: no response, or an error."""
    refused: int | None = None
    """Refused requests; None if the program does not count them."""


@dataclass(frozen=True, slots=True)
class Latency:
    """The result of a load at a constant rate. Times in milliseconds."""

    target: float
    """The requested rate, per second."""
    rate: float
    """Responses per second."""
    p50: float
    p99: float
    worst: float
    waited: float = 0.0
    """Milliseconds of a second in which the server could have run, but others had its core."""


def require(programs: Iterable[str] = PACKAGES) -> None:
    """Raise LoadError, with the command that installs them, if programs are missing."""
    missing = [PACKAGES[program] for program in programs if not shutil.which(program)]
    if missing:
        raise LoadError(f"this part needs more programs: apt-get install --no-install-recommends {' '.join(missing)}")


class Loader:
    """Sends requests of `users` users to a port of the loopback, from some processor cores."""

    def __init__(self, request: RequestKind, port: int, users: int, cores: Iterable[int], *, tls: bool = False) -> None:
        self._request, self._users = request, users
        self._pin = ["taskset", "-c", ",".join(map(str, cores))]
        self._port = port
        self._url = f"http{'s' if tls else ''}://127.0.0.1:{port}"

    def flat_out(self, seconds: float, rate: float) -> Load:
        """Send requests as fast as responses arrive, for about `seconds`; `rate` is an estimate."""
        if self._request.wire is Wire.HTTP:
            return self._wrk(seconds, "random" if self._request.random else "zipf")
        return self.send(max(CONNECTIONS, int(seconds * rate)))

    def send(self, requests: int, *, in_turn: bool = False) -> Load:
        """Send requests over gRPC as fast as responses arrive."""
        words = [*self._flooding(requests), "--streams", str(STREAMS), *["--in-turn"] * in_turn]
        return read_json(self._run(words))

    def send_all(self, rate: float) -> None:
        """Send at least one request for every user, in turn; `rate` is an estimate."""
        if self._request.wire is Wire.GRPC:
            self.send(self._users, in_turn=True)
            return
        seconds = 1 + self._users / rate
        while self._wrk(seconds, "turn").requests < self._users + CONNECTIONS:
            seconds *= 2

    def at_rate(self, rate: float, seconds: float) -> Latency:
        """Send requests at a constant rate, independent of responses."""
        if self._request.wire is not Wire.HTTP:
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
        users = SOAK_USERS if self._request.random else self._users
        words = ["--timeout", "60s", "-s", str(script), self._url, self._request.path, self._request.template]
        words += [order, *map(str, (users, SOAK_PATHS, EXPONENT))]

        def run(seconds: int) -> str:
            return self._run(["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", *words])

        output = run(whole)
        if '"requests":0,' in output:  # a busy machine may not respond within a second
            output = run(30 * whole)
        return read_json(output)

    def _flooding(self, requests: int) -> list[str]:
        words = [sys.executable, "-m", "benchmarks.service.flood", "--request", self._request.name]
        words += ["--port", str(self._port), "--requests", str(requests), "--users", str(self._users)]
        return [*words, "--connections", str(GRPC_CONNECTIONS)]

    def _h2load(self, requests: int, clients: int, options: Sequence[str] = ()) -> Load:
        with TemporaryDirectory(prefix="headgate-bench-") as folder:
            body = Path(folder) / "body"
            body.write_bytes(self._request.body_of(0))
            words = ["h2load", "--h1", "-t1", f"-c{clients}", f"-n{requests}", "-d", str(body), *options]
            words += ["-H", f"content-type: {self._request.content_type}", self._url + self._request.path]
            return read_h2load(self._run(words))

    def _run(self, words: Sequence[str]) -> str:
        ended = subprocess.run(  # noqa: S603  programs of this list, on the path
            [*self._pin, *words], capture_output=True, text=True, timeout=PATIENCE, check=False, cwd=ROOT
        )
        if ended.returncode:
            raise LoadError(f"{words[0]} ended with {ended.returncode}:\n{ended.stdout}{ended.stderr}")
        return ended.stdout


def framed(message: bytes) -> bytes:
    """Return an uncompressed message of gRPC with its length prefix."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def read_json(output: str) -> Load:
    """Read the last line of our script for wrk, and of `flood`.

    Raises LoadError if a request failed, or there was none.
    """
    return _good(msgspec.json.decode(output.rstrip().rpartition("\n")[2], type=Load), output)


def read_h2load(output: str) -> Load:
    """Read the summary of h2load.

    Raises LoadError if a response was not 200, or there was none.
    """
    lines = {name: rest for name, _, rest in (line.partition(":") for line in output.splitlines())}
    took = next((line for line in output.splitlines() if line.startswith("finished in ")), None)
    if took is None or "requests" not in lines or "status codes" not in lines:
        raise LoadError(f"h2load has no result:\n{output}")
    counts = {what: int(number) for number, what in _pairs(lines["requests"])}
    fine = {what: int(number) for number, what in _pairs(lines["status codes"])}["2xx"]
    return _good(Load(counts["done"], _seconds(took.split()[2]), counts["total"] - fine), output)


def latency(target: float, found: Load, log: str) -> Latency:
    """Read the times of all requests from h2load's log: start, status, microseconds."""
    return percentiles(target, found, [int(line.split("\t")[2]) for line in log.splitlines()])


def percentiles(target: float, found: Load, took_us: Iterable[int]) -> Latency:
    """Return the percentiles of the times of all requests, in microseconds."""
    took = sorted(took_us)
    if not took:
        raise LoadError("no request was timed")
    return Latency(target, found.requests / found.seconds, _share(took, 0.5), _share(took, 0.99), took[-1] / 1000)


def _share(took: Sequence[int], share: float) -> float:
    """Return the milliseconds within which a share of requests was completed."""
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


def _good(found: Load, output: str) -> Load:
    if found.failed or found.requests <= 0:
        raise LoadError(f"{found.failed} of {found.requests} requests failed:\n{output}")
    return found
