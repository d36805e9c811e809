"""How the terminal and the report say what a replay found."""

from __future__ import annotations

from headgate.replay.replaying import ReplaySummary


def notes_on(summary: ReplaySummary) -> list[str]:
    """Return what has to be known about a replay besides its figures."""
    rules = summary.rules[0]
    fields, met = ", ".join(summary.fields_missing), percent(rules.unmatched, rules.requests)
    late = f"by up to {summary.latest_seconds:,.0f} s: they were decided at the time of that line"
    notes: list[tuple[object, str]] = [
        (not summary.is_complete, "Interrupted: this is what was found until then."),
        (not summary.lines, "No request was replayed."),
        (rules.unmatched, f"{rules.unmatched:,} requests ({met}) met no rule."),
        (rules.allow_listed, f"{rules.allow_listed:,} requests are on the allow list."),
        (rules.invalid, f"{rules.invalid:,} requests would be answered with an error, the first: {rules.problem}"),
        (fields, f"No line has a value for {fields}: see --principal, --attribute and --tier."),
        (summary.late, f"{summary.late:,} lines are older than a line before them, {late}."),
        (summary.answered_429, f"{summary.answered_429:,} requests were answered 429 when they were made."),
        (summary.outside, f"{summary.outside:,} lines are outside the period of --since and --until."),
        (summary.stores_full, "More limits were in use than --max-keys: callers share some, and may be refused early."),
        (summary.unread, f"{summary.unread:,} lines could not be read; the first of them:"),
    ]
    return [note for is_true, note in notes if is_true]


def percent(part: int, whole: int) -> str:
    """Return a share in percent."""
    share = 100 * part / whole if whole else 0
    return f"{share:.2f} %" if 0 < share < 1 else f"{share:.1f} %"


def unit_text(seconds: int) -> str:
    """Return a length of time in words, such as "2 minutes" or "an hour"."""
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds % size == 0:
            count = seconds // size
            return f"{count} {unit}s" if count > 1 else f"{'an' if unit == 'hour' else 'a'} {unit}"
    return f"{seconds} seconds"


def readable(moment: str | None) -> str:
    """Return a moment of RFC 3339 in UTC, to the second, for people."""
    return (moment or "").replace("T", " ").rstrip("Z")[:19]


def period_text(began: str | None, ended: str | None) -> str:
    """Return from when to when."""
    return f"{readable(began)} to {readable(ended)}"
