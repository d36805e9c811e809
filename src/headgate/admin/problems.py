"""What an error is to a client of the REST API: a problem document (RFC 9457)."""

from __future__ import annotations

import logging
import re
from typing import Any

from litestar import Request, Response
from litestar.exceptions import HTTPException

from headgate.admin.catalog import UnknownObject, VersionConflict
from headgate.admin.database import DatabaseError
from headgate.admin.security import BodyTooLarge
from headgate.admin.service import RulesInFile
from headgate.core.errors import HeadgateError, UsageError
from headgate.policy.problems import InvalidRules
from headgate.web.problem import Problem, bad_request, of_status

_LOG = logging.getLogger("headgate.admin")


def pointer(path: str) -> str:
    """Return where a problem is as a JSON pointer: ``rules[2].window`` is ``/rules/2/window``."""
    parts = [quoted or number or name for quoted, number, name in _PART.findall(path)]
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


_PART = re.compile(r"""\["(.*?)"\]|\[([0-9]+)\]|([^.\[\]]+)""")


def problem_of(error: Exception) -> Problem:
    """Return the problem document of an error."""
    if isinstance(error, InvalidRules):
        faults = tuple(
            (pointer(each.path), ". ".join(part for part in (each.message, each.accepted, each.hint) if part))
            for each in error.problems[:100]
        )
        return bad_request("the rules would not be acceptable; nothing was changed", faults)
    if isinstance(error, VersionConflict):
        return of_status(412 if error.operation.expected else 409, str(error))
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return of_status(status, str(error))
    if isinstance(error, HTTPException):
        return of_status(error.status_code, error.detail)
    _LOG.error("an error of ours", exc_info=error)
    return of_status(500, "this is a defect of Headgate; its log has the details")


_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (BodyTooLarge, 413),
    (RecursionError, 400),
    (UnknownObject, 404),
    (RulesInFile, 409),
    (DatabaseError, 503),
    (UsageError, 400),
    (HeadgateError, 400),
)


def explained(_request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """Answer an error with its problem document."""
    problem = problem_of(error)
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else {}
    return Response(
        problem.encode(), status_code=problem.status, media_type="application/problem+json", headers=headers
    )
