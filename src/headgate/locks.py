"""Locks that are safe with forks and reentrant calls.

* A process may fork while another thread holds a lock, which nothing would release in the child. So the forking thread
  holds all of these locks during the fork, and both processes release them. It acquires the newest first: newer objects
  may call older ones while they hold their lock, never the other way round.
* A signal handler or a ``__del__`` may run inside a call and make another one in the same thread. So these locks are
  reentrant. They only exclude other threads: data read under such a lock may have changed before it is replaced.
"""

from __future__ import annotations

import os
import sys
import threading
from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    from _thread import RLock

_numbers = count()
_locks: WeakValueDictionary[int, RLock] = WeakValueDictionary()


class _Forking(threading.local):
    """The locks that a thread holds during a fork."""

    def __init__(self) -> None:
        self.held: list[RLock] = []


_forking = _Forking()


def new_lock() -> RLock:
    """Return a reentrant lock that is never held in a forked child."""
    lock = _locks[next(_numbers)] = threading.RLock()
    return lock


def _acquire_all() -> None:
    for reference in reversed(_locks.valuerefs()):
        lock = reference()
        if lock is not None:
            lock.acquire()
            _forking.held.append(lock)


def _release_all() -> None:
    while _forking.held:
        _forking.held.pop().release()


if sys.platform != "win32":
    os.register_at_fork(before=_acquire_all, after_in_parent=_release_all, after_in_child=_release_all)
