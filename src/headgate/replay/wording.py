"""How the terminal and the report say what a replay found."""

from __future__ import annotations

from headgate.replay.replaying import ReplaySummary


def notes_on(summary: ReplaySummary) -> list[str]:
    """Return what has to be known about a replay besides its figures."""
    notes = []
    if not summary.is_complete:
        notes.append("Interrupted: this is what was found until then.")
    if not summary.lines:
        notes.append("No request was replayed.")
    for rules in summary.rules[:1]:
        if rules.unmatched:
            share = percent(rules.unmatched, rules.requests)
            notes.append(f"{rules.unmatched:,} requests ({share}) met no rule.")
        if rules.allow_listed:
            notes.append(f"{rules.allow_listed:,} requests are on the allow list.")
        if rules.invalid:
            notes.append(
                f"{rules.invalid:,} requests are not decided: the service would answer them with an error. "
                f"The first: {rules.problem}"
            )
    if summary.fields_missing:
        named = ", ".join(summary.fields_missing)
        notes.append(f"No line has a value for {named}: see --principal, --attribute and --tier.")
    if summary.late:
        notes.append(
            f"{summary.late:,} lines are older than a line before them, by up to {summary.latest_seconds:,.0f} s. "
            "They were decided at the time of that line."
        )
    if summary.answered_429:
        notes.append(f"{summary.answered_429:,} requests were answered 429 when they were made.")
    if summary.outside:
        notes.append(f"{summary.outside:,} lines are outside the period of --since and --until.")
    if summary.stores_full:
        notes.append("More limits were in use than --max-keys: callers that shared one may have been refused early.")
    if summary.unread:
        notes.append(f"{summary.unread:,} lines could not be read; the first of them:")
    return notes


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
