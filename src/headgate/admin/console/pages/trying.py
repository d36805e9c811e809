"""Explanations of requests: the rules that apply, why, and the decision. Nothing is consumed."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from litestar import Response, get

from headgate.admin.console.rendering import link, page
from headgate.admin.routes.requests import VIEWER, Admin, WebRequest
from headgate.core.errors import UsageError
from headgate.policy.model import METHODS
from headgate.policy.request import Request as PolicyRequest

_PRINCIPALS = ("user", "apikey", "ip")
_FIELDS = ("method", "path", *_PRINCIPALS, "tier", "attributes", "cost", "rule")
_MOST_OTHERS = 50
"""Rules that do not apply for which a reason is shown."""
_MOST_ATTRIBUTES = 100


@get("/try", opt=VIEWER)
async def try_request(request: WebRequest, admin: Admin) -> Response[str]:
    given = {name: request.query_params.get(name, "").replace("\r\n", "\n") for name in _FIELDS}
    known: dict[str, Any] = {"given": given, "tiers": admin.users.tiers(), "methods": METHODS}
    if not any(given.values()):
        return page(request, "try.html", **known, error=None, explained=None)
    try:
        policy_request = _request_of(given)
        explained = await admin.explain(policy_request)
    except UsageError as error:
        return page(request, "try.html", **known, error=error, explained=None)
    applying = [each for each in explained["rules"] if each["applies"]]
    others = [] if policy_request.rule_id and applying else [each for each in explained["rules"] if not each["applies"]]
    others.sort(key=lambda each: each["reason"].startswith("endpoint "))  # rules that match the endpoint first
    refusing = [each for each in applying if each["enforced"] and not all(part["allowed"] for part in each["limits"])]
    return page(
        request,
        "try.html",
        **known,
        error=None,
        explained=explained,
        applying=applying,
        others=others[:_MOST_OTHERS],
        more=len(others) - len(others[:_MOST_OTHERS]),
        waits=max((part["retry_after"] for each in refusing for part in each["limits"]), default=0),
        place=link("/try", **given),
        curl=_curl(policy_request),
        command=_command(policy_request),
    )


def _request_of(given: Mapping[str, str]) -> PolicyRequest:
    cost = given["cost"] or "1"
    if not cost.isdecimal() or len(cost) > 9:
        raise UsageError(f"cost must be a whole number from 0 to 100000, not {cost!r:.40}")
    attributes = {}
    for number, text in enumerate(given["attributes"].split("\n")[: _MOST_ATTRIBUTES + 1]):
        name, equals, value = text.partition("=")
        if text.strip() and not (equals and name.strip()):
            raise UsageError(f"an attribute must be a line such as region=eu, not {text!r:.80}")
        if number == _MOST_ATTRIBUTES:
            raise UsageError(f"a request must have at most {_MOST_ATTRIBUTES} attributes here")
        if text.strip():
            attributes[name.strip()] = value.strip()
    principal = {name: given[name] for name in _PRINCIPALS if given[name]}
    more: dict[str, Any] = {"cost": int(cost), "tier": given["tier"], "rule_id": given["rule"]}
    return PolicyRequest(principal, given["path"] or "/", given["method"], attributes, **more)


def _curl(request: PolicyRequest) -> str:
    body: dict[str, Any] = {"principal": dict(request.principal), "endpoint": request.endpoint, "consume": False}
    optional = {
        "method": request.method,
        "attributes": dict(request.attributes),
        "tier": request.tier,
        "rule_id": request.rule_id,
    }
    body |= {name: value for name, value in optional.items() if value}
    body |= {"cost": request.cost} if request.cost != 1 else {}
    return f'curl -sS "$HEADGATE_URL/api/v1/rate-limit/check" -d {shlex.quote(json.dumps(body, ensure_ascii=False))}'


def _command(request: PolicyRequest) -> str:
    """Return the headgate command for a request; empty if there is none."""
    named = [f"--{name}={value}" for name, value in request.principal.items()]
    named += [f"--attribute={name}={value}" for name, value in request.attributes.items()]
    about = [f"--cost={request.cost}"] * (request.cost != 1) + [f"--tier={request.tier}"] * bool(request.tier)
    if request.rule_id:
        words = ["check", "--peek", f"--rule={request.rule_id}", *named, *about] if len(named) == 1 else []
    else:
        method = [f"--method={request.method}"] * bool(request.method)
        words = ["explain", *named, *method, *about, request.endpoint]
    return f'headgate {words[0]} --url "$HEADGATE_URL" {shlex.join(words[1:])}' if words else ""


ROUTES = [try_request]
