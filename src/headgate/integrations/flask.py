"""Flask: an extension for all routes, with a decorator for some.

::

    app = Flask(__name__)
    limits = RateLimits(app, limits="100/minute")

    @app.get("/search")
    @limits.limit("5/minute")
    def search(): ...

The limits of a route and those for all routes are decided together, before the view is called. Functions such as `key`
get Flask's request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from http import HTTPStatus
from typing import Any, TypeVar, Unpack

from flask import Blueprint, Flask, Request, Response, current_app, g, make_response, request
from werkzeug.exceptions import HTTPException, TooManyRequests

from headgate.core.errors import UsageError
from headgate.integrations.answers import Refusal
from headgate.integrations.budget import Budget, BudgetSettings, Quotas, QuotasOfKey
from headgate.integrations.limiter import LimiterSettings, RequestLimiter, nothing_limited
from headgate.integrations.routes import budgets_of, check_decorator_order, decorate_view, function_name, route_name
from headgate.integrations.wsgi import OURS, exchange_of
from headgate.web.errors import InvalidSettings
from headgate.web.problem import CONTENT_TYPE

__all__ = ["RateLimited", "RateLimits", "Refused"]
F = TypeVar("F", bound="Callable[..., Any] | Blueprint")
_EXTENSION = "headgate"
_CURRENT = "headgate_request"
"""The attribute of `flask.g` that has the `_Request`."""


class Refused(HTTPException):
    """A request is refused, but not because of a limit: see `Refusal.status`. The response is a problem document."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.code, self.refusal = refusal.status, refusal

    def get_response(self, *_: Any, **__: Any) -> Any:
        """Return the response, to which `RateLimits` adds the header fields."""
        if self.refusal.answer is not None:
            return make_response(self.refusal.answer)
        return Response(self.refusal.problem.encode(), self.refusal.status, content_type=CONTENT_TYPE)


class RateLimited(Refused, TooManyRequests):
    """A request is refused by a limit: 429.

    The response is a problem document, unless the application has an error handler for this class, for 429, or for
    `HTTPException`.
    """


class RateLimits:
    """The extension. Settings are those of `LimiterSettings`; the dictionary ``app.config["HEADGATE"]`` adds to them.

    It can be used with several applications, which count separately unless they share a store.

    Args:
        app: the application; None: call `init_app` later.
    """

    def __init__(self, app: Flask | None = None, **settings: Unpack[LimiterSettings]) -> None:
        self._settings = settings
        self._budgets: list[Budget] = []
        self._hooks: list[_Hooks] = []
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask, **settings: Unpack[LimiterSettings]) -> None:
        """Limit an application, with additional settings. Raises UsageError, also for the views decorated so far."""
        if _EXTENSION in app.extensions:
            raise UsageError("the application already has rate limits: use one RateLimits for all of them")
        configured = app.config.get("HEADGATE", {})
        if not isinstance(configured, Mapping):
            raise InvalidSettings("HEADGATE must be a dictionary, such as {'limits': '100/minute'}")
        merged: Any = {**self._settings, **settings, **configured}
        limiter = app.extensions[_EXTENSION] = RequestLimiter(merged)
        hooks = _Hooks(app, limiter)
        self._hooks.append(hooks)
        app.before_request(hooks.before)
        app.after_request(hooks.after)
        for budget in (*limiter.budgets, *self._budgets):
            hooks.add(budget)

    @property
    def limiter(self) -> RequestLimiter:
        return _limiter()

    def limit(self, limits: Quotas | QuotasOfKey | None = None, **terms: Unpack[BudgetSettings]) -> Callable[[F], F]:
        """Return a decorator that limits a view, or all views of a blueprint; see `Budget` for its options."""
        budget = Budget(limits=limits, **terms)
        for hooks in self._hooks:
            hooks.add(budget)
        self._budgets.append(budget)

        def decorate(target: F) -> F:
            if isinstance(target, Blueprint):
                target.before_request(lambda: _check_blueprint(budget))
                return target
            limited: F = decorate_view(target, budget, partial(_limited, target))
            return limited

        return decorate

    def reset(self, key: str, name: str = "default", *, limits: Quotas | None = None) -> None:
        """Forget what a key used, in the current application; see `RequestLimiter.reset`."""
        self.limiter.reset(key, name, limits=limits)


class _Hooks:
    """What an application calls before and after each request."""

    def __init__(self, app: Flask, limiter: RequestLimiter) -> None:
        self._app, self._limiter, self._views = app, limiter, app.view_functions
        self._is_checked = self._has_budgets = self._refunds_errors = False

    def add(self, budget: Budget) -> None:
        """Validate a budget, and watch for errors if it refunds them."""
        self._limiter.validate(budget)
        self._has_budgets = True
        if budget.refund_on_error and not self._refunds_errors:
            self._refunds_errors = True
            self._app.teardown_request_funcs.setdefault(None, []).append(self._teardown)

    def before(self) -> None:
        """Check a request. Raises Refused."""
        if not self._is_checked:  # all routes are known at the first request; an error is raised at every request
            if self._limiter.enabled and not self._has_budgets:
                raise nothing_limited("RateLimits")
            check_decorator_order(self._views.values())
            self._is_checked = True
        current = _Request(self._limiter, request._get_current_object(), self._views)  # type: ignore[attr-defined]  # noqa: SLF001
        setattr(g, _CURRENT, current)
        current.exchange.covered = frozenset(current.budgets)
        current.check(self._limiter.with_own(current.budgets))

    def after(self, response: Response) -> Response:
        current = _current()
        exchange, refusal, headers = current.exchange, current.refusal, response.headers
        if refusal is not None:
            for name, value in refusal.fields:
                headers[name] = value
            return response
        if exchange.is_open:
            self._limiter.run(exchange.respond(response, response.status_code))
        if OURS.isdisjoint([name.lower() for name, _ in headers]):
            headers.extend(exchange.fields())
        return response

    def _teardown(self, error: BaseException | None) -> None:
        current: _Request | None = g.get(_CURRENT)
        if error is not None and current is not None and current.exchange.is_open:
            self._limiter.run(current.exchange.fail())


def _limited(view: Any, budgets: list[Budget]) -> Any:
    """Return a view with budgets, which are checked here unless `_Hooks.before` has found them."""

    @wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        current = _current()
        with current.exchange.covering(budgets) as rest:
            if rest:  # the view serves a part of the route, or another decorator hides it
                current.check(rest, f"{current.route}:{function_name(view)}")
            return current_app.ensure_sync(view)(*args, **kwargs)

    return limited


class _Request:
    __slots__ = ("budgets", "exchange", "refusal", "route")

    def __init__(self, limiter: RequestLimiter, current: Request, views: Mapping[str, Any]) -> None:
        self.exchange = exchange_of(limiter, current, current.environ)
        rule = current.url_rule
        host = "" if rule is None else rule.host or rule.subdomain or ""
        self.route = "" if rule is None else route_name(rule.methods or ("WEBSOCKET",), f"{host}{rule.rule}")
        self.budgets = budgets_of(views.get(current.endpoint or ""))
        """Of the view."""
        self.refusal: Refusal | None = None

    def check(self, budgets: Sequence[Budget], route: str | None = None) -> None:
        """Take the cost from the budgets. Raises Refused."""
        limiter: Any = self.exchange.limiter
        self.refusal = refusal = limiter.check(self.exchange, budgets, self.route if route is None else route)
        if refusal is not None:
            raise RateLimited(refusal) if refusal.status == HTTPStatus.TOO_MANY_REQUESTS else Refused(refusal)


def _limiter() -> RequestLimiter:
    limiter = current_app.extensions.get(_EXTENSION)
    if not isinstance(limiter, RequestLimiter):
        raise UsageError("the limit of a route needs the extension: RateLimits(app), or init_app(app)")
    return limiter


def _current() -> _Request:
    current: _Request | None = g.get(_CURRENT)
    if current is None:
        current = _Request(_limiter(), request, current_app.view_functions)
        setattr(g, _CURRENT, current)
    return current


def _check_blueprint(budget: Budget) -> None:
    current = _current()
    if not any(each.replaces for each in current.budgets):
        current.check((budget,))
