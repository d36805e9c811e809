"""``headgate revisions`` and ``headgate undo``: list and undo changes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from headgate.cli.admin_client import KEY, Json, add_admin_options, call, confirm, report_lagging, write_list
from headgate.cli.command import NO, OK, Commands, Terminal, add_command
from headgate.cli.served_rules import BULK_SECONDS
from headgate.core.errors import UsageError
from headgate.core.numbers import printable

_AUTOMATIC = "clean-up"
"""The actor that removes expired overrides."""
_SHOWN = 100
"""Changes of a revision to show."""
_COLOURS = {"create": "green", "update": "cyan", "delete": "red"}
_LONGEST = 200
"""Longest value to show, in characters."""


def add(commands: Commands) -> None:
    revisions = add_command(
        commands,
        "revisions",
        _revisions,
        "list changes of rules, tiers, users and settings, or show one",
        more=KEY,
        examples="headgate revisions\nheadgate revisions 12",
    )
    revisions.add_argument("revision", metavar="REVISION", nargs="?", type=int, help="show its changes")
    revisions.add_argument("--limit", type=int, default=50, metavar="N", help="at most so many [%(default)s]")
    revisions.add_argument("--offset", type=int, default=0, metavar="N", help="skip so many [%(default)s]")
    add_admin_options(revisions)
    undo = add_command(
        commands,
        "undo",
        _undo,
        "undo all changes of a revision",
        more="That creates a new revision, which can be undone too. Conflicting later changes are listed, and nothing\n"
        "is changed; --force shows what it would change, and asks.\n\n"
        "Exit codes: 0 done, 1 not confirmed, or not all nodes run it yet, 2 it cannot be undone, or wrong usage.",
        examples="headgate undo --reason 'wrong file'\nheadgate undo 12 --dry-run\nheadgate undo 12 --force",
    )
    undo.add_argument(
        "revision", metavar="REVISION", nargs="?", type=int, help="default: the newest, except automatic clean-ups"
    )
    undo.add_argument("--force", action="store_true", help="undo values that were changed again later, too")
    undo.add_argument("--dry-run", action="store_true", help="only show what would change")
    undo.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    add_admin_options(undo, changes=True, waits=True, seconds=BULK_SECONDS)


def _revisions(arguments: argparse.Namespace, terminal: Terminal) -> int:
    query: Json = {"offset": arguments.offset, "limit": arguments.limit}
    if arguments.revision is None:
        found = call(arguments, "GET", "/revisions", query=query)["items"]
        rows = [[each[name] for name in ("revision", "at", "actor", "summary", "reason")] for each in found]
        return write_list(arguments, terminal, found, ("REVISION", "AT", "WHO", "WHAT", "WHY"), rows)
    found = call(arguments, "GET", f"/revisions/{arguments.revision}", query=query)
    if arguments.json:
        terminal.write_json(found)
        return OK
    why = f": {found['reason']}" if found["reason"] else ""
    terminal.write(printable(f"revision {found['revision']}, {found['at']}, by {found['actor']}{why}"))
    _show(found["items"], found["total"] - arguments.offset, terminal)
    return OK


def _undo(arguments: argparse.Namespace, terminal: Terminal) -> int:
    number = arguments.revision if arguments.revision is not None else _newest(arguments)
    query: Json = {"force": "true" if arguments.force else "", "limit": _SHOWN}

    def undone(*, dry_run: bool, expected: int | None = None) -> Json:
        path = f"/revisions/{number}/undo"
        given = {**query, "dry_run": "true" if dry_run else ""}
        doing = f"undoing revision {number}"
        answer: Json = call(arguments, "POST", path, query=given, expected=expected, doing=doing)
        return answer

    seen: int | None = None
    if arguments.force and not (arguments.dry_run or arguments.yes or arguments.json):
        planned = undone(dry_run=True)
        _show(planned["changes"], planned["total"], terminal)
        if planned["total"]:
            seen = planned["revision"] - 1  # confirm only what was shown
            if not confirm(arguments, terminal, "This overrides later changes. Continue?"):
                return NO
    answer = undone(dry_run=arguments.dry_run, expected=seen)
    if arguments.json:
        terminal.write_json(answer)
    else:
        if seen is None:
            _show(answer["changes"], answer["total"], terminal)
        would = "would be " if arguments.dry_run else ""
        terminal.write(f"revision {number} {would or 'is '}undone, revision {answer['revision']} {would}in force")
    return OK if arguments.dry_run else report_lagging(arguments, terminal)


def _newest(arguments: argparse.Namespace) -> int:
    """Return the newest revision that is not automatic. Raises UsageError."""
    for each in call(arguments, "GET", "/revisions", query={"limit": 1000})["items"]:
        if each["actor"] != _AUTOMATIC:
            number: int = each["revision"]
            return number
    raise UsageError("there is nothing to undo; see headgate revisions")


def _show(changes: list[Json], total: int, terminal: Terminal) -> None:
    for change in changes:
        line = printable(f"{change['action']:<6} {change['kind']} {change['id']}")
        terminal.write(terminal.styled(line, _COLOURS[change["action"]]))
        for name, before, after in _differences(change["before"], change["after"]):
            terminal.write(printable(f"       {name}{before} -> {after}"))
    if total > len(changes):
        terminal.write(f"and {total - len(changes)} more")
    if not total:
        terminal.write("nothing changes: all of it was undone already")


def _differences(before: Any, after: Any, path: str = "") -> Iterator[tuple[str, str, str]]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            yield from _differences(before.get(name), after.get(name), f"{path}.{name}" if path else name)
    else:
        yield f"{path}: " if path else "", _text(before), _text(after)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
