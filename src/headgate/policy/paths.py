r"""Paths in canonical form, so that no spelling of a path escapes its rules.

Servers interpret paths differently. A spelling becomes the canonical form if all servers that accept it serve the same
resource; otherwise it is refused (InvalidRequest).

====================================  ==============================================================================
in the path                           result
====================================  ==============================================================================
``?query``                            removed
``#fragment``                         refused: no client sends it, and servers disagree (Envoy CVE-2021-32779)
empty path, ``*`` (``OPTIONS *``)     becomes ``/``
``http://host/a`` (absolute form)     becomes ``/a``; the host is ignored
``http:///a``, ``http:a``, ``a:1/b``  refused: an absolute form without a host, or similar to one
``a/b`` (no slash)                    becomes ``/a/b``
``/a/`` (trailing slash)              becomes ``/a``
``//a/b``, ``/.//a``, ``/;x/a``       refused: Node's URL and Python's urlsplit read ``//a`` as a host, and ``/b`` as
                                      the path; the others become ``//a`` in a proxy that partly normalises paths
``/a//b``                             becomes ``/a/b``; slashes only become ``/``
``/a/./b``                            becomes ``/a/b``
``/a/../b``                           refused: clients resolve it before sending; some servers do, others do not
``;params`` in a segment              removed, as by servlet containers; after a dot segment (``..;``) refused
``%2E``, ``%61``, ``%40``             decoded once, for characters that need no encoding
other ``%xx``                         stays encoded, in capitals: ``%c3%a9`` becomes ``%C3%A9``
``é``, a space, ``"<>[]^`{|}``        encoded as UTF-8; a space at either end is refused: some servers strip it
``%2F  %5C  %3B  \``                   refused: a separator for some servers
``%00`` and all control characters    refused, encoded or not
``%``, ``%4``, ``%zz``, ``%u002e``    refused: an invalid encoding
``%252e`` (encoded twice)             refused: some servers decode twice; ``%25`` alone stays ``%25``
``%C0%AE``, ``%E9`` (not UTF-8)       refused
case                                  significant, unless the policy has `ignore_case`
over 8192 characters without query    refused
over 256 segments                     refused, including empty ones
====================================  ==============================================================================

A canonical path is its own canonical form.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote_to_bytes

from headgate.core.numbers import short
from headgate.policy.request import InvalidRequest

LONGEST = 8192
"""Characters of a path without its query."""
MOST_SEGMENTS = 256
_STAND_FOR_THEMSELVES = "!$&'()*+,=:@"
"""Characters that RFC 3986 allows in a segment, besides letters, digits and ``_.-~``; without the semicolon."""
_is_plain = re.compile(r"/[A-Za-z0-9_.~!$&'()*+,=:@/-]*").fullmatch
_is_plain_segment = re.compile(r"[A-Za-z0-9_.~!$&'()*+,=:@-]*").fullmatch
_ABSOLUTE_FORM = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/]+")
_HALF_ENCODED = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SEPARATORS = {"/": "%2F", "\\": "a backslash, %5C", ";": "%3B"}


def normalised(path: str) -> str:
    """Return the canonical form of a path as the client sent it. Raises InvalidRequest."""
    if (
        type(path) is str
        and _is_plain(path)
        and "//" not in path
        and "/." not in path
        and (path[-1] != "/" or path == "/")
        and (len(path) <= 2 * MOST_SEGMENTS or (len(path) <= LONGEST and path.count("/") <= MOST_SEGMENTS))
    ):
        return path
    return _normalise_rest(path)


def canonical_segment(segment: str) -> str:
    """Return the canonical form of a segment without ``;params``. Raises InvalidRequest."""
    if _is_plain_segment(segment):
        return segment
    if _HALF_ENCODED.search(segment):
        raise InvalidRequest("it has a % that encodes nothing: a percent sign is written %25")
    try:
        text = unquote_to_bytes(segment).decode()
    except UnicodeError:
        raise InvalidRequest("it is not UTF-8") from None
    if _CONTROL.search(text):
        raise InvalidRequest("it has a control character")
    for separator, name in _SEPARATORS.items():
        if separator in text:
            raise InvalidRequest(f"it has {name}, which servers interpret differently")
    if _ENCODED.search(text):
        raise InvalidRequest("it is encoded twice")
    return quote(text, safe=_STAND_FOR_THEMSELVES)


def _normalise_rest(path: str) -> str:
    if not isinstance(path, str):
        raise InvalidRequest(f"the endpoint must be a path, such as '/api/orders', not {short(path)}")
    bare = path.partition("?")[0]
    if len(bare) > LONGEST:
        raise InvalidRequest(f"the path has {len(bare)} characters: at most {LONGEST} are accepted")
    try:
        return _canonical(bare)
    except InvalidRequest as error:
        raise InvalidRequest(f"the path {short(bare)} is not accepted: {error}") from None


def _canonical(path: str) -> str:
    if "#" in path:
        raise InvalidRequest("it has a #, which is written %23")
    if "\\" in path:
        raise InvalidRequest("it has a backslash, which servers interpret differently")
    if path[:1] == " " or path[-1:] == " ":
        raise InvalidRequest("it has a space at one end, which is written %20")
    if path == "*":
        return "/"
    path = _ABSOLUTE_FORM.sub("", path, count=1)
    texts = path.removeprefix("/").split("/")
    if len(texts) > MOST_SEGMENTS:
        raise InvalidRequest(f"it has {len(texts)} segments: at most {MOST_SEGMENTS} are accepted")
    if path[:1] != "/" and ":" in texts[0]:
        raise InvalidRequest("it begins with neither a slash nor http:// and a host")
    segments = [segment for segment in map(_segment, texts) if segment != "."]
    if not segments or segments[0]:
        return "/" + "/".join(filter(None, segments))
    if any(segments):
        raise InvalidRequest("it begins with //, after which some servers expect a host: one slash is enough")
    return "/"


def _segment(written: str) -> str:
    segment, *parameters = map(canonical_segment, written.split(";"))
    if parameters and segment in {".", ".."}:
        raise InvalidRequest("it has a dot segment with parameters, which servers interpret differently")
    if segment == "..":
        raise InvalidRequest("it has a .. segment: resolve it first")
    return segment
