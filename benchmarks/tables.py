"""Markdown tables, and how numbers and verdicts look in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; the first column is text, the rest are right-aligned."""
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def times(ratio: float | None) -> str:
    """Return a ratio; "-" where there is nothing to compare with."""
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
    """Say it in a word."""
    return "n/a" if passed is None else "PASS" if passed else "**FAIL**"
