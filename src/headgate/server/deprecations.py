"""Deprecations files: the deprecated paths of the HTTP APIs, of both planes, and the headers that announce them."""

from __future__ import annotations

import logging
from os import PathLike, fspath

from headgate.config.problems import Findings
from headgate.config.schema import Field, ListOf, Record, Scalar
from headgate.config.times import moment
from headgate.config.yaml_text import Document, text_of
from headgate.server.wire.messages import Handler, HttpRequest, HttpResponse, answered
from headgate.web.deprecation import Deprecation, Deprecations

NOTICE_US = 181 * 86_400 * 1_000_000
"""The shortest six months: those from 1 January or 1 February."""
_LOG = logging.getLogger("headgate.server")
_ENTRY = Record(
    "a deprecation",
    {
        "path": Field(
            Scalar.text("a path such as /api/v1", "/[A-Za-z0-9._~/-]{0,200}", 201, numbers=False),
            "The deprecated path; it includes all paths below it.",
            required=True,
        ),
        "deprecated": Field(moment(), "When it became or becomes deprecated.", required=True),
        "sunset": Field(moment(), "When it stops working."),
        "link": Field(
            Scalar.text("an address such as https://example.com/v2", "https?://[!#-;=?-~]{1,500}", 510, numbers=False),
            "A page that describes the replacement.",
        ),
    },
)
FILE = Record(
    "a deprecations file",
    {
        "version": Field(Scalar.version(1), "The version of this format: write version: 1.", required=True),
        "deprecations": Field(
            ListOf(_ENTRY, "a list such as [{path: /api/v1, deprecated: 2027-01-01T00:00:00Z}]"),
            "The deprecated paths.",
            required=True,
        ),
    },
)


def load_deprecations(path: str | PathLike[str]) -> Deprecations:
    """Load a file. Raises InvalidRules, with all its problems."""
    document = Document(text_of(path), fspath(path), "a deprecations file")
    findings = Findings(document)
    read = FILE.read(document.data, (), findings)
    entries: dict[str, Deprecation] = {}
    for index, given in enumerate(read["deprecations"] if read is not None and not findings.count else ()):
        entry = Deprecation(**given)
        place = ("deprecations", index)
        if entry.path in entries:
            findings.reject((*place, "path"), f"{entry.path} is listed twice")
        if entry.sunset is not None and entry.sunset < entry.deprecated:
            wrong = "is before the path is deprecated"
            findings.reject((*place, "sunset"), wrong, accepted="a time after `deprecated`")
        elif entry.sunset is not None and entry.sunset - entry.deprecated < NOTICE_US:
            wrong = "is less than six months after the path is deprecated"
            findings.warn((*place, "sunset"), wrong, "a later time: clients need time to migrate")
        entries[entry.path] = entry
    findings.check()
    for finding in findings.warnings():
        _LOG.warning("%s", finding)
    return Deprecations(tuple(entries.values()))


def announcing(handler: Handler, deprecations: Deprecations) -> Handler:
    """Return a handler that adds the headers of deprecated paths to its responses."""
    if not deprecations:
        return handler

    async def announced(request: HttpRequest) -> HttpResponse:
        response = await answered(handler, request)
        fields = deprecations.fields(request.path.decode("latin-1"))
        return HttpResponse(response.status, response.body, (*response.headers, *fields)) if fields else response

    return announced
