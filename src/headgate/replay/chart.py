"""Counts over time as characters, for terminals: charts with axes, and lines of one row for tables.

A column stands for one bucket of time, or for the sum of several if there are more buckets than columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

UNICODE, ASCII = " ▁▂▃▄▅▆▇█", " .:|#"
"""The characters of a cell, from empty to full."""
_AXES = {UNICODE: ("│", "└", "─"), ASCII: ("|", "+", "-")}
_EIGHT_HOURS = 8 * 3600


def levels_for(encoding: str | None) -> str:
    """Return the characters of charts that a stream can encode."""
    try:
        UNICODE.encode(encoding or "ascii")
    except (UnicodeError, LookupError):
        return ASCII
    return UNICODE


def columns(counts: Sequence[int], most: int) -> tuple[list[int], int]:
    """Sum the counts to at most `most` columns; return them and the number of buckets in each."""
    each = -(-len(counts) // most) or 1
    return [sum(counts[start : start + each]) for start in range(0, len(counts), each)], each


def sparkline(counts: Sequence[int], width: int, levels: str = UNICODE) -> str:
    """Return counts as a line of characters; every nonzero count is visible."""
    found, _ = columns(counts, width)
    highest = max(found, default=0)
    return "".join([levels[_level(count, highest, len(levels) - 1)] for count in found])


class Plot:
    """Charts of several counts over the same time, one below the other, with one axis of time.

    `width` is in characters, including the scale; `charts` are the counts of all.
    """

    def __init__(self, width: int, charts: Sequence[Sequence[int]], levels: str = UNICODE) -> None:
        self._levels = levels
        self._margin = 0
        for _ in range(2):  # the wider the scale, the fewer columns, and the more each has
            self._room = max(1, width - self._margin - 2)
            highest = max([max(columns(counts, self._room)[0], default=0) for counts in charts], default=0)
            self._margin = max(self._margin, len(f"{highest:,}"))
        self._room = max(1, width - self._margin - 2)

    def buckets_each(self, buckets: int) -> int:
        """Return the number of buckets in a column, given their total number."""
        return columns([0] * buckets, self._room)[1]

    def rows(self, counts: Sequence[int], height: int) -> list[str]:
        """Return counts as rows of bars. Few columns are made wider."""
        line, corner, dash = _AXES[self._levels]
        found, _ = columns(counts, self._room)
        highest, steps = max(found, default=0), len(self._levels) - 1
        wide = max(1, self._room // max(1, len(found)))
        bars = [_level(count, highest, steps * height) for count in found]
        rows = []
        for row in range(height - 1, -1, -1):
            scale = f"{highest:,}" if row == height - 1 else ""
            cells = [self._levels[min(steps, max(0, bar - steps * row))] * wide for bar in bars]
            rows.append(f"{scale.rjust(self._margin)} {line}{''.join(cells)}".rstrip())
        return [*rows, f"{'0'.rjust(self._margin)} {corner}{dash * (wide * len(found))}"]

    def times(self, began: datetime, end: datetime, bucket_seconds: int, buckets: int) -> str:
        """Return the axis of time: the start of the first bucket and the end of the last."""
        count = len(columns([0] * buckets, self._room)[0])
        precise = "%Y-%m-%d %H:%M:%S" if bucket_seconds < 60 else "%Y-%m-%d %H:%M"
        form = "%Y-%m-%d" if bucket_seconds > _EIGHT_HOURS else precise
        left, right = f"{began:{form}}", f"{end:{form}}"
        gap = count * max(1, self._room // max(1, count)) - len(left) - len(right)
        return f"{' ' * (self._margin + 2)}{left}{' ' * gap if gap > 0 else ' - '}{right}"


def _level(count: int, highest: int, steps: int) -> int:
    return -(-count * steps // highest) if highest else 0
