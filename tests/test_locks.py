"""A fork, a signal handler or a ``__del__`` in the middle of a check: no caller hangs, and no count is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from headgate import Limiter, MemoryStore
from headgate.testing import ManualClock
from tests.servers import free_port

FORKING = """
import os, signal, sys, threading, time, warnings
from headgate import Limiter, MemoryStore
from headgate.clock import SystemClock
from headgate.stores import open_store
from headgate.stores.cached import CachedStore

warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12: a fork with threads

class SlowClock(SystemClock):  # read with locks held: at a fork, another thread nearly always holds one
    def now(self):
        time.sleep(0.001)
        return super().now()

    def ticks(self):
        time.sleep(0.001)
        return super().ticks()

def store():
    return eval(sys.argv[1])

limiters = [Limiter("1000000/s", store=store()), Limiter("1000000/s; 1000000/m", store=store())]
over = threading.Event()

def work():
    while not over.is_set():
        for limiter in limiters:
            limiter.check("user")
            limiter.peek("user")

threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
for _ in range(10):
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # ends it, should it hang
        for limiter in limiters:
            limiter.check("user")
            limiter.peek("user")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
over.set()
for thread in threads:
    thread.join()
"""

FORKING_IN_LINE = """
import os, signal, threading, time, warnings
from headgate import Limiter

warnings.simplefilter("ignore", DeprecationWarning)
limiter = Limiter("1/hour")
limiter.check("user")
threading.Thread(target=limiter.acquire, args=("user",), daemon=True).start()
while not limiter._queues._queues:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    signal.alarm(60)
    limiter.reset("user")
    os._exit(0 if limiter.acquire("user") else 1)
assert os.waitpid(child, 0)[1] == 0
"""

INTERRUPTED = """
import signal
from headgate import Limiter
from headgate.testing import ManualClock

limiter = Limiter("1000000000/day; 1000000000/hour", clock=ManualClock())
inside = []
signal.signal(signal.SIGALRM, lambda *_: inside.append(limiter.check("user").allowed))
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
outside = 0
while len(inside) < 2000:
    outside += limiter.check("user").allowed
signal.setitimer(signal.ITIMER_REAL, 0)
print([part.used for part in limiter.peek("user").limits] == [outside + len(inside)] * 2)
"""


def run(script: str, *arguments: str) -> str:
    """Run a script in a process of its own; one that hangs is ended, and fails."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "store",
    [
        "MemoryStore(clock=SlowClock())",
        "CachedStore(MemoryStore(clock=SlowClock()), denials=3600)",
        f"open_store('redis://127.0.0.1:{free_port()}')",
        f"open_store('redis+cluster://127.0.0.1:{free_port()}')",
    ],
    ids=["memory", "cached", "redis away", "cluster away"],
)
def test_a_child_of_a_process_whose_threads_were_checking_does_not_hang(store: str) -> None:
    if "redis" in store:
        store = f"__import__('headgate.stores.failover').stores.failover.FailoverStore({store})"
    run(FORKING, store)


def test_callers_in_a_forked_child_do_not_queue_behind_its_parents_threads() -> None:
    run(FORKING_IN_LINE)


def test_a_signal_handler_that_checks_inside_a_check_takes_its_own() -> None:
    assert run(INTERRUPTED) == "True\n"


def interrupted(at: int, work: Callable[[], object], inside: Callable[[], object]) -> bool:
    """Do `work`, and `inside` it once, where handlers and finalizers can run: at its `at`-th call or return, also of C.

    Says whether it came to that.
    """
    left = at

    def look(_frame: object, event: str, _argument: object) -> None:
        nonlocal left
        if event in {"call", "return", "c_call", "c_return"}:
            left -= 1
            if left == 0:
                sys.setprofile(None)
                inside()

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(before)
    return left <= 0


QUOTAS = [
    "3/hour",
    "3/hour sliding_window_log",
    "3/hour; 5/day",
    "3/hour token_bucket; 5/d fixed_window; 9/d gcra",
    "3/hour; 4/day; 5/week; 6/week gcra",
]


@pytest.mark.parametrize("quotas", QUOTAS)
@pytest.mark.parametrize("used", [0, 1], ids=["new key", "known key"])
def test_a_check_inside_a_check_is_decided_at_any_point_as_if_it_came_before_or_after(quotas: str, used: int) -> None:
    for at in count(1):
        limiter, answers = Limiter(quotas, clock=ManualClock()), list[bool]()
        for _ in range(used):
            limiter.check("user")

        def check(limiter: Limiter = limiter, answers: list[bool] = answers) -> None:
            answers.append(limiter.check("user", 2).allowed)

        reached = interrupted(at, check, check)
        if not reached:
            break
        assert sorted(answers) == [False, True], f"at {at}"
        assert [part.used for part in limiter.peek("user").limits] == [used + 2] * len(limiter.quotas), f"at {at}"
    assert at > 10


@pytest.mark.parametrize("verb", ["check", "check_once", "refund", "reset", "peek"])
@pytest.mark.parametrize("within", ["check", "check_once", "refund", "reset", "peek", "sweep"])
def test_no_verb_inside_another_breaks_the_books(verb: str, within: str) -> None:
    """Also while states are cleared, keys share states, and one of the two empties what the other is looking at."""
    for at in count(1):
        clock = ManualClock()
        store = MemoryStore(max_keys=6, clock=clock)
        limiter = Limiter("3/minute; 5/hour", store=store)
        brief = Limiter("3/s", store=store, name="brief")
        for number in range(3):
            brief.check(f"user:{number}")
        limiter.check("user:0")

        def do(verb: str, key: str, limiter: Limiter = limiter, brief: Limiter = brief) -> None:
            if verb == "sweep":
                brief.check("another")
            elif verb == "check_once":
                limiter.check_once(key, "retried")
            else:
                getattr(limiter, verb)(key)

        clock.advance(5)
        reached = interrupted(at, lambda: do(within, "user:0"), lambda: do(verb, "user:0"))
        for number in range(5):
            do("check", f"user:{number}")
        clock.advance(7200)
        for _ in range(12):
            clock.advance(1)
            brief.check("last")
        assert len(store) == 1, f"at {at}"
        if not reached:
            break
    assert at > 5


@pytest.mark.parametrize("is_full", [False, True], ids=["filled meanwhile", "room meanwhile"])
def test_a_key_gets_no_fresh_budget_when_the_room_for_it_changes_inside_a_check(is_full: bool) -> None:  # noqa: FBT001
    """The store is filled there, or a state ends, and the same key is used there."""
    for at in count(1):
        clock = ManualClock()
        store = MemoryStore(max_keys=1, clock=clock)
        limiter, brief = Limiter("5/hour", store=store), Limiter("1/s", store=store, name="brief")
        answers = list[bool]()

        def check(times: int, limiter: Limiter = limiter, answers: list[bool] = answers) -> None:
            answers.extend(limiter.check("user").allowed for _ in range(times))

        def change(brief: Limiter = brief, clock: ManualClock = clock) -> None:
            if is_full:
                clock.advance(2)  # and the other state has ended
            else:
                brief.check("another")
            check(3)

        if is_full:
            brief.check("another")
            check(2)
        reached = interrupted(at, lambda: check(1), change)
        check(6)
        assert sum(answers) == 5, f"at {at}"
        if not reached:
            break
    assert at > 10


def test_a_request_that_is_sent_again_inside_itself_counts_once() -> None:
    for at in count(1):
        limiter, answers = Limiter("5/hour; 9/day", clock=ManualClock()), list[bool]()

        def check(limiter: Limiter = limiter, answers: list[bool] = answers) -> None:
            answers.append(limiter.check_once("user", "order-1").allowed)

        reached = interrupted(at, check, check)
        check()
        assert answers[-2:] == [True, True], "the interrupted call, and the next one"
        assert [part.used for part in limiter.peek("user").limits] == [1, 1], f"at {at}"
        if not reached:
            break
    assert at > 10


def test_a_refund_that_is_made_again_inside_itself_is_made_once() -> None:
    for at in count(1):
        limiter = Limiter("5/hour; 9/day", clock=ManualClock())
        refund = partial(limiter.refund, "user", limiter.check("user"))
        limiter.check("user", 3)
        reached = interrupted(at, refund, refund)
        refund()
        assert [part.used for part in limiter.peek("user").limits] == [3, 3], f"at {at}"
        if not reached:
            break
    assert at > 10
