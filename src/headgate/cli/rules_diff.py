"""The difference of two files of rules, for people."""

from __future__ import annotations

import json
from typing import Any

from headgate.cli.terminal import Terminal, safe
from headgate.policy.diff import Diff, FieldChange, State

_FATES = {
    State.KEPT: ("what was used stays counted", "dim"),
    State.PARTLY: ("some of its limits start afresh", "yellow"),
    State.AFRESH: ("starts afresh: what was used is forgotten", "yellow"),
}


def tell_diff(diff: Diff, terminal: Terminal) -> None:
    """Write what came, what went, and what changed from what to what."""
    if diff.same:
        terminal.say("no difference")
        return
    for sign, colour, rules in (("-", "red", diff.removed), ("+", "green", diff.added)):
        for rule in rules:
            quotas = "; ".join(map(str, rule.quotas))
            terminal.say(terminal.styled(f"{sign} rule {rule.id}: {quotas} by {rule.dimension}", colour))
    for change in diff.changed:
        terminal.say(terminal.styled(f"~ rule {change.id}", "cyan"))
        for field in change.fields:
            terminal.say(f"    {_line(field)}")
        told, colour = _FATES[change.state]
        because = f" ({change.because})" if change.because else ""
        terminal.say(terminal.styled(f"    {told}{because}", colour))
    for field in diff.others:
        sign = "+" if field.before is None else "-" if field.after is None else "~"
        terminal.say(f"{sign} {_line(field)}")
        if field.state in {State.PARTLY, State.AFRESH}:
            told, colour = _FATES[field.state]
            terminal.say(terminal.styled(f"    {told}", colour))
    count = len(diff.added), len(diff.removed), len(diff.changed), len(diff.others)
    terminal.say("\nrules: {} added, {} removed, {} changed; other changes: {}".format(*count))


def _line(change: FieldChange) -> str:
    name, before, after = safe(change.field), _written(change.before), _written(change.after)
    if change.before is None:
        return f"{name}: {after}" if change.after is not None else name
    return f"{name}: {before} -> {after}" if change.after is not None else f"{name}: {before} -> not given"


def _written(value: Any) -> str:
    return safe(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
