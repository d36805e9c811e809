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

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from http import HTTPStatus
from typing import Any, TypeVar, Unpack

from flask import Blueprint, Flask, Request, Response, current_app, g, make_response, request
from werkzeug.exceptions import HTTPException, TooManyRequests

from headgate.core.errors import UsageError
from headgate.integrations.answers import Refusal
from headgate.integrations.budgets import Budget, BudgetSettings, Quotas, QuotasOfKey, check_order, note_limited
from headgate.integrations.gate import Gate, GateSettings
from headgate.integrations.visit import Visit
from headgate.integrations.wsgi import subject_of
from headgate.web.errors import InvalidSettings
from headgate.web.problem import CONTENT_TYPE

__all__ = ["RateLimited", "RateLimits", "Refused"]
F = TypeVar("F", bound="Callable[..., Any] | Blueprint")
_EXTENSION = "headgate"
_BUDGETS = "__headgate_budgets__"
"""The attribute by which a decorated view has its budgets."""
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
        self._gates: list[Gate] = []
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Limit an application. Raises UsageError, for its decorated views as well."""
        if _EXTENSION in app.extensions:
            raise UsageError("the application has rate limits already: give all of them to one RateLimits")
        configured = app.config.get("HEADGATE", {})
        if not isinstance(configured, Mapping):
            raise InvalidSettings("HEADGATE is a dictionary, such as {'limits': '100/minute'}")
        given: Any = {**self._settings, **configured}
        gate = Gate(given)
        gate.checked(*self._budgets)
        self._gates.append(gate)
        app.extensions[_EXTENSION] = gate
        views = app.view_functions
        app.before_request(_Check(views))
        app.before_request(lambda: _before(gate, views))
        app.after_request(lambda response: _after(gate, response))
        app.teardown_request(lambda error: _end(gate, error))

    @property
    def gate(self) -> Gate:
        """The gate of the current application."""
        return _gate()

    def limit(self, limits: Quotas | QuotasOfKey | None = None, **terms: Unpack[BudgetSettings]) -> Callable[[F], F]:
        """Return a decorator that limits a view, or all views of a blueprint; see `Budget` for what it may be told."""
        budget = Budget(limits=limits, **terms)
        for gate in self._gates:
            gate.checked(budget)
        self._budgets.append(budget)

        def decorate(what: F) -> F:
            decorated: Any = what
            if isinstance(what, Blueprint):
                what.before_request(lambda: _enter_blueprint(budget))
            else:
                decorated = _decorated(what, budget)
            limited: F = decorated
            return limited

        return decorate

    def reset(self, key: str, name: str = "default", *, limits: Quotas | None = None) -> None:
        """Forget what a key used, see `Gate.reset`; where the application is current (``with app.app_context()``)."""
        self.gate.reset(key, name, limits=limits)


class _Check:
    """Checks all routes at the first request, when all are known; if it raises, at every request."""

    def __init__(self, views: Mapping[str, Any]) -> None:
        self._views, self._is_done = views, False

    def __call__(self) -> None:
        if not self._is_done:
            check_order(self._views.values())
            self._is_done = True


def _decorated(view: Any, budget: Budget) -> Any:
    """Return a view that has a budget. It is found before the view is called; if it was hidden, it is found then."""
    budgets: list[Budget] | None = getattr(view, _BUDGETS, None)
    if budgets is not None:
        budgets.insert(0, budget)
        return view
    budgets = [budget]

    @wraps(view)
    def limited(*args: Any, **kwargs: Any) -> Any:
        passing = _passing()
        if not passing.visit.has_asked(budgets):  # another decorator, which did not use functools.wraps, hides them
            passing.enter(budgets)
        return current_app.ensure_sync(view)(*args, **kwargs)

    setattr(limited, _BUDGETS, budgets)
    note_limited(view, limited)
    return limited


class _Passing:
    """What is known of the request that is served: its visit, and why it was refused."""

    __slots__ = ("budgets", "refusal", "route", "visit")

    def __init__(self, gate: Gate, current: Request, views: Mapping[str, Any]) -> None:
        self.visit = Visit(gate, subject_of(gate, current, current.environ))
        self.route = current.endpoint or ""
        self.budgets: list[Budget] = getattr(views.get(self.route), _BUDGETS, [])
        """Of the view."""
        self.refusal: Refusal | None = None

    def enter(self, budgets: Sequence[Budget]) -> None:
        """Take what budgets cost. Raises Refused."""
        gate: Any = self.visit.gate
        self.refusal = refusal = gate.run(self.visit.enter(budgets, self.route))
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


def _before(gate: Gate, views: Mapping[str, Any]) -> None:
    passing = _Passing(gate, request._get_current_object(), views)  # type: ignore[attr-defined]  # noqa: SLF001
    setattr(g, _PASSING, passing)
    own = passing.budgets
    if not own:
        passing.enter(gate.budgets)
        return
    passing.visit.ask(own)
    passing.enter(own if any(budget.replaces for budget in own) else (*gate.budgets, *own))


def _enter_blueprint(budget: Budget) -> None:
    passing = _passing()
    if not any(each.replaces for each in passing.budgets):
        passing.enter((budget,))


def _after(gate: Gate, response: Response) -> Response:
    passing = _passing()
    visit, refusal, headers = passing.visit, passing.refusal, response.headers
    if refusal is None:
        if visit.is_open:
            gate.run(visit.respond(response, response.status_code))
        if "X-RateLimit-Limit" not in headers and "RateLimit" not in headers:
            headers.extend(visit.fields())
    else:
        for name, value in refusal.fields:
            headers[name] = value
    return response


def _end(gate: Gate, error: BaseException | None) -> None:
    passing: _Passing | None = g.get(_PASSING)
    if error is not None and passing is not None and passing.visit.is_open:
        gate.run(passing.visit.fail())
