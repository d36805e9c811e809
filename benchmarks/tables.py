"""Pages of the report as Markdown: their shape, tables, numbers and verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; the first column is text, the rest are right-aligned."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def times(ratio: float | None) -> str:
    """Return a ratio; "-" without a comparison."""
    return "-" if ratio is None else f"{ratio:.2f}"


def percent(part: float, whole: float, digits: int = 3) -> str:
    """Return a share in percent; "-" of nothing."""
    return f"{100 * part / whole:.{digits}f} %" if whole else "-"


def between(values: Iterable[float], digits: int, unit: str) -> str:
    """Return the lowest and the highest value, in a unit."""
    found = list(values)
    low, high = (f"{value:,.{digits}f}" for value in (min(found), max(found)))
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"


def verdict(passed: bool | None) -> str:  # noqa: FBT001  the verdict on a bool
    """Return the verdict in a word."""
    return "n/a" if passed is None else "PASS" if passed else "**FAIL**"


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the report."""

    title: str
    what: str
    """The measurement, and the aims."""
    method: str
    short: Sequence[tuple[str, str, str]]
    """Lines for the page of results: what, the figures of Headgate, and their comparison."""
    verdicts: str = ""
    sections: Sequence[Sequence[str]] = ()
    """The title of each, then its texts and tables."""

    def page(self) -> str:
        """Return the page of this part."""
        sections = [("Verdicts", self.verdicts)] if self.verdicts else []
        lines = [f"# Benchmarks: {self.title}\n", self.what]
        for title, *texts in (*sections, ("Method", self.method), *self.sections):
            lines += [f"## {title}\n", *texts]
        return "\n".join(lines)
