"""Text shared by the terminal and the report of a replay."""

from __future__ import annotations

from datetime import datetime, timedelta

from headgate.messages import counted
from headgate.replay.replaying import ReplaySummary


def notes_on(summary: ReplaySummary) -> list[str]:
    rules = summary.rules[0]
    fields, met = ", ".join(summary.fields_missing), percent(rules.unmatched, rules.requests)
    late = f"by up to {summary.latest_seconds:,.0f} s: they were decided at the time of that line"
    notes: list[tuple[object, str]] = [
        (not summary.is_complete, "Interrupted: these are the results until then."),
        (not summary.lines, "No request was replayed."),
        (rules.unmatched, f"{counted(rules.unmatched, 'request')} ({met}) matched no rule."),
        (rules.allow_listed, f"Admitted by the allow list: {counted(rules.allow_listed, 'request')}."),
        (
            rules.invalid,
            f"{counted(rules.invalid, 'request')} would be answered with an error, the first: {rules.problem}",
        ),
        (fields, f"No line has a value for {fields}: see --principal, --attribute and --tier."),
        (summary.late, f"Out of order: {counted(summary.late, 'line')}, older than a line before {late}."),
        (summary.answered_429, f"Answered with 429 when they were made: {counted(summary.answered_429, 'request')}."),
        (summary.outside, f"Outside the period of --since and --until: {counted(summary.outside, 'line')}."),
        (summary.stores_full, "More limits were in use than --max-keys: callers share some, and may be refused early."),
        (summary.unread, f"{counted(summary.unread, 'line')} could not be read, such as:"),
    ]
    return [note for is_true, note in notes if is_true]


def percent(part: int, whole: int) -> str:
    share = 100 * part / whole if whole else 0
    return f"{share:.2f} %" if 0 < share < 1 else f"{share:.1f} %"


def unit_text(seconds: int) -> str:
    """Return a duration in words, such as "2 minutes" or "an hour"."""
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1)):
        if seconds % size == 0:
            count = seconds // size
            return f"{count} {unit}s" if count > 1 else f"{'an' if unit == 'hour' else 'a'} {unit}"
    return f"{seconds} seconds"


def later(began: datetime, seconds: int) -> datetime:
    """Return the time after a number of seconds, or the last possible one."""
    try:
        return began + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=began.tzinfo)


def readable(moment: str | None) -> str:
    """Return an RFC 3339 time in UTC for people, to the second."""
    return (moment or "").replace("T", " ").rstrip("Z")[:19]


def period_text(began: str | None, ended: str | None) -> str:
    return f"{readable(began)} to {readable(ended)}"
