"""How many files a process may have open, which bounds its connections: each of them is one."""

from __future__ import annotations

import logging
import resource

_LOG = logging.getLogger("headgate.server")
_SPARE = 128
"""For all that is no connection of a client: ports, the store, rules, counters, the event loop."""


def room_for(connections: int) -> int:
    """Return for how many connections there is room, up to what is wanted.

    Many systems let a process open 1024 files unless it asks for more, which it may up to another limit. Beyond that,
    connections would be closed without a word; so fewer are accepted then, and the log says so.
    """
    wanted = connections + _SPARE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):  # macOS has another limit beside the hard one
        raised = soft
    if raised >= wanted:
        return connections
    room = max(1, raised - _SPARE)
    _LOG.warning(
        "%d connections at most, not %d: this process may open %d files only (ulimit -n)", room, connections, raised
    )
    return room
