"""Locks that neither a fork nor an interruption turns into a trap.

* A process may fork while another of its threads holds a lock. The child has no such thread, so nobody would ever
  release it there. Therefore whoever forks holds all of these locks for that moment, and both processes release them.
  They are taken in one order, the newest first: what was made later may call what was made before while it holds its
  own, never the other way round.
* A signal handler, or a ``__del__``, may run at any point of a call and make another one, on the same thread. So these
  locks let the thread that holds them in again. They keep other threads out, and nothing else: what is read and then
  replaced under such a lock must still be what was read.
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
    """The locks that a thread holds while it forks."""

    def __init__(self) -> None:
        self.held: list[RLock] = []


_forking = _Forking()


def new_lock() -> RLock:
    """Return a lock that can be held again by the thread that holds it, and that no forked child finds held."""
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
