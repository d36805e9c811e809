"""The handlers of the decision plane, by path; docs/api.md lists the paths."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import Any

from headgate.server.api.answers import CheckAnswers
from headgate.server.api.bodies import Timestamps
from headgate.server.api.checks import Checks, problem_response
from headgate.server.api.forward_auth import ANY_STATUS, ForwardAuth, ForwardChecks
from headgate.server.api.pages import HealthPages, MetricsPages, RulesPages
from headgate.server.decisions import Decisions
from headgate.server.readiness import Readiness
from headgate.server.wire.admission import AdmitMore, admit_any
from headgate.server.wire.messages import Handler, HttpRequest, HttpResponse
from headgate.web.problem import of_status, shown

CHECK = b"/api/v1/rate-limit/check"
RESET = b"/api/v1/rate-limit/reset"
BATCH = b"/api/v1/rate-limit/batch"
REFUND = b"/api/v1/rate-limit/refund"
RULES = b"/api/v1/rate-limit/rules"
FORWARD_AUTH = b"/api/v1/forward-auth"
_POST = frozenset({b"POST"})
_GET = frozenset({b"GET", b"HEAD"})
_NO_HANDLERS: Mapping[bytes, Handler] = {}


def application(
    decisions: Decisions,
    readiness: Readiness,
    *,
    forward_auth: ForwardAuth | None = None,
    timestamps: Timestamps | None = None,
    reset_format: str = "epoch",
    others: Mapping[bytes, Handler] = _NO_HANDLERS,
    reference: Mapping[bytes, Handler] = _NO_HANDLERS,
    admit_more: AdmitMore = admit_any,
) -> Handler:
    """Return the handler of all requests over HTTP.

    `others` are handlers of other paths, for any method; `reference` those of the API reference.
    """
    answers = CheckAnswers(reset_format, decisions.engine.refusal_of)
    checks = Checks(decisions, answers, timestamps or Timestamps(), admit_more)
    proxies = ForwardChecks(decisions, forward_auth or ForwardAuth())
    health, pages = HealthPages(readiness), MetricsPages(decisions.recorder)
    routes: dict[bytes, tuple[frozenset[bytes] | None, Handler]] = {
        CHECK: (_POST, checks.check),
        RESET: (_POST, checks.reset),
        BATCH: (_POST, checks.batch),
        REFUND: (_POST, checks.refund),
        RULES: (_GET, RulesPages(decisions.engine).rules),
        FORWARD_AUTH: (None, proxies.check),
        b"/healthz": (_GET, health.alive),
        b"/readyz": (_GET, health.ready),
        b"/healthcheck": (_GET, health.ready),
        b"/metrics": (_GET, pages.metrics),
        b"/hotkeys": (_GET, pages.hot_keys),
        **{path: (None, handler) for path, handler in others.items()},
        **{path: (_GET, handler) for path, handler in reference.items()},
    }

    def route(request: HttpRequest) -> HttpResponse | Coroutine[Any, Any, HttpResponse]:
        if request.path == CHECK and request.method == b"POST":
            return checks.check(request)
        methods, handler = routes.get(request.path, (None, _not_found))
        if methods is None or request.method in methods:
            return handler(request)
        return _other_method(request, methods)

    return route


def statuses_of(deny_status: int) -> Mapping[bytes, int]:
    """Return the statuses of requests that are not valid HTTP, by path, where they differ from HTTP's.

    A proxy's request contains what its client sent. If that is malformed, the proxy must get a status that refuses the
    client: it could take another one for a failure of ours, and let the client pass.
    """
    return {} if deny_status == ANY_STATUS else {FORWARD_AUTH: deny_status}


def _not_found(request: HttpRequest) -> HttpResponse:
    if request.path == b"*" and request.method == b"OPTIONS":
        return HttpResponse(204)
    detail = f"no such path: {shown(request.path.decode('latin-1'))}; send checks to {CHECK.decode()}"
    return problem_response(of_status(404, detail))


def _other_method(request: HttpRequest, methods: frozenset[bytes]) -> HttpResponse:
    allow = b"allow", b", ".join(sorted({*methods, b"OPTIONS"}))
    if request.method == b"OPTIONS":
        return HttpResponse(204, b"", (allow,))
    path, method = (shown(text.decode("latin-1")) for text in (request.path, request.method))
    detail = f"{path} accepts {' or '.join([name.decode() for name in sorted(methods)])}, not {method}"
    return problem_response(of_status(405, detail), allow)
