"""Starts Headgate with believable traffic, for a look at its console: ``make demo``.

python -m examples.demo [--seconds N | --once] [--keep] [--speed N] [--any-port] [--days N] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from examples.demo.company import Company
from examples.demo.history import Past
from examples.demo.servers import USUAL_PORTS, Colleague, Node, Redis, Refused, usual_ports
from examples.demo.story import Story, publish
from examples.demo.traffic import Traffic

ROLES = ("viewer", "editor", "admin")
GRACE = 60.0
"""Seconds to extend an event that is not visible yet; a visitor who changes the rules may prevent it."""
GUIDE = """\

The console is at {console}

Log in with one of these keys:
{keys}

Three things to try:
  1. Overview: watch an abuser, an outage of Redis, and a bad publish. They are announced here.
  2. Who: find {customer}, whose searches are refused, and raise the limit for an hour.
  3. Rules: open the shadow rule search-address, see which callers it would refuse, and enforce it for 5 %.

Decisions: {http}. The files are in {folder}. Ctrl-C ends everything.
"""


class Demo:
    """Everything that runs, and the file that says where.

    Args:
        options: of the command line.
        stack: ends what is started.
    """

    def __init__(self, options: argparse.Namespace, stack: ExitStack) -> None:
        self._options, self._stack = options, stack
        self._folder: Path = options.folder.resolve()
        self._file = self._folder / "demo.json"
        self._random = Random(7)
        self._company = Company(self._random)
        self._began = 0.0

    def run(self) -> None:
        """Start everything, say where it is, and let things happen."""
        known = self._prepared()
        redis = self._redis()
        nodes = self._nodes(redis)
        admin, database = nodes[0].admin, f"sqlite:///{self._folder / 'headgate.db'}"
        if not known:
            known = self._published(Colleague(admin, nodes[0].first_key))
        for node in nodes[1:]:
            node.wait()
        console, customer, urls = f"{admin}/", self._company.free[2], [node.http for node in nodes]
        keys = "\n".join(f"  {role:<7} {known['keys'][role]}" for role in ROLES)
        http = " and ".join(urls)
        print(GUIDE.format(console=console, keys=keys, customer=customer, http=http, folder=self._folder), flush=True)
        if "console" not in known and self._options.days:
            print(f"writing the history of {self._options.days} days ...", flush=True)
            rules = Colleague(admin, known["keys"]["viewer"]).ask("GET", "export")
            asyncio.run(Past(rules, self._random).write(database, self._options.days))
        traffic = Traffic(self._company, urls, known["partners"])
        self._stack.callback(traffic.close)
        team = {name: Colleague(admin, key) for name, key in known["team"].items()}
        story = Story(team, self._company.free[1], traffic, redis, self._say)
        self._stack.callback(_healed, story)
        places = [{"http": node.http, "admin": node.admin} for node in nodes]
        known |= {"console": console, "customer": customer, "nodes": places}
        self._note(known | {"ready": True})
        self._stack.callback(self._note, known | {"ready": False})
        print(f"ready {console}", flush=True)
        self._play(story, traffic)

    def _prepared(self) -> dict[str, Any]:
        """Make the folder, and return what is known of the last time if that is kept."""
        if self._options.keep and self._file.exists():
            known: dict[str, Any] = json.loads(self._file.read_text())
            return known
        if self._file.exists() or not self._folder.exists():  # nothing is removed that is not the demo's
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(self._folder.iterdir()):
            raise SystemExit(f"{self._folder} has files that are not the demo's: choose another --folder")
        self._note({})
        return {}

    def _redis(self) -> Redis | None:
        if shutil.which("redis-server") is None:
            print(
                "redis-server is not installed (apt-get install redis-server): one service decides in memory, and "
                "there is no outage to see"
            )
            return None
        redis = Redis(self._folder)
        self._stack.callback(redis.stop)
        redis.start()
        return redis

    def _nodes(self, redis: Redis | None) -> list[Node]:
        """Start one service, and with Redis another; the second may still be starting."""
        ports = {} if self._options.any_port else usual_ports()
        for option, port in USUAL_PORTS.items():
            if option not in ports and not self._options.any_port:
                print(f"port {port} is taken: another one is used")
        nodes: list[Node] = []
        for name, wanted in (("node-1", ports), ("node-2", {}))[: 2 if redis else 1]:
            node = Node(name, self._folder, redis.address if redis else "memory", wanted)
            self._stack.callback(node.stop)
            node.start()
            nodes.append(node)
            if node is nodes[0]:
                node.wait()  # it makes the database
        return nodes

    def _published(self, admin: Colleague) -> dict[str, Any]:
        """Publish the rules, make the keys, and write these down."""
        keys = {
            role: admin.ask("POST", "keys", {"name": f"you as {role}", "role": role}, reason="For the demo")["key"]
            for role in ROLES
        }
        team, partners = publish(admin, self._company)
        known = {"keys": keys, "team": team, "partners": partners}
        self._note(known)
        return known

    def _note(self, known: dict[str, Any]) -> None:
        """Write addresses and keys to a private file, for programs and for the next start."""
        draft = self._file.with_suffix(".new")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(known, file, indent=1)
        draft.replace(self._file)

    def _play(self, story: Story, traffic: Traffic) -> None:
        """Send requests, and let each event happen in its time, until all the time is over."""
        self._began = began = round_began = time.monotonic()
        speed, ends = self._options.speed, began + (self._options.seconds or float("inf"))
        while True:
            for moment in story.round():
                due = round_began + moment.second / speed
                while time.monotonic() < due or (time.monotonic() < due + GRACE and not moment.has_shown()):
                    traffic.pause()
                    if time.monotonic() > ends:
                        return
            if self._options.once:
                return
            round_began = time.monotonic()

    def _say(self, line: str) -> None:
        print(f"t+{time.monotonic() - self._began:4.0f} s  {line}", flush=True)


def _healed(story: Story) -> None:
    """Leave no bad publish behind."""
    with suppress(Refused):
        story.undo()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="Headgate with believable traffic.")
    parser.add_argument("--seconds", type=float, metavar="N", help="end after so long; default: at Ctrl-C")
    parser.add_argument("--once", action="store_true", help="end when every event has happened once")
    parser.add_argument("--keep", action="store_true", help="go on with the database of the last time")
    parser.add_argument("--speed", type=float, default=1.0, metavar="N", help="let events follow N times as fast")
    parser.add_argument("--days", type=int, default=7, metavar="N", help="days of history")
    parser.add_argument("--any-port", action="store_true", help="leave ports 8080 to 8082 to others")
    parser.add_argument("--folder", type=Path, default=Path("demo"), help="where files are; default: demo")
    return parser.parse_args()


def _interrupt(_: int, __: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    options = _options()
    for ending in (signal.SIGINT, signal.SIGTERM):  # SIGINT is ignored in what a shell starts in the background
        signal.signal(ending, _interrupt)
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        stack.callback(print, "ended", flush=True)
        try:
            Demo(options, stack).run()
        finally:  # a second Ctrl-C must not leave anything behind
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print("\nending ...", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
