"""Flask, by its own test client: factories, blueprints, decorators, error handlers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Blueprint, Flask, Response
from flask.views import MethodView
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client

from headgate import Engine, UnknownRule, UsageError, load_rules
from headgate.integrations import Budget
from headgate.integrations.flask import RateLimited, RateLimits
from headgate.testing import ManualClock
from headgate.web.errors import InvalidSettings


def application(**settings: Any) -> tuple[Flask, RateLimits]:
    app = Flask(__name__)
    return app, RateLimits(app, clock=ManualClock(), **settings)


def statuses(app: Flask, *paths: str, **headers: str) -> list[int]:
    return [app.test_client().get(path, headers=headers).status_code for path in paths]


def test_a_refusal_replaces_fields_that_the_application_adds_to_every_response() -> None:
    app, _ = application(limits="1/minute")

    @app.after_request
    def cached(response: Response) -> Response:
        response.headers.add("Cache-Control", "max-age=60")
        return response

    assert statuses(app, "/nowhere") == [404]
    assert app.test_client().get("/nowhere").headers.getlist("Cache-Control") == ["no-store"]


@pytest.mark.parametrize("what", [429, RateLimited])
def test_the_applications_error_handler_answers_if_it_has_one(what: Any) -> None:
    app, _ = application(limits="1/minute")
    app.get("/")(lambda: "hello")

    @app.errorhandler(what)
    def refused(error: RateLimited) -> tuple[dict[str, Any], int]:
        return {"wait": error.refusal.retry_after}, 429

    client = app.test_client()
    client.get("/")
    answer = client.get("/")
    assert (answer.status_code, answer.get_json(), answer.headers["Retry-After"]) == (429, {"wait": 60}, "60")


def test_other_refusals_do_not_reach_the_handler_of_429() -> None:
    app, _ = application(limits="1/minute", key=lambda request: request.headers.get("x-user"))
    app.errorhandler(429)(lambda error: ("too many", 429))
    app.get("/")(lambda: "hello")
    assert statuses(app, "/") == [400]
    assert [app.test_client().get("/", headers={"x-user": "ada"}).text for _ in range(2)] == ["hello", "too many"]


def test_an_application_factory_and_its_configuration() -> None:
    limits = RateLimits(limits="1/minute")

    def create(**config: Any) -> Flask:
        app = Flask(__name__)
        app.config["HEADGATE"] = config
        limits.init_app(app)
        app.get("/")(lambda: "hello")
        return app

    one, other = create(), create(limits="2/minute")
    assert statuses(one, "/", "/") == [200, 429]
    assert statuses(other, "/", "/", "/") == [200, 200, 429]
    with one.app_context():
        limits.reset("ip:127.0.0.1")
    assert statuses(one, "/", "/") == [200, 429]
    third = Flask(__name__)
    limits.init_app(third, limits="3/minute", clock=ManualClock())
    third.get("/")(lambda: "hello")
    assert statuses(third, *["/"] * 4) == [200, 200, 200, 429]


def test_blueprints_limit_each_view_or_all_of_them_together() -> None:
    app, limits = application()
    each, together = Blueprint("each", __name__), Blueprint("together", __name__)
    limits.limit("1/minute")(each)
    limits.limit("1/minute", name="together")(together)
    for blueprint in (each, together):
        blueprint.get("/a", endpoint="a")(lambda: "a")
        blueprint.get("/b", endpoint="b")(lambda: "b")
        blueprint.get("/c", endpoint="c")(limits.limit("2/minute", replaces=True)(lambda: "c"))
        app.register_blueprint(blueprint, url_prefix=f"/{blueprint.name}")
    assert statuses(app, "/each/a", "/each/b", "/each/a") == [200, 200, 429]
    assert statuses(app, "/together/a", "/together/b") == [200, 429]
    assert statuses(app, "/each/c", "/each/c", "/each/c") == [200, 200, 429]


def test_a_decorator_that_hides_the_limit_does_not_remove_it_and_classes_have_decorators() -> None:
    app, limits = application()

    def hiding(view: Callable[[], str]) -> Callable[[], str]:
        return lambda: view()  # noqa: PLW0108  without functools.wraps

    class Items(MethodView):
        decorators = [limits.limit("1/minute")]  # noqa: RUF012  as Flask has it

        def get(self) -> str:
            return "items"

    app.get("/")(hiding(limits.limit("1/minute")(lambda: "hello")))
    app.add_url_rule("/items", view_func=Items.as_view("items"))
    assert statuses(app, "/", "/", "/items", "/items") == [200, 429] * 2


def test_unknown_paths_share_a_budget_like_that_of_a_route() -> None:
    app, _ = application(limits=Budget(limits="1/minute"))
    app.get("/")(lambda: "hello")
    assert statuses(app, "/", "/", "/nowhere", "/no/where") == [200, 429, 404, 429]


def test_an_exception_that_passes_through_the_application_may_cost_nothing() -> None:
    app, limits = application()
    app.testing = True

    @app.get("/broken")
    @limits.limit("1/minute", refund_on_error=True)
    def broken() -> str:
        raise LookupError

    for _ in range(2):
        with pytest.raises(LookupError):
            app.test_client().get("/broken")


def test_mounted_applications_have_limits_of_their_own() -> None:
    (outer, _), (inner, _) = application(limits="2/minute"), application(limits="1/minute")
    for app in (outer, inner):
        app.get("/")(lambda: "hello")
    client = Client(DispatcherMiddleware(outer, {"/inner": inner}))
    assert [client.get(path).status_code for path in ("/inner/", "/inner/", "/", "/", "/")] == [200, 429, 200, 200, 429]


def test_rules_decide_and_views_name_them() -> None:
    rules = load_rules("{version: 1, rules: [{id: logins, limit: 1, window: 1m, dimension: ip, endpoint: /login}]}")
    app = Flask(__name__)
    limits = RateLimits(app, engine=Engine(rules))
    app.get("/login", endpoint="login")(lambda: "in")
    app.get("/other", endpoint="other")(limits.limit(rule="logins")(lambda: "in"))
    assert statuses(app, "/login", "/login", "/other") == [200, 429, 429]
    with pytest.raises(UnknownRule, match="log-ins"):
        limits.limit(rule="log-ins")
    late = RateLimits(rules=rules)
    late.limit(rule="log-ins")
    with pytest.raises(UnknownRule, match="log-ins"):
        late.init_app(Flask(__name__))


def test_mistakes_are_errors_at_once() -> None:
    async def key(request: Any) -> str:
        return "key"

    app, limits = application(limits="1/minute")
    with pytest.raises(InvalidSettings, match="synchronous"):
        limits.limit("5/minute", key=key)
    with pytest.raises(UsageError, match="already"):
        RateLimits(app)
    configured = Flask(__name__)
    configured.config["HEADGATE"] = "5/minute"
    with pytest.raises(InvalidSettings, match="dictionary"):
        RateLimits(configured)
    bare = Flask(__name__)
    bare.get("/")(RateLimits().limit("1/minute")(lambda: "hello"))
    bare.testing = True
    with pytest.raises(UsageError, match="init_app"):
        bare.test_client().get("/")


def test_an_extension_that_limits_nothing_is_an_error_at_every_request() -> None:
    app = Flask(__name__)
    limits = RateLimits(app)
    app.get("/")(lambda: "hello")
    app.testing = True
    for _ in range(2):
        with pytest.raises(InvalidSettings, match="limits nothing"):
            app.test_client().get("/")
    limits.limit("1/minute")(Blueprint("later", __name__))
    assert app.test_client().get("/").status_code == 200


def test_a_limit_above_the_decorator_of_its_route_is_an_error_at_every_request() -> None:
    def both() -> str:
        return "both"

    app, limits = application(limits="5/minute")
    limits.limit("1/minute")(app.get("/other")(lambda: "other"))
    app.testing = True
    for _ in range(2):
        with pytest.raises(UsageError, match="below the route's decorator"):
            app.test_client().get("/other")
    app, limits = application(limits="5/minute")
    app.get("/inside", endpoint="inside")(both)
    app.get("/outside", endpoint="outside")(limits.limit("1/minute")(both))
    assert [app.test_client().get(path).status_code for path in ("/inside", "/outside", "/inside")] == [200] * 3
