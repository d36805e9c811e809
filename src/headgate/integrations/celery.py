"""Celery: tasks above a limit wait for their turn, across all workers; none is dropped.

::

    limits = TaskLimits(store="redis://localhost:6379/0")

    @app.task
    @limits.limit("10/minute", key=lambda user: f"user:{user}")
    def send(user): ...

A refused task is sent again under the same id, for the time when it could run; that is not one of its retries. In the
queue of a leaky bucket (``"10/minute leaky_bucket queue"``), each task has a time of its own and is sent again once;
otherwise waiting tasks are checked again, at slightly different times. Functions such as `key` get the arguments of the
task.
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
from headgate.integrations.budget import Budget, BudgetSettings, Quotas, QuotasOfKey
from headgate.integrations.exchange import Exchange
from headgate.integrations.functions import CallRefused, Invocation, budget_of, key_of, limit_error
from headgate.integrations.limiter import LimiterSettings, RequestLimiter
from headgate.integrations.routes import function_name, require_name

__all__ = ["TaskLimits"]
F = TypeVar("F", bound=Callable[..., Any])
SPREAD = 0.1
"""The largest random addition to a wait, as a share of it, so that tasks do not return all at once."""
_LIMITS = "__headgate_limits__"
"""The attribute of a decorated task that has its limiter and its budgets."""
_ADMITTED = "headgate-admitted"
"""The header of a task that has waited in a queue, with the number of its retries: the next retry counts again."""


class TaskLimits:
    """Limits of tasks. The settings are those of `LimiterSettings`; `limits` is for all decorated tasks together."""

    def __init__(self, **settings: Unpack[LimiterSettings]) -> None:
        given: Any = {**settings, "key": key_of(settings.get("key"))}
        self.limiter = RequestLimiter(given)

    def limit(self, limits: Quotas | QuotasOfKey | None = None, **terms: Unpack[BudgetSettings]) -> Callable[[F], F]:
        """Return a decorator that limits a task, below that of Celery; see `Budget` for its options."""
        if terms.get("count_when") is not None:
            raise UsageError("count_when is for requests, because tasks have no response: remove it")
        given: Any = terms
        (budget,) = self.limiter.validate(budget_of(limits, given))

        def decorate(function: F) -> F:
            if isinstance(function, Task):
                raise UsageError(f"{function.name} is already a task: put its limit below the decorator of Celery")
            decorated: Any = self._decorate(function, budget)
            limited: F = decorated
            return limited

        return decorate

    def _decorate(self, function: Callable[..., Any], budget: Budget) -> Callable[..., Any]:
        limiter, own_name = self.limiter, function_name(function)
        known: tuple[RequestLimiter, list[Budget]] | None = getattr(function, _LIMITS, None)
        if known is not None:  # all are decided together: a task waits in one queue only
            if known[0] is not limiter:
                raise UsageError(f"{own_name} already has limits: use one TaskLimits for all limits of a task")
            known[1].insert(0, budget)
            return function
        budgets = [budget]

        @wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            exchange = Exchange(limiter, Invocation(function, args, kwargs))
            if not _is_admitted():
                name = own_name
                if current_task and unwrap(current_task.run) is unwrap(function):
                    name = current_task.name
                else:
                    require_name(function, budget)
                refusal = limiter.check(exchange, (*limiter.budgets, *budgets), name)
                if refusal is not None:
                    _defer(exchange, refusal, name)
                if exchange.delay_us and _is_called():
                    limiter.clock.wait(threading.Event(), limiter.clock.ticks() + exchange.delay_us)
                elif exchange.delay_us:
                    _send_again(exchange.delay_us / SECOND, is_admitted=True)
                    raise Ignore
            try:
                return function(*args, **kwargs)
            except Exception:
                limiter.run(exchange.fail())
                raise

        setattr(limited, _LIMITS, (limiter, budgets))
        return limited


def _is_called() -> bool:
    """Whether a task is called as a function, or eagerly, so that it cannot be sent again."""
    return bool(not current_task or current_task.request.called_directly or current_task.request.is_eager)


def _is_admitted() -> bool:
    headers = (current_task.request.headers if current_task else None) or {}
    return bool(headers) and headers.get(_ADMITTED) == str(current_task.request.retries)


def _defer(exchange: Exchange, refusal: Refusal, name: str) -> None:
    """Send a refused task again. Raises Ignore, which ends it for now, or the error if it cannot be sent again."""
    decision = refusal.decision
    if decision is None:
        raise CallRefused(refusal.detail, refusal.status)
    if _is_called():
        raise limit_error(exchange, name, decision)
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
