"""Flask: an extension for all routes, and its decorator for some.

::

    app = Flask(__name__)
    limits = RateLimits(app, limits="100/minute")

    @app.get("/search")
    @limits.limit("5/minute")
    def search(): ...

What a route and all routes are limited by is decided together, before the view is called. Functions, such as `key`, get
the request of Flask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from http import HTTPStatus
from typing import Any, TypeVar, Unpack

from flask import Blueprint, Flask, Request, Response, current_app, g, make_response, request
from werkzeug.exceptions import HTTPException, TooManyRequests

from headgate.core.errors import UsageError
from headgate.integrations.answers import Refusal
from headgate.integrations.budgets import (
    Budget,
    BudgetSettings,
    Quotas,
    QuotasOfKey,
    check_order,
    decorated_with,
    name_of_function,
    name_of_route,
    own_budgets,
)
from headgate.integrations.gate import Gate, GateSettings, nothing_limited
from headgate.integrations.wsgi import OURS, visit_of
from headgate.web.errors import InvalidSettings
from headgate.web.problem import CONTENT_TYPE

__all__ = ["RateLimited", "RateLimits", "Refused"]
F = TypeVar("F", bound="Callable[..., Any] | Blueprint")
_EXTENSION = "headgate"
_PASSING = "headgate_passing"
"""The attribute of `flask.g` by which a request has what is known of it."""


class Refused(HTTPException):
    """A request is refused, and not by a limit: see `Refusal.status`. It is answered by a problem document.

    Attributes:
        refusal: why, and what would be answered.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.code, self.refusal = refusal.status, refusal

    def get_response(self, *_: Any, **__: Any) -> Any:
        """Return what is answered; the fields are added to that, whoever answers."""
        if self.refusal.answer is not None:
            return make_response(self.refusal.answer)
        return Response(self.refusal.problem.encode(), self.refusal.status, content_type=CONTENT_TYPE)

    def __call__(self, environ: Any, start_response: Any) -> Iterable[bytes]:
        """Answer as a WSGI application: Flask makes a response of that, where the application has no error handler."""
        if self.refusal.answer is not None:
            return super().__call__(environ, start_response)
        body = self.refusal.problem.encode()
        headers = [("Content-Type", CONTENT_TYPE), ("Content-Length", str(len(body))), *self.refusal.fields]
        start_response(f"{self.code} {self.name.upper()}", headers)
        return [body]


class RateLimited(Refused, TooManyRequests):
    """A request is refused by a limit: 429.

    It is answered by a problem document, unless the application has an error handler for this class, for 429, or for
    all of `HTTPException`.
    """


class RateLimits:
    """The extension. Settings are those of `GateSettings`; ``app.config["HEADGATE"]``, a dictionary, has more of them.

    One of these may be used with several applications; each has a gate of its own.

    Args:
        app: the application; None: `init_app` is called for it later.
    """

    def __init__(self, app: Flask | None = None, **settings: Unpack[GateSettings]) -> None:
        self._settings = settings
        self._budgets: list[Budget] = []
        self._watched: dict[Gate, _Watch] = {}
        """What each application calls."""
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask, **settings: Unpack[GateSettings]) -> None:
        """Limit an application, by these settings besides. Raises UsageError, for its decorated views as well."""
        if _EXTENSION in app.extensions:
            raise UsageError("the application has rate limits already: give all of them to one RateLimits")
        configured = app.config.get("HEADGATE", {})
        if not isinstance(configured, Mapping):
            raise InvalidSettings("HEADGATE is a dictionary, such as {'limits': '100/minute'}")
        given: Any = {**self._settings, **settings, **configured}
        gate = Gate(given)
        app.extensions[_EXTENSION] = gate
        watch = self._watched[gate] = _Watch(app, gate)
        app.before_request(watch.before)
        app.after_request(watch.after)
        for budget in (*gate.budgets, *gate.checked(*self._budgets)):
            watch.know(budget)

    @property
    def gate(self) -> Gate:
        """The gate of the current application."""
        return _gate()

    def limit(self, limits: Quotas | QuotasOfKey | None = None, **terms: Unpack[BudgetSettings]) -> Callable[[F], F]:
        """Return a decorator that limits a view, or all views of a blueprint; see `Budget` for what it may be told."""
        budget = Budget(limits=limits, **terms)
        for gate, watch in self._watched.items():
            gate.checked(budget)
            watch.know(budget)
        self._budgets.append(budget)

        def decorate(what: F) -> F:
            if isinstance(what, Blueprint):
                what.before_request(lambda: _enter_blueprint(budget))
                return what
            limited: F = decorated_with(what, budget, partial(_limited, what))
            return limited

        return decorate

    def reset(self, key: str, name: str = "default", *, limits: Quotas | None = None) -> None:
        """Forget what a key used, see `Gate.reset`; where the application is current (``with app.app_context()``)."""
        self.gate.reset(key, name, limits=limits)


class _Watch:
    """What an application calls before and after each request. Each function costs it some, so there are few."""

    def __init__(self, app: Flask, gate: Gate) -> None:
        self._app, self._gate, self._views = app, gate, app.view_functions
        self._is_checked = self._has_budgets = self._sees_failures = False

    def know(self, budget: Budget) -> None:
        """Note that something is limited, and be told of failures if it gives back what they took."""
        self._has_budgets = True
        if budget.refund_on_error and not self._sees_failures:
            self._sees_failures = True
            self._app.teardown_request_funcs.setdefault(None, []).append(self._end)

    def before(self) -> None:
        """Let a request pass. Raises Refused."""
        if not self._is_checked:  # at the first request all routes are known; if this raises, it does at every one
            if self._gate.enabled and not (self._gate.budgets or self._has_budgets):
                raise nothing_limited("RateLimits")
            check_order(self._views.values())
            self._is_checked = True
        passing = _Passing(self._gate, request._get_current_object(), self._views)  # type: ignore[attr-defined]  # noqa: SLF001
        setattr(g, _PASSING, passing)
        own = passing.budgets
        if not own:
            passing.enter(self._gate.budgets)
            return
        passing.visit.ask(own)
        passing.enter(self._gate.with_own(own))

    def after(self, response: Response) -> Response:
        """Give back what does not count, and tell what is left."""
        passing = _passing()
        visit, refusal, headers = passing.visit, passing.refusal, response.headers
        if refusal is not None:
            told = dict(list(headers))  # all of them, if the answer is our own and nobody has added others since
            for name, value in refusal.fields:
                if told.get(name) != value:
                    headers[name] = value
            return response
        if visit.is_open:
            self._gate.run(visit.respond(response, response.status_code))
        for name, _ in headers:
            if name.lower() in OURS:
                return response
        headers.extend(visit.fields())
        return response

    def _end(self, error: BaseException | None) -> None:
        passing: _Passing | None = g.get(_PASSING)
        if error is not None and passing is not None and passing.visit.is_open:
            self._gate.run(passing.visit.fail())


def _limited(view: Any, budgets: list[Budget]) -> Any:
    """Return a view that has budgets. They are found before it is called; if they were hidden, they are found then."""

    @wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        passing = _passing()
        with passing.visit.asking(budgets) as rest:
            if rest:  # it serves a part of the route, or another decorator hides it
                passing.enter(rest, f"{passing.route}:{name_of_function(view)}")
            return current_app.ensure_sync(view)(*args, **kwargs)

    return limited


class _Passing:
    """What is known of the request that is served: its visit, and why it was refused."""

    __slots__ = ("budgets", "refusal", "route", "visit")

    def __init__(self, gate: Gate, current: Request, views: Mapping[str, Any]) -> None:
        self.visit = visit_of(gate, current, current.environ)
        rule = current.url_rule
        host = "" if rule is None else rule.host or rule.subdomain or ""
        self.route = "" if rule is None else name_of_route(rule.methods or ("WEBSOCKET",), f"{host}{rule.rule}")
        self.budgets = own_budgets(views.get(current.endpoint or ""))
        """Of the view."""
        self.refusal: Refusal | None = None

    def enter(self, budgets: Sequence[Budget], route: str | None = None) -> None:
        """Take what budgets cost. Raises Refused."""
        gate: Any = self.visit.gate
        self.refusal = refusal = gate.enter(self.visit, budgets, self.route if route is None else route)
        if refusal is not None:
            raise RateLimited(refusal) if refusal.status == HTTPStatus.TOO_MANY_REQUESTS else Refused(refusal)


def _gate() -> Gate:
    gate = current_app.extensions.get(_EXTENSION)
    if not isinstance(gate, Gate):
        raise UsageError("a limit of a route needs the extension: RateLimits(app), or init_app(app)")
    return gate


def _passing() -> _Passing:
    passing: _Passing | None = g.get(_PASSING)
    if passing is None:
        passing = _Passing(_gate(), request, current_app.view_functions)
        setattr(g, _PASSING, passing)
    return passing


def _enter_blueprint(budget: Budget) -> None:
    passing = _passing()
    if not any(each.replaces for each in passing.budgets):
        passing.enter((budget,))
