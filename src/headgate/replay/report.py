"""A replay as a self-contained HTML page: no scripts, no requests, light and dark.

Logs contain what clients sent. So the template escapes every text, and the content security policy allows nothing but
the page's own style.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from headgate.messages import counted, printable
from headgate.replay.chart import columns
from headgate.replay.replaying import ReplaySummary
from headgate.replay.results import DENY_LIST
from headgate.replay.wording import later, notes_on, percent, period_text, readable, unit_text

MOST_RULES = 200
"""Rules shown of each file, those that refuse most."""
_TALL = 100
"""Height of charts in their own units."""


def report(summary: ReplaySummary, names: Sequence[str], logs: Sequence[str]) -> str:
    """Return the page; `names` are those of the rule files, `logs` those of the logs."""
    style = _text("report.css")
    digest = b64encode(sha256(style.encode()).digest()).decode()
    starts = datetime.fromisoformat(summary.buckets_from)

    def moment(place: int, form: str = "%Y-%m-%d %H:%M") -> str:
        return f"{later(starts, summary.bucket_seconds * place):{form}}"

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, finalize=_finalize)
    return environment.from_string(_text("report.html")).render(
        summary=summary,
        names=names,
        logs=logs,
        notes=notes_on(summary),
        style=Markup(style),  # noqa: S704  our own
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        unit=unit_text(summary.bucket_seconds),
        moment=moment,
        tall=_TALL,
        most=MOST_RULES,
        deny_list=DENY_LIST,
        number="{:,}".format,
        **{each.__name__: each for each in (area, columns, counted, percent, period_text, readable, width)},
    )


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _finalize(value: Any) -> Any:
    """Escape characters that cannot be shown."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def width(part: int, whole: int) -> float:
    """Return the width of a bar in percent; that of every part is visible."""
    share = 100 * part / whole if whole else 0
    return round(max(share, 1 if part else 0), 2)


def area(counts: Sequence[int], highest: int) -> str:
    """Return the outline of counts as steps; every nonzero count is visible."""
    path, last = f"M0 {_TALL}", 0.0
    for place, count in enumerate(counts):
        height = max(_TALL * count / highest, 1.5) if count else 0
        if height != last:
            path += f"H{place}V{round(_TALL - height, 1):g}"
            last = height
    return f"{path}H{len(counts)}V{_TALL}Z"
