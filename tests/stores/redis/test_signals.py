"""Signals that come all the time, as a profiler sends them, do not stretch a deadline."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.servers import redis_server

ASKING = """
import signal, sys
from headgate import Limiter
limiter = Limiter("5/hour", store=sys.argv[1], on_store_failure="raise")
print(limiter.check("user").allowed, flush=True)
sys.stdin.readline()
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
try:
    limiter.check("user")
except Exception as error:
    print(type(error).__name__)
"""


def test_a_call_ends_though_signals_interrupt_it_again_and_again() -> None:
    with redis_server() as server:
        address = f"redis://127.0.0.1:{server.port}/0?timeout=1&connect_timeout=20"
        asking = subprocess.Popen(
            [sys.executable, "-c", ASKING, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert asking.stdout
        assert asking.stdout.readline() == "True\n"
        server.send(signal.SIGSTOP)
        try:
            said, _ = asking.communicate("go on\n", timeout=60)
        finally:
            asking.kill()
        assert said == "OutcomeUnknown\n"
