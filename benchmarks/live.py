"""The cost of live figures: the processor time of a check with a viewer, and without one.

::

    python -m benchmarks.live [ROUNDS]

One service decides in memory, at full load, for many users by 20 rules. In every second round, its figures are
requested every three seconds, as by an open overview, so it also writes them. The processor time is that of all its
processes, including the admin plane.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Event, Thread

import httpx

from benchmarks.on_redis.servers import free_port
from benchmarks.service.load import Loader
from benchmarks.service.requests import HTTP_CHECK, USERS
from benchmarks.service.servers import Command, Cores, running, used_ns
from headgate.admin.live import WATCHED_US

KEY = "hg_an-operators-own-key-of-some-length"
HEADERS = {"authorization": f"Bearer {KEY}"}
ROUND, EVERY = 10.0, 3.0
"""Seconds."""
RULES = [{"id": f"rule{number}", "limit": 100_000_000, "window": "1h"} for number in range(20)]


def main() -> None:
    """Measure, and print the result."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    http, grpc, admin = free_port(), free_port(), free_port()
    cores, url = Cores.split(), f"http://127.0.0.1:{admin}/api/v1"
    with TemporaryDirectory(prefix="headgate-bench-") as name:
        folder = Path(name)
        ports = ["--http-port", str(http), "--grpc-port", str(grpc), "--admin-port", str(admin)]
        words = [sys.executable, "-m", "headgate.cli", "serve", *ports]
        words += ["--database", f"sqlite:///{folder}/headgate.db", "--data-dir", name, "--admin-reads", "100000/minute"]
        command = Command(words, (http, grpc, admin), {"HEADGATE_ADMIN_KEY": KEY, "HEADGATE_DRAIN_DELAY": "0"})
        with running(command, cores, folder / "log") as process:
            made = httpx.post(f"{url}/apply?wait=1m", json={"version": 1, "rules": RULES}, headers=HEADERS, timeout=60)
            made.raise_for_status()
            loader = Loader(HTTP_CHECK, http, USERS, cores.others)
            loader.flat_out(ROUND, 1000)
            found: dict[bool, list[float]] = {False: [], True: []}
            for number in range(2 * rounds):
                is_watched = bool(number % 2)
                ended = Event()
                ended.wait(0 if is_watched else WATCHED_US / 1e6)  # until it writes no more
                watching = Thread(target=_watch, args=(f"{url}/live", ended))
                if is_watched:
                    watching.start()
                before = used_ns(process)
                load = loader.flat_out(ROUND, 1000)
                found[is_watched].append((used_ns(process) - before) / load.requests / 1000)
                ended.set()
                if is_watched:
                    watching.join()
    without, watched = median(found[False]), median(found[True])
    ratios = sorted(one / other for one, other in zip(found[True], found[False], strict=True))
    print(f"without a viewer {without:.2f} us of a core for each check: {_listed(found[False])}")
    print(f"with a viewer    {watched:.2f} us: {_listed(found[True])}")
    print(f"ratio of neighbours: median {median(ratios):.3f}, from {ratios[0]:.3f} to {ratios[-1]:.3f}")


def _watch(url: str, ended: Event) -> None:
    while not ended.is_set():
        httpx.get(url, headers=HEADERS, timeout=60).raise_for_status()
        ended.wait(EVERY)


def _listed(figures: list[float]) -> str:
    return " ".join(f"{each:.2f}" for each in figures)


if __name__ == "__main__":
    main()
