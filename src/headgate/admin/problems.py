"""Problem documents (RFC 9457) for the errors of the REST API."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException, NotFoundException, ValidationException

from headgate.admin.catalog import RulesInFile
from headgate.admin.database import DatabaseError
from headgate.admin.objects import InUse, UnknownObject, VersionConflict
from headgate.admin.revisions import Superseded
from headgate.admin.routes.requests import InvalidParameters, allowed_methods, invalid_parameters, parameters_for
from headgate.config.problems import InvalidRules
from headgate.core.errors import HeadgateError, UsageError
from headgate.core.numbers import short
from headgate.web.problem import ProblemDocument, bad_request, of_status

_MOST_CONFLICTS = 1000
_LOG = logging.getLogger("headgate.admin")


def pointer(path: str) -> str:
    """Return the JSON pointer of a path in a rules file: ``/rules/2/window`` for ``rules[2].window``."""
    parts = [quoted or number or name for quoted, number, name in _PART.findall(path)]
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


_PART = re.compile(r"""\["(.*?)"\]|\[([0-9]+)\]|([^.\[\]]+)""")


def problem_of(error: Exception, *, is_conditional: bool = False) -> ProblemDocument:
    """Return the problem document of an error; version conflicts of conditional requests are 412 instead of 409."""
    if isinstance(error, InvalidRules):
        faults = tuple(
            (pointer(each.path), str(replace(each, path="", file="", line=0, column=0)))
            for each in error.problems[:100]
        )
        return bad_request("the rules would be invalid; nothing was changed", faults)
    if isinstance(error, VersionConflict):
        return of_status(412 if error.expected or is_conditional else 409, str(error))
    conflicts = error.conflicts[:_MOST_CONFLICTS] if isinstance(error, Superseded) else ()
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            if isinstance(error, DatabaseError):
                _LOG.warning("answered with 503: %s", error)
            detail = error.public if isinstance(error, DatabaseError) else str(error)
            return of_status(status, detail, conflicts=[each._asdict() for each in conflicts])
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        found = [each for each in error.extra if isinstance(each, dict)]
        keys = [str(each.get("key", "")) for each in found[:100]]
        places = [pointer(key) if key != "data" else "" for key in keys]  # the parameter of routes for the whole body
        faults = tuple((place, str(each.get("message", ""))) for place, each in zip(places, found, strict=False))
        return bad_request("the request is invalid; nothing was changed", faults)
    if isinstance(error, HTTPException):
        return of_status(error.status_code, error.detail)
    _LOG.error("unexpected error", exc_info=error)
    return of_status(500, "this is a bug in Headgate; its log has the details")


_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (RecursionError, 400),
    (UnknownObject, 404),
    (InUse, 409),
    (Superseded, 409),
    (RulesInFile, 409),
    (DatabaseError, 503),
    (UsageError, 400),
    (HeadgateError, 400),
)


def problem_response(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        faults = invalid_parameters(parameters_for(request), error.extra)
        error = InvalidParameters(faults) if faults else error
    is_conditional = "if-match" in request.headers or "if-none-match" in request.headers
    if isinstance(error, InvalidParameters):
        problem = bad_request(str(error), error.faults)
    else:
        problem = problem_of(error, is_conditional=is_conditional)
    headers, path = {}, request.scope["path"]
    if isinstance(error, NotFoundException):
        problem = of_status(404, f"no such path: {short(path)}; /docs lists all paths")
    elif problem.status == 405:
        headers["Allow"] = allowed = allowed_methods(request.app, path)
        problem = of_status(405, f"{short(path)} accepts {allowed}, not {short(request.method)}")
    return Response(
        problem.encode(), status_code=problem.status, media_type="application/problem+json", headers=headers
    )
