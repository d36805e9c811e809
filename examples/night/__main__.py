"""A night on call in four scenes, played on a Redis and a service that this starts, and ends.

.venv/bin/python examples/night

Every command that is shown is one that you could type. It takes about a minute.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import Request, urlopen

SECONDS = 60.0
"""How long anything is waited for."""
RULES = """\
version: 1
rules:
  - {id: orders-user, endpoint: /api/v1/orders/**, limit: 10, window: 1h}
  - {id: all-ip, dimension: ip, limit: 1000, window: 1m}
"""
BAD = """\
version: 1
rules:
  - {id: orders-user, endpoint: /api/v1/orders/**, limit: 1, window: 1h}
"""


class Night:
    """The service, its Redis, and the terminal of the operator on call."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self._redis_port = _free_port()
        self._redis: subprocess.Popen[bytes] | None = None
        self.url = ""
        others = {
            name: text for name, text in os.environ.items() if not name.startswith("HEADGATE_")
        }  # of your service
        self._environment = {**others, "PYTHONUNBUFFERED": "1", "HEADGATE_PROGRESS": "off"}

    def start_redis(self) -> None:
        program = shutil.which("redis-server") or ""
        command = [program, "--port", str(self._redis_port), "--save", "", "--dir", str(self.folder)]
        self._redis = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._stack.callback(self.kill_redis)
        until(lambda: _answers(self._redis_port), "Redis answers")

    def kill_redis(self) -> None:
        if self._redis is not None and self._redis.poll() is None:
            self._redis.kill()
            self._redis.wait()

    def start_service(self) -> None:
        store = f"redis://127.0.0.1:{self._redis_port}/0"
        ports = ["--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
        database = ["--database", f"sqlite:///{self.folder}/night.db", "--data-dir", str(self.folder / "data")]
        command = [sys.executable, "-m", "headgate", "serve", "--store", store, *database, *ports]
        log, said = self.folder / "log", self.folder / "said"
        with log.open("wb") as err, said.open("wb") as out:
            service = subprocess.Popen(command, stdout=out, stderr=err, env=self._environment, cwd=self.folder)
        self._stack.callback(_end, service)

        def has_said_all() -> bool:
            if service.poll() is not None:
                raise SystemExit(log.read_text())
            return "hg_" in said.read_text()

        until(has_said_all, "the service runs")
        text = said.read_text()
        self.url = re.findall(r"HTTP +(http://\S+)", text)[0]
        self._environment["HEADGATE_URL"] = self.url
        self._environment["HEADGATE_ADMIN_URL"] = re.findall(r"admin +(http://\S+)", text)[0]
        self._environment["HEADGATE_ADMIN_KEY"] = re.findall(r"(hg_\S+)", text)[0]

    def type(self, command: str, *, until_it_says: str = "") -> None:
        """Run a command, again and again until it says something, and show it with what it says then."""
        words = [sys.executable, "-m", *shlex.split(command)]
        said = ""

        def has_said() -> bool:
            nonlocal said
            done = subprocess.run(
                words, env=self._environment, cwd=self.folder, capture_output=True, text=True, check=False
            )
            said = done.stdout + done.stderr
            return until_it_says in said

        until(has_said, f"{command} says {until_it_says}")
        print(f"  $ {command}")
        for line in said.splitlines():
            print(f"    {line}")

    def ask(self, user: str) -> dict[str, Any]:
        """Ask whether a user's next order may pass."""
        body = json.dumps({"principal": {"user": user}, "endpoint": "/api/v1/orders", "method": "POST"}).encode()
        request = Request(f"{self.url}/api/v1/rate-limit/check", body, {"content-type": "application/json"})  # noqa: S310
        with urlopen(request, timeout=SECONDS) as response:  # noqa: S310  our own
            answer: dict[str, Any] = json.load(response)
        return answer

    def send(self, user: str, count: int) -> str:
        """Send some orders of a user; says how many passed."""
        passed = sum(bool(self.ask(user)["allowed"]) for _ in range(count))
        return f"user {user}: {passed} of {count} orders pass"


def customer(night: Night) -> None:
    """A customer gets 429s. Who refused them, and how do they get more?"""
    print(f"  {night.send('4711', 13)}")
    night.type("headgate refusals --user 4711", until_it_says="orders-user")
    night.type("headgate users show 4711")
    night.type("headgate users override 4711 orders-user --limit 100 --for 1h --reason 'ticket 1871' --wait")
    print(f"  {night.send('4711', 13)}")
    night.type("headgate audit list --limit 1")


def outage(night: Night) -> None:
    """Redis dies. Requests are still answered, and limits still hold."""
    night.kill_redis()
    began = time.monotonic()
    answer = night.ask("7")
    print(f"  Redis is dead; the next answer took {1000 * (time.monotonic() - began):.0f} ms:", _brief(answer))
    print(f"  {night.send('8', 20)} of a limit of 10")
    night.start_redis()
    until(lambda: not night.ask("9")["degraded"], "the store decides again")
    print("  Redis is back; the next answer:", _brief(night.ask("9")))


def bad_publish(night: Night) -> None:
    """A colleague applies a file with a wrong limit and a forgotten rule. Take all of it back at once."""
    (night.folder / "rules.yaml").write_text(BAD)
    night.type("headgate rules apply rules.yaml --yes --reason 'new limits' --wait")
    print(f"  {night.send('21', 5)}")
    night.type("headgate revisions --limit 2")
    night.type("headgate undo --yes --reason 'everybody was refused' --wait")
    print(f"  {night.send('22', 5)}")
    night.type("headgate rules list")


def halving(night: Night) -> None:
    """A limit has to be halved: whom would it touch, and what becomes of what they have used?"""
    print(f"  {night.send('31', 8)} of 10")
    print("  (What-if counts windows that are over. Tonight none is: on a service that runs for days, it has figures.)")
    night.type("headgate rules what-if orders-user --limit 5")
    night.type("headgate rules set orders-user limit=5 --reason 'less capacity' --wait")
    print(f"  {night.send('31', 1)}: usage is kept")
    print(f"  {night.send('32', 8)}")


SCENES: tuple[Callable[[Night], None], ...] = (customer, outage, bad_publish, halving)


def main() -> int:
    if shutil.which("redis-server") is None:
        print("redis-server is needed: apt-get install redis-server", file=sys.stderr)
        return 2
    with TemporaryDirectory(prefix="headgate-night-") as folder, ExitStack() as stack:
        night = Night(Path(folder), stack)
        print("starting Redis and the service ...", flush=True)
        night.start_redis()
        night.start_service()
        (night.folder / "rules.yaml").write_text(RULES)
        night.type("headgate rules apply rules.yaml --yes --wait")
        for number, scene in enumerate(SCENES, 1):
            print(f"\n{number}. {scene.__doc__}\n", flush=True)
            with _timed():
                scene(night)
    return 0


@contextmanager
def _timed() -> Iterator[None]:
    began = time.monotonic()
    yield
    print(f"  ({time.monotonic() - began:.1f} s)", flush=True)


def until(is_so: Callable[[], bool], what: str) -> None:
    """Wait until something is so."""
    give_up = time.monotonic() + SECONDS
    while not is_so():
        if time.monotonic() > give_up:
            raise SystemExit(f"waited {SECONDS:g} s in vain: {what}")
        time.sleep(0.1)


def _brief(answer: dict[str, Any]) -> str:
    degraded = f", degraded: {answer['reason']}" if answer["degraded"] else ""
    return f"allowed={answer['allowed']}, remaining={answer['remaining']}{degraded}"


def _answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
