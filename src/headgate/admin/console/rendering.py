"""Rendering of templates, with their common variables, and texts for numbers, times, differences and rules."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import islice
from typing import Any, NamedTuple
from urllib.parse import urlencode

import jinja2
from litestar import Response
from markupsafe import Markup

from headgate.admin.keys import KeyRole
from headgate.admin.routes.requests import WebRequest
from headgate.admin.tables import epoch_us
from headgate.core.algorithms import Algorithm
from headgate.core.mode import Mode
from headgate.core.quota import SECOND, Quota
from headgate.policy.dumping import data_to_yaml
from headgate.policy.model import Rule

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_LONG, _MOST_PARTS, _MOST_LINES = 400, 200, 500
"""Values from which on a difference is abridged; and its bounds: parts of each body, and lines."""
NOTHING = "\u2013"
"""Shown instead of a missing number."""
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))

_PERIODS = {SECOND: "second", 60 * SECOND: "minute", 3600 * SECOND: "hour", 86400 * SECOND: "day"}
_LENGTHS = ((86400 * SECOND, "d"), (3600 * SECOND, "h"), (60 * SECOND, "min"), (SECOND, "s"), (1000, "ms"), (1, "us"))
_EACH = {"user": "user", "ip": "address", "apikey": "API key", "endpoint": "path"}
_FAILURES = {
    Mode.ALLOW: "lets all requests pass",
    Mode.DENY: "refuses all requests",
    Mode.LOCAL: "counts on each node alone",
}
KINDS = {"user": "user", "apikey": "key", "ip": "address"}
"""The kinds of callers with a page of their own, by dimension."""


class Entry(NamedTuple):
    path: str
    name: str
    role: KeyRole = KeyRole.VIEWER


NAVIGATION: Sequence[tuple[str, Sequence[Entry]]] = (
    ("Traffic", (Entry("/", "Overview"), Entry("/who", "Who"), Entry("/try", "Try a request"))),
    ("Limits", (Entry("/rules", "Rules"), Entry("/revisions", "Revisions"))),
    (
        "System",
        (
            Entry("/nodes", "Nodes"),
            Entry("/consumers", "Consumers"),
            Entry("/keys", "API keys", KeyRole.ADMIN),
            Entry("/audit", "Audit"),
            Entry("/docs", "API reference"),
            Entry("/about", "About"),
        ),
    ),
)


def page(request: WebRequest, template: str, *, status: int = 200, **known: Any) -> Response[str]:
    """Render a page; `known` are the variables of its template."""
    state = request.scope["state"]
    key, session = state.get("key"), state.get("session")
    role = key.role if key else KeyRole.CHECK
    here = "/" + request.scope["path"].strip("/").partition("/")[0]
    text = _TEMPLATES.get_template(template).render(
        key=key,
        csrf=session.csrf if session else "",
        can_edit=role.includes(KeyRole.EDITOR),
        can_admin=role.includes(KeyRole.ADMIN),
        navigation=[(name, [each for each in some if role.includes(each.role)]) for name, some in NAVIGATION],
        here=_PARENTS.get(here, here),
        query=request.query_params,
        release=version("headgate"),
        **known,
    )
    headers = {
        "Content-Security-Policy": _POLICY,
        "Referrer-Policy": "same-origin",  # with no-referrer, browsers do not send the origin of a form
    }
    return Response(text, status_code=status, media_type="text/html", headers=headers)


def number(value: float) -> str:
    """Write a count in full: 12 345."""
    return f"{value:,.0f}".replace(",", "\u202f")


def short(value: float, unit: str = "") -> str:
    """Write a count in few characters: 12.3k."""
    for least, letter in _UNITS:
        if abs(value) >= least * 0.9995:
            return f"{value / least:.3g}{letter}{unit}"
    return (f"{value:.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.2g}") + unit


def percent(part: float, whole: float) -> str:
    """Write a share as a percentage, which is 0 and 100 only if it is exact."""
    if not whole:
        return NOTHING
    share = 100 * part / whole
    if 0 < share < 0.1:
        return "< 0.1\u202f%"
    if 99.9 < share < 100:
        return "> 99.9\u202f%"
    return f"{share:.3g}\u202f%"


def span(seconds: float) -> str:
    """Write a duration in its largest unit: 90 s, 3 h."""
    for length, unit in _SPANS:
        if seconds >= 2 * length or (seconds >= length and seconds % length == 0):
            return f"{seconds / length:.0f}\u202f{unit}"
    return f"{seconds:.2g}\u202fs"


def when(moment: str | int | None) -> Markup:
    """Write a moment as the time since or until it, with the moment itself as the tooltip."""
    if moment is None:
        return Markup("{}").format(NOTHING)
    at = datetime.fromtimestamp(moment / 1e6, UTC) if isinstance(moment, int) else datetime.fromisoformat(moment)
    seconds = (epoch_us() / 1e6) - at.timestamp()
    text = "now" if abs(seconds) < 1 else f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"
    full = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(at.isoformat(), full, text)


def link(path: str, /, **query: Any) -> str:
    """Return the address of a page, without parameters that are None or empty."""
    given = {name: value for name, value in query.items() if value not in {None, ""}}
    return f"{path}?{urlencode(given)}" if given else path


def caller_link(dimension: str, name: str) -> str:
    """Return the address of the page of a caller; empty if it has none."""
    return link("/who", **{KINDS[dimension]: name}) if dimension in KINDS else ""


def limits_text(quotas: Iterable[Quota]) -> str:
    """Return limits in words: 100 per minute, 20 more at once."""
    return "; ".join(map(_limit_text, quotas))


def _limit_text(quota: Quota) -> str:
    if not quota.limit:
        return f"{number(quota.burst)} once"
    if quota.calendar is not None:
        return f"{number(quota.limit)} per {quota.calendar.unit} ({quota.calendar.zone})"
    text = f"{number(quota.limit)} per {window_text(quota.window_us)}"
    if not quota.burst:
        return text
    by_burst = quota.burst > 0 and not quota.keeps_capacity
    return text + (f", {number(quota.burst)} more" if by_burst else f", at most {number(quota.capacity)}") + " at once"


def window_text(length_us: int) -> str:
    """Return a window in words: minute, 15 min."""
    if length_us in _PERIODS:
        return _PERIODS[length_us]
    size, unit = next(each for each in _LENGTHS if length_us % each[0] == 0)
    return f"{length_us // size}\u202f{unit}"


def algorithms_text(quotas: Iterable[Quota]) -> str:
    """Return how limits count: token bucket."""
    names = {str(quota.algorithm) if quota.calendar is None else str(Algorithm.FIXED_WINDOW) for quota in quotas}
    return ", ".join(sorted(name.replace("_", " ") for name in names))


def callers_text(rule: Rule) -> str:
    """Return the dimensions of a rule in words: each user, each user and path, all callers together."""
    if rule.dimensions == ("global",):
        return "all callers together"
    return "each " + " and ".join(_EACH.get(name, name) for name in rule.dimensions)


def failure_text(rule: Rule) -> str:
    return "follows the default of the service" if rule.on_store_failure is None else _FAILURES[rule.on_store_failure]


def difference(before: Any, after: Any) -> list[tuple[str, str]]:
    """Return the difference of two bodies as pairs (added, removed or empty, line of YAML); None has no lines.

    Of long bodies, unchanged parts and most changes are omitted.
    """
    whole = _count(before) + _count(after)
    if whole > _LONG:
        before, after = _differing(before, after)
    old, new = (_lines(body) if body is not None and (body or whole <= _LONG) else [] for body in (before, after))
    found = []
    for _, begin, end, new_begin, new_end in difflib.SequenceMatcher(None, old, new).get_opcodes():
        if old[begin:end] == new[new_begin:new_end]:
            found += [("", f"  {text}") for text in old[begin:end]]
        else:
            found += [("removed", f"- {text}") for text in old[begin:end]]
            found += [("added", f"+ {text}") for text in new[new_begin:new_end]]
    return [*found, ("", "  \u2026")] if whole > _LONG else found


def _lines(body: Any) -> list[str]:
    return data_to_yaml(body).rstrip("\n").split("\n")[:_MOST_LINES]


def _count(body: Any) -> int:
    inner = body.values() if isinstance(body, dict) else body if isinstance(body, list) else ()
    return 1 + sum(map(_count, inner))


def _differing(before: Any, after: Any) -> tuple[Any, Any]:
    if isinstance(before, dict) and isinstance(after, dict):
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)][:_MOST_PARTS]
        pairs = {name: _differing(before.get(name), after.get(name)) for name in names}
        old, new = (
            {name: pair[side] for name, pair in pairs.items() if name in body}
            for side, body in enumerate((before, after))
        )
        return old, new
    if isinstance(before, list) and isinstance(after, list):
        begin = _alike(before, after)
        end = _alike(before[begin:][::-1], after[begin:][::-1])
        before, after = (body[begin : len(body) - end] for body in (before, after))
    return _first_parts(before), _first_parts(after)


def _alike(before: list[Any], after: list[Any]) -> int:
    pairs = enumerate(zip(before, after, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(before), len(after)))


def _first_parts(body: Any) -> Any:
    if isinstance(body, dict):
        return {name: _first_parts(part) for name, part in islice(body.items(), _MOST_PARTS)}
    return [_first_parts(part) for part in body[:_MOST_PARTS]] if isinstance(body, list) else body


def written(value: float) -> str:
    """Write a count in full, or a rate in few characters."""
    return number(value) if value == int(value) else short(value)


def line(values: Sequence[float], width: float, height: float) -> str:
    """Return the points of a line through values, for an SVG of a size."""
    most = max([*values, 1e-9])
    step = width / max(len(values) - 1, 1)
    return " ".join(f"{index * step:.1f},{height - height * value / most:.1f}" for index, value in enumerate(values))


_PARENTS = {"/rule": "/rules", "/revision": "/revisions", "/undo": "/revisions", "/consumer": "/consumers"}
"""Pages below an entry of the navigation."""
_TEMPLATES = jinja2.Environment(
    loader=jinja2.PackageLoader("headgate.admin.console"),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {"number": number, "short": short, "span": span, "when": when}
_TEMPLATES.globals |= {
    each.__name__: each
    for each in (
        *(algorithms_text, caller_link, callers_text, difference, failure_text, limits_text, line, link),
        *(percent, window_text, written),
    )
}
