"""Random requests of logs, the same in every run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime

from headgate.replay.logs import Entry

START = 1_793_000_000_000_000
"""A moment in October 2026, in microseconds since the epoch."""
SECOND = 1_000_000
RULES = """
version: 1
rules:
  - {id: orders-user, dimension: user, endpoint: /orders/**, limit: 5, window: 1m}
  - {id: orders-day, dimension: user, endpoint: /orders/**, limit: 40, window: 1d, algorithm: fixed_window}
  - {id: per-ip, dimension: ip, limit: 10, window: 10s, algorithm: sliding_window_counter}
  - {id: login-ip, dimension: ip, endpoint: /login, limit: 2, window: 1m, shadow: true}
  - {id: login-half, dimension: ip, endpoint: /login, limit: 3, window: 1m, enforce_percent: 50}
  - {id: everybody, dimension: global, limit: 40, window: 1s, algorithm: leaky_bucket}
  - {id: never, dimension: user, endpoint: /admin/**, limit: 1, window: 1h}
tiers:
  gold: {orders-user: {limit: 50}}
users:
  u1: {tier: gold}
  u2: {overrides: {orders-user: {limit: 1, until: 2026-10-26T07:37:00Z}}}
deny:
  - ip: 10.0.0.66
"""


def entries(count: int, *, users: int = 500, per_second: float = 30) -> Iterator[Entry]:
    """Return requests: a few users make most of them, some lines are late, and some requests are invalid."""
    chance = random.Random(24)
    at = START
    for number in range(count):
        at += int(chance.expovariate(per_second) * SECOND)
        user = int(users ** chance.random())
        path = chance.choice(("/orders", "/orders/17", "/login", "/", "/a/../b" if number % 97 == 0 else "/search"))
        late = chance.randrange(3 * SECOND) if number % 11 == 0 else 0
        name = f"u{user}" if user % 3 else ""
        address = f"10.0.{user >> 8}.{user & 255}" if user % 5 else f"2001:db8::{user:x}"
        yield Entry(at - late, address, name, "POST" if path == "/orders" else "GET", path, "", 200)


def line(
    second: int = 0, address: str = "192.0.2.1", user: str = "-", path: str = "/", *, agent: str = "curl/8"
) -> str:
    """Return a line of nginx, some seconds after `START`."""
    at = datetime.fromtimestamp(START // SECOND + second, UTC)
    return f'{address} - {user} [{at:%d/%b/%Y:%H:%M:%S} +0000] "GET {path} HTTP/1.1" 200 5 "-" "{agent}"\n'
