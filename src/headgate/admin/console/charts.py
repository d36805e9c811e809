"""Charts of decisions over time: their axes; `charts.html` draws them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import floor, log10
from typing import Any, NamedTuple

from headgate.admin.usage import OUTCOMES
from headgate.observe.recorder import ALLOWED, DENIED, SHADOW_ALLOWED, SHADOW_DENIED

_LABELS = (5, 6, 8)
"""The numbers of labels that the time axis may have."""
_MINUTE, _DAY = timedelta(minutes=1), timedelta(days=1)
_STEPS = (1, 2, 2.5, 5, 10)


class Series(NamedTuple):
    name: str
    kind: str
    """Its colour: accent, good, bad, warn or shadow."""
    values: Sequence[float]


class Chart(NamedTuple):
    moments: Sequence[datetime]
    """The beginnings of the steps."""
    series: Sequence[Series]
    top: float
    """The largest value of the vertical axis."""
    labels: list[str]
    """Of the time axis."""

    @property
    def is_empty(self) -> bool:
        return not any(any(each.values) for each in self.series)


def stack(times: Sequence[int], series: Sequence[Series]) -> Chart:
    """Return a chart of values at equidistant times, in microseconds since the epoch."""
    sums = [sum(each.values[place] for each in series) for place in range(len(times))]
    moments = [datetime.fromtimestamp(each / 1_000_000, UTC) for each in times]
    return Chart(moments, series, _above(max(sums, default=0)), _time_labels(moments))


def _time_labels(moments: Sequence[datetime]) -> list[str]:
    """Return labels at equal distances, whole minutes or days, from the first moment to the end of the last step."""
    if len(moments) < min(_LABELS):
        return []
    span = (moments[-1] - moments[0]) * len(moments) / (len(moments) - 1)
    unit, written = (_DAY, "%a") if span > _DAY else (_MINUTE, "%H:%M")
    steps = next((each - 1 for each in _LABELS if not span % (unit * (each - 1))), min(_LABELS) - 1)
    return [f"{moments[0] + span * place / steps:{written}}" for place in range(steps + 1)]


def of_series(points: Iterable[Mapping[str, Any]], times: Sequence[int]) -> Chart:
    """Return the chart of a rule's decisions, from points of `AdminService.series`, in steps that begin at `times`."""
    values = {outcome: by_step(points, [outcome], times) for outcome in OUTCOMES}
    allowed = [sum(both) for both in zip(values[ALLOWED], values[SHADOW_ALLOWED], strict=True)]
    series = [Series("Allowed", "accent", allowed), Series("Refused", "bad", values[DENIED])]
    if any(values[SHADOW_DENIED]):
        series.append(Series("Would be refused, in shadow", "shadow", values[SHADOW_DENIED]))
    return stack(times, series)


def by_step(points: Iterable[Mapping[str, Any]], outcomes: Iterable[str], times: Sequence[int]) -> list[float]:
    """Return the sums of some outcomes in each step; 0 in steps without a point."""
    found = {moment_of(each["at"]): sum(each[name] for name in outcomes) for each in points}
    return [found.get(at, 0) for at in times]


def moment_of(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)


def _above(value: float) -> float:
    """Round a value up to a round number."""
    if value <= 0:
        return 1
    size = 10.0 ** floor(log10(value))
    return next(size * step for step in _STEPS if size * step >= value * 0.9999)
