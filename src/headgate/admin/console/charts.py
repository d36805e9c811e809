"""Charts of decisions over time: from numbers to geometry, which `charts.html` draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import floor, log10
from typing import Any, NamedTuple

from headgate.admin.console.rendering import short
from headgate.admin.usage import OUTCOMES
from headgate.observe.recorder import ALLOWED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED

WIDTH, HEIGHT = 600, 150
"""The units of a plot, which is stretched to the width of the page."""
_LABELS = (5, 6, 8)
"""The numbers of labels that the time axis may have."""
_MINUTE, _DAY = timedelta(minutes=1), timedelta(days=1)
_STEPS = (1, 2, 2.5, 5, 10)


class Series(NamedTuple):
    """A series of a chart."""

    name: str
    kind: str
    """Its colour: accent, good, bad, warn or shadow."""
    values: Sequence[float]


class Part(NamedTuple):
    """The part of a bar for one series."""

    kind: str
    y: float
    height: float


class Bar(NamedTuple):
    """The bar of one moment."""

    at: datetime
    x: float
    width: float
    parts: list[Part]
    values: list[float]

    @property
    def time(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M} UTC"


class Chart(NamedTuple):
    """A chart of stacked bars."""

    series: Sequence[Series]
    bars: list[Bar]
    marks: list[str]
    """Labels of the vertical axis, the largest first."""
    times: list[str]
    """Labels of the time axis."""

    @property
    def is_empty(self) -> bool:
        return not any(any(each.values) for each in self.series)


def stacked(times: Sequence[int], series: Sequence[Series]) -> Chart:
    """Return a chart of values at equidistant times, in microseconds since the epoch."""
    sums = [sum(each.values[place] for each in series) for place in range(len(times))]
    top = _above(max(sums, default=0))
    moments = [datetime.fromtimestamp(each / 1_000_000, UTC) for each in times]
    width = WIDTH / max(len(times), 1)
    bars = []
    for place, at in enumerate(moments):
        foot, parts = float(HEIGHT), []
        for each in series:
            height = HEIGHT * each.values[place] / top
            foot -= height
            parts.append(Part(each.kind, round(foot, 2), round(height, 2)))
        values = [each.values[place] for each in series]
        bars.append(Bar(at, round(place * width, 2), round(width * 0.86, 2), parts, values))
    marked = _marked(moments)
    return Chart(series, bars, [short(top), short(top / 2), "0"], marked)


def _marked(moments: Sequence[datetime]) -> list[str]:
    """Return labels at equal distances, whole minutes or days, from the first moment to the end of the last step."""
    if len(moments) < min(_LABELS):
        return []
    span = (moments[-1] - moments[0]) * len(moments) / (len(moments) - 1)
    unit, written = (_DAY, "%a") if span > _DAY else (_MINUTE, "%H:%M")
    steps = next((each - 1 for each in _LABELS if not span % (unit * (each - 1))), min(_LABELS) - 1)
    return [f"{moments[0] + span * place / steps:{written}}" for place in range(steps + 1)]


def of_series(points: Iterable[Mapping[str, Any]], times: Sequence[int]) -> Chart:
    """Return the chart of a rule's decisions, from its points in `Reports.series`, in steps that begin at `times`."""
    values = {outcome: _by_step(points, [outcome], times) for outcome in OUTCOMES}
    allowed = [sum(both) for both in zip(values[ALLOWED], values[SHADOW_ALLOWED], strict=True)]
    series = [Series("Allowed", "accent", allowed), Series("Refused", "bad", values[DENIED])]
    if any(values[SHADOW_DENIED]):
        series.append(Series("Would be refused, in shadow", "shadow", values[SHADOW_DENIED]))
    return stacked(times, series)


def sums(points: Iterable[Mapping[str, Any]], times: Sequence[int]) -> list[int]:
    return _by_step(points, (ALLOWED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED), times)


def _by_step(points: Iterable[Mapping[str, Any]], outcomes: Iterable[str], times: Sequence[int]) -> list[int]:
    found = {
        round(datetime.fromisoformat(each["at"]).timestamp() * 1_000_000): sum(each[name] for name in outcomes)
        for each in points
    }
    return [found.get(at, 0) for at in times]


def _above(value: float) -> float:
    """Round a value up to a round number."""
    if value <= 0:
        return 1
    size = 10.0 ** floor(log10(value))
    return next(size * step for step in _STEPS if size * step >= value * 0.9999)
