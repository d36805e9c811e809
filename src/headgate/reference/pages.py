"""The API reference as files: Swagger UI, a page around it, and the OpenAPI document that it shows.

Both planes serve them from their own origin, without keys. Nothing comes from elsewhere, and the policy below lets
nothing else in: no inline script or style, no `eval`. Swagger UI's own style sheet has its arrows as ``data:`` images.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import NamedTuple

from headgate.web.headers import matches

DOCUMENT = "/openapi.json"
_HTML, _STYLE, _SCRIPT = "text/html; charset=utf-8", "text/css; charset=utf-8", "text/javascript; charset=utf-8"
_FILES = {
    "/docs": ("reference.html", _HTML),
    "/docs/reference.css": ("reference.css", _STYLE),
    "/docs/reference.js": ("reference.js", _SCRIPT),
    "/docs/swagger-ui.css": ("swagger-ui/swagger-ui.css.gz", _STYLE),
    "/docs/swagger-ui.js": ("swagger-ui/swagger-ui-bundle.js.gz", _SCRIPT),
}
PATHS = frozenset({*_FILES, DOCUMENT})
"""All that the reference consists of."""
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class ReferenceFile(NamedTuple):
    """A file as it is served. Compressed files are sent as they are: all browsers accept them."""

    body: bytes
    headers: Mapping[str, str]

    def answer(self, if_none_match: str) -> tuple[int, bytes]:
        """Return the status and the body for a client that has what this ETag names, or nothing."""
        return (304, b"") if matches(if_none_match, self.headers["etag"]) else (200, self.body)


def reference_files(document: bytes) -> Mapping[str, ReferenceFile]:
    """Return what is served at each of the paths, with this OpenAPI document."""
    return _static() | {DOCUMENT: served_file(document, "application/json")}


@cache
def _static() -> dict[str, ReferenceFile]:
    root = files("headgate.reference")
    return {
        path: served_file(root.joinpath(name).read_bytes(), kind, {"content-encoding": "gzip"} if ".gz" in name else {})
        for path, (name, kind) in _FILES.items()
    }


def served_file(body: bytes, kind: str, more: Mapping[str, str] | None = None) -> ReferenceFile:
    """Return a file that browsers cache by its ETag."""
    etag = f'"{sha256(body).hexdigest()[:32]}"'
    return ReferenceFile(body, {"content-type": kind, "etag": etag, **_HEADERS, **(more or {})})
