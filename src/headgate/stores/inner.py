"""What stores around a store have in common: how they look at the inner one, and at their options."""

from __future__ import annotations

import inspect

from headgate.core.errors import InvalidStore
from headgate.core.numbers import short


def check_colour(store: object, *, asynchronous: bool, outer: type) -> None:
    """Refuse what is no store object, or one that the store `outer` cannot call."""
    check = getattr(store, "check", None)
    if isinstance(store, str | type) or check is None:
        raise InvalidStore(f"a store object is needed, not {short(store)}: open it with open_store or open_async_store")
    if inspect.iscoroutinefunction(check) != asynchronous:
        name = outer.__name__.removeprefix("Async")
        raise InvalidStore(f"{type(store).__name__} is for the other of {name} and Async{name}")


def microseconds(name: str, seconds: object, *, or_none: bool = False) -> int:
    """Return an option that is given in seconds, up to an hour; 0 only where it may be none."""
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        if 0 < seconds <= 3600:
            return max(1, round(seconds * 1_000_000))
        if seconds == 0 and or_none:
            return 0
    accepted = "from 0 to 3600" if or_none else "above 0 and up to 3600"
    raise InvalidStore(f"{name} must be a number of seconds {accepted}, not {short(seconds)}")
