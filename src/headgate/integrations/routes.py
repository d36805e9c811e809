"""Names of routes and functions, and the budgets of decorated views."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from typing import Any

from headgate.core.errors import UsageError
from headgate.integrations.budget import Budget

_NO_ROUTE = "-"
_BUDGETS = "__headgate_budgets__"
"""The attribute of a decorated view that has its budgets."""
_LIMITED_AS = "__headgate_limited__"
"""The attribute of a view that has its decorated form."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.:/-]+")
_NUMBERED = re.compile(r":[0-9]+$")
_LONGEST_NAME = 60
"""Characters of a derived name, so that a number fits behind it."""


@lru_cache(maxsize=4096)
def budget_name(route: str, nth: int = 1) -> str:
    """Return the name of the n-th budget of a route: unique, and without characters that a name cannot have."""
    route = route or _NO_ROUTE
    name = _NOT_IN_NAMES.sub("_", route)
    if name != route or len(name) > _LONGEST_NAME or _NUMBERED.search(name):  # a second budget's name ends like that
        mark = blake2b(route.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
        name = f"{name[-_LONGEST_NAME + len(mark) + 1 :]}:{mark}"
    return name if nth == 1 else f"{name}:{nth}"


def route_name(methods: Iterable[str], path: str) -> str:
    """Return the name of a route. HEAD and OPTIONS are left out where frameworks add them to other methods."""
    own = sorted(set(methods).difference(("HEAD", "OPTIONS"))) or sorted(methods)
    return f"{'-'.join(own)}:{path}"


def function_name(function: Callable[..., Any]) -> str:
    function = inspect.unwrap(function)
    kind = type(function)
    return f"{getattr(function, '__module__', kind.__module__)}.{getattr(function, '__qualname__', kind.__qualname__)}"


def require_name(function: Callable[..., Any], budget: Budget) -> None:
    """Reject a budget without a name if other functions may have the name of this one. Raises UsageError."""
    inner = inspect.unwrap(function)
    is_bound = inspect.ismethod(inner) and not inspect.isclass(inner.__self__)
    is_unique = inspect.isroutine(inner) and not is_bound and "<" not in inner.__qualname__
    if budget.limits is not None and not budget.name and not is_unique:
        raise UsageError(
            f"{function_name(function)} may name several functions, which would share one limit: set a unique name, "
            "such as name='mails'"
        )


def budgets_of(view: Any) -> list[Budget]:
    found: list[Budget] = getattr(view, _BUDGETS, [])
    return found


def decorate_view(view: Callable[..., Any], budget: Budget, limit: Callable[[list[Budget]], Any]) -> Any:
    """Return a view, made by `limit`, with a budget besides those of `view`, which other routes may use unchanged."""
    budgets = [budget, *budgets_of(view)]
    limited = limit(budgets)
    setattr(limited, _BUDGETS, budgets)
    vars(limited).pop(_LIMITED_AS, None)  # copied from `view`, which had a limit before
    with suppress(AttributeError):  # bound methods have no attributes of their own
        setattr(view, _LIMITED_AS, limited)
    return limited


def check_decorator_order(endpoints: Iterable[Any]) -> None:
    """Reject routes of a function that was limited after its registration: the route is not limited."""
    found = list(endpoints)
    for endpoint in found:
        limited = first = getattr(endpoint, _LIMITED_AS, None)
        while limited is not None and not any(each is limited for each in found):
            limited = getattr(limited, _LIMITED_AS, None)
        if first is not None and limited is None:
            name = function_name(endpoint)
            raise UsageError(f"{name} is a route without its limit: put the limit below the route's decorator")
