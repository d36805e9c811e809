r"""Paths in one form, so that no spelling of a path escapes the rules for it.

Whoever serves the request may read a path otherwise than we do. So each spelling has one of two fates: it becomes the
one canonical form, if every server that serves it at all serves the same thing; or it is refused (InvalidRequest).

====================================  ==============================================================================
in the path                           what happens
====================================  ==============================================================================
``?query``                            cut off
``#fragment``                         refused: no client sends it, and servers disagree (Envoy CVE-2021-32779)
empty path, ``*`` (``OPTIONS *``)     are ``/``
``http://host/a`` (absolute form)     is ``/a``; the host does not matter
``http:///a``, ``http:a``, ``a:1/b``  refused: an absolute form without a host, or something like it
``a/b`` (no slash)                    is ``/a/b``
``/a/`` (trailing slash)              is ``/a``
``//a/b``, ``/.//a``, ``/;x/a``       refused: Node's URL and Python's urlsplit take ``//a`` for a host, and ``/b`` for
                                      the path; the others become ``//a`` in a proxy that resolves half of it
``/a//b``                             is ``/a/b``; nothing but slashes is ``/``
``/a/./b``                            is ``/a/b``
``/a/../b``                           refused: clients resolve it before they send it; some servers do, others do not
``;params`` in a segment              cut off, as servlet containers do; after a dot segment (``..;``) refused
``%2E``, ``%61``, ``%40``             decoded once: a character that may stand for itself does, and then counts as such
other ``%xx``                         stays encoded, in capitals: ``%c3%a9`` is ``%C3%A9``
``é``, a space, ``"<>[]^`{|}``        are encoded, as UTF-8; a space at either end is refused: some servers strip it
``%2F  %5C  %3B  \``                   refused: a separator for some servers and not for others
``%00`` and all control characters    refused, encoded or not
``%``, ``%4``, ``%zz``, ``%u002e``    refused: no encoding
``%252e`` (encoded twice)             refused: who decodes twice sees something else; ``%25`` alone stays ``%25``
``%C0%AE``, ``%E9`` (no UTF-8)        refused
capitals                              differ from small letters, unless the policy says `ignore_case`
over 8192 characters without query    refused
over 256 segments                     refused, empty ones counted too
====================================  ==============================================================================

The canonical form of a canonical path is that path.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote_to_bytes

from headgate.core.numbers import short
from headgate.policy.request import InvalidRequest

LONGEST = 8192
"""The most characters of a path, its query not counted."""
MOST_SEGMENTS = 256
_STAND_FOR_THEMSELVES = "!$&'()*+,=:@"
"""Besides letters, digits and ``_.-~``: what RFC 3986 lets stand in a segment, but for the semicolon."""
_is_plain = re.compile(r"/[A-Za-z0-9_.~!$&'()*+,=:@/-]*").fullmatch
_is_plain_segment = re.compile(r"[A-Za-z0-9_.~!$&'()*+,=:@-]*").fullmatch
_ABSOLUTE_FORM = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/]+")
_HALF_ENCODED = re.compile(r"%(?![0-9A-Fa-f]{2})")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SEPARATORS = {"/": "%2F", "\\": "a backslash, %5C", ";": "%3B"}


def normalised(path: str) -> str:
    """Return the canonical form of a path as it was sent; see this module. Raises InvalidRequest."""
    if (
        type(path) is str
        and _is_plain(path)
        and "//" not in path
        and "/." not in path
        and (path[-1] != "/" or path == "/")
        and (len(path) <= 2 * MOST_SEGMENTS or (len(path) <= LONGEST and path.count("/") <= MOST_SEGMENTS))
    ):
        return path
    return _spelled_out(path)


def canonical_segment(segment: str) -> str:
    """Return the canonical form of what stands between two slashes, without ``;params``. Raises InvalidRequest."""
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
            raise InvalidRequest(f"it has {name}, which servers read differently")
    if _ENCODED.search(text):
        raise InvalidRequest("it is encoded twice")
    return quote(text, safe=_STAND_FOR_THEMSELVES)


def _spelled_out(path: str) -> str:
    if not isinstance(path, str):
        raise InvalidRequest(f"the endpoint is a path, such as '/api/orders', not {short(path)}")
    bare = path.partition("?")[0]
    if len(bare) > LONGEST:
        raise InvalidRequest(f"the path has {len(bare)} characters: {LONGEST} are accepted")
    try:
        return _canonical(bare)
    except InvalidRequest as error:
        raise InvalidRequest(f"the path {short(bare)} is not accepted: {error}") from None


def _canonical(path: str) -> str:
    if "#" in path:
        raise InvalidRequest("it has a #, which is written %23")
    if "\\" in path:
        raise InvalidRequest("it has a backslash, which servers read differently")
    if path[:1] == " " or path[-1:] == " ":
        raise InvalidRequest("it has a space at one end, which is written %20")
    if path == "*":
        return "/"
    path = _ABSOLUTE_FORM.sub("", path, count=1)
    texts = path.removeprefix("/").split("/")
    if len(texts) > MOST_SEGMENTS:
        raise InvalidRequest(f"it has {len(texts)} segments: {MOST_SEGMENTS} are accepted")
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
        raise InvalidRequest("it has a dot segment with parameters, which servers read differently")
    if segment == "..":
        raise InvalidRequest("it has a .. segment: resolve it first")
    return segment
