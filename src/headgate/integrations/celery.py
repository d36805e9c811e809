"""Celery: tasks that are too many wait for their turn, whichever worker they are on; none is dropped.

::

    limits = TaskLimits(store="redis://localhost:6379/0")

    @app.task
    @limits.limit("10/minute", key=lambda user: f"user:{user}")
    def send(user): ...

A task that is refused is sent again, under the same id, to be run when it could pass; that is not one of its retries.
Where a leaky bucket queues (``"10/minute leaky_bucket queue"``), each task gets a time of its own, and is sent once;
otherwise those that wait ask again, somewhat apart. Functions, such as `key`, get the arguments of the task.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from functools import wraps
from inspect import unwrap
from typing import Any, TypeVar, Unpack

from celery import Task, current_task
from celery.exceptions import Ignore

from headgate.core.errors import UsageError
from headgate.core.quota import SECOND
from headgate.integrations.answers import Refusal
from headgate.integrations.budgets import Budget, BudgetSettings, Quotas, QuotasOfKey, check_name, name_of_function
from headgate.integrations.functions import CallRefused, Invocation, budget_of, exceeded, key_of
from headgate.integrations.gate import Gate, GateSettings
from headgate.integrations.visit import Visit

__all__ = ["TaskLimits"]
F = TypeVar("F", bound=Callable[..., Any])
SPREAD = 0.1
"""How much later than it could pass a task asks again, at most, as a share of the wait: so not all come at once."""
_LIMITS = "__headgate_limits__"
"""The attribute by which a decorated task has its gate and its budgets."""
_ADMITTED = "headgate-admitted"
"""The header of a task that has its place in a queue already, with the number of its retries: the next counts anew."""


class TaskLimits:
    """Limits of tasks. The settings are those of `GateSettings`; `limits` is for all decorated tasks together."""

    def __init__(self, **settings: Unpack[GateSettings]) -> None:
        given: Any = {**settings, "key": key_of(settings.get("key"))}
        self.gate = Gate(given)

    def limit(self, limits: Quotas | QuotasOfKey | None = None, **terms: Unpack[BudgetSettings]) -> Callable[[F], F]:
        """Return a decorator that limits a task, below that of Celery; see `Budget` for what it may be told."""
        if terms.get("count_when") is not None:
            raise UsageError("a task has no response: count_when is for requests")
        given: Any = terms
        (budget,) = self.gate.checked(budget_of(limits, given))

        def decorate(function: F) -> F:
            if isinstance(function, Task):
                raise UsageError(f"{function.name} is a task already: put its limit below the decorator of Celery")
            decorated: Any = self._decorated(function, budget)
            limited: F = decorated
            return limited

        return decorate

    def _decorated(self, function: Callable[..., Any], budget: Budget) -> Callable[..., Any]:
        gate, route = self.gate, name_of_function(function)
        known: tuple[Gate, list[Budget]] | None = getattr(function, _LIMITS, None)
        if known is not None:  # all are decided together: a place in the queue of one is not a place in another's
            if known[0] is not gate:
                raise UsageError(f"{route} has limits already: all limits of a task are of one TaskLimits")
            known[1].insert(0, budget)
            return function
        budgets = [budget]

        @wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            visit = Visit(gate, Invocation(function, args, kwargs))
            if not _is_admitted():
                if current_task and unwrap(current_task.run) is unwrap(function):
                    name = current_task.name
                else:
                    check_name(function, budget)
                    name = route
                refusal = gate.enter(visit, (*gate.budgets, *budgets), name)
                if refusal is not None:
                    _defer(visit, refusal, name)
                if visit.delay_us and _is_called():
                    gate.clock.wait(threading.Event(), gate.clock.ticks() + visit.delay_us)
                elif visit.delay_us:
                    _send_again(visit.delay_us / SECOND, is_admitted=True)
                    raise Ignore
            try:
                return function(*args, **kwargs)
            except Exception:
                gate.run(visit.fail())
                raise

        setattr(limited, _LIMITS, (gate, budgets))
        return limited


def _is_called() -> bool:
    """Whether a task is called as a function, or eagerly: nobody would run it later."""
    return bool(not current_task or current_task.request.called_directly or current_task.request.is_eager)


def _is_admitted() -> bool:
    headers = (current_task.request.headers if current_task else None) or {}
    return bool(headers) and headers.get(_ADMITTED) == str(current_task.request.retries)


def _defer(visit: Visit, refusal: Refusal, route: str) -> None:
    """Let a task come again when it could pass. Raises Ignore, which ends it for now; or says why it never could."""
    decision = refusal.decision
    if decision is None:
        raise CallRefused(refusal.detail, refusal.status)
    if _is_called():
        raise exceeded(visit, route, decision)
    _send_again(decision.retry_after * (1 + SPREAD * random.random()), is_admitted=False)
    raise Ignore


def _send_again(countdown: float, *, is_admitted: bool) -> None:
    task = current_task
    request = task.request
    headers = {**(request.headers or {}), **({_ADMITTED: str(request.retries)} if is_admitted else {})}
    again = task.signature_from_request(
        request, request.args, request.kwargs, countdown=countdown, retries=request.retries, headers=headers
    )
    again.apply_async()
