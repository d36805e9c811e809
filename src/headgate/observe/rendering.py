"""Metrics as text: the format of Prometheus (0.0.4), and OpenMetrics (1.0.0) for those who ask for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from headgate.latency import BOUNDS_NS, BUCKETS
from headgate.observe.families import FAMILIES, NANO, Family, Kind
from headgate.observe.table import Series

PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
Merged: TypeAlias = Mapping[str, Mapping[str, tuple[int, ...]]]
"""The values of each series, by metric and labels."""


def merged(slices: Iterable[tuple[bool, Iterable[Series]]]) -> Merged:
    """Return the numbers of all workers as one; each is given with whether it lives."""
    found: dict[str, dict[str, tuple[int, ...]]] = {name: {} for name in FAMILIES}
    for alive, series in slices:
        for family, labels, values in series:
            if not alive and family.kind is Kind.GAUGE:
                continue
            known = found[family.name]
            if labels in known:
                values = tuple([family.merged(a, b) for a, b in zip(known[labels], values, strict=True)])  # noqa: PLW2901
            known[labels] = values
    return found


def wants_openmetrics(accept: bytes | None) -> bool:
    """Say whether an Accept header asks for OpenMetrics, as Prometheus does when it has a choice."""
    return accept is not None and b"application/openmetrics-text" in accept.lower()


def rendered(values: Merged, *, openmetrics: bool = False) -> bytes:
    """Return the text."""
    lines: list[str] = []
    for family in FAMILIES.values():
        series = values.get(family.name)
        if not series:
            continue
        name = family.name if openmetrics else family.shown_name
        lines += [f"# HELP {name} {family.help}", f"# TYPE {name} {family.kind}"]
        for labels, cells in sorted(series.items()):
            if family.kind is Kind.HISTOGRAM:
                _histogram(lines, family, labels, cells)
            else:
                lines.append(f"{family.shown_name}{_braced(labels)} {_number(cells[0], family.scale)}")
    if openmetrics:
        lines.append("# EOF")
    lines.append("")
    return "\n".join(lines).encode()


def _histogram(lines: list[str], family: Family, labels: str, cells: Sequence[int]) -> None:
    before = f"{labels}," if labels else ""
    count = 0
    for bound, bucket in zip(_BOUNDS, cells, strict=False):
        count += bucket
        lines.append(f'{family.name}_bucket{{{before}le="{bound}"}} {count}')
    count = sum(cells[:BUCKETS])
    lines.append(f'{family.name}_bucket{{{before}le="+Inf"}} {count}')
    lines.append(f"{family.name}_count{_braced(labels)} {count}")
    lines.append(f"{family.name}_sum{_braced(labels)} {_number(cells[-1], family.scale)}")


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _number(cell: int, scale: int) -> str:
    return str(cell) if scale == 1 else repr(cell / scale)


_BOUNDS = [repr(bound / NANO) for bound in BOUNDS_NS]
