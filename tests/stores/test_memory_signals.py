"""Signal handlers that raise, at any instant of a check; in a process of its own, for no other code is ready for it.

(A tool that traces the tests, such as coverage, would itself be left with its lock held.)
"""

from __future__ import annotations

import subprocess
import sys

INTERRUPTIONS = """
import signal
from headgate import Limiter, MemoryStore

class Interrupted(Exception):
    pass

def interrupt(*_):
    raise Interrupted

store = MemoryStore()
texts = ["1000000/s", "1000000/minute", "1000000/hour", "1000000/day"]
limiters = [Limiter(texts[: limits + 1], store=store, name=str(limits)) for limits in range(4)]
signal.signal(signal.SIGALRM, interrupt)
for number in range(1000):
    limiter = limiters[number % 4]
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002 + number * 1e-7)
        while True:
            limiter.check("user")
    except Interrupted:
        assert not store._lock._is_owned(), f"interruption {number} left the lock held"
"""


def test_a_signal_handler_that_raises_leaves_the_lock_free() -> None:
    """Ctrl-C, or a task's time limit."""
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTIONS], capture_output=True, text=True, check=False, timeout=300
    )
    assert result.returncode == 0, result.stderr
