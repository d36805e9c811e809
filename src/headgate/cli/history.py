"""``headgate revisions``, ``undo``, ``audit``, ``usage`` and ``database``: changes, decisions, and their tables."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headgate.cli.admin_client import BULK_TIMEOUT, KEY, AdminCommand, Json, admin_command
from headgate.cli.command import NO, OK, Commands, Terminal, option
from headgate.core.errors import UsageError
from headgate.messages import printable
from headgate.policy.request import UnknownRule

if TYPE_CHECKING:
    from headgate.admin.audit import Actor
    from headgate.admin.database import Database

COMMANDS = Commands()
AUDIT = COMMANDS.group("audit", f"List changes, with author and reason, and verify them.\n\n{KEY}")
DATABASE = COMMANDS.group("database", "Upgrade the tables of a database with rules, or show their version.")
_AUTOMATIC = "clean-up"
"""The actor that removes expired overrides."""
_SHOWN = 100
_COLOURS = {"create": "green", "update": "cyan", "delete": "red"}
_LONGEST = 200
_OUTCOMES = ("allowed", "denied", "shadow_allowed", "shadow_denied", "degraded")
_HOUR_US = 3_600_000_000
_URL = option("URL", "sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME")


@admin_command(
    COMMANDS,
    "revisions",
    option("REVISION?", "show the changes of this revision", type=int),
    option("--limit N", "the maximum number of lines", 50),
    option("--offset N", "the number of lines to skip", 0),
)
def _revisions(admin: AdminCommand) -> int:
    """List changes of rules, tiers, users and settings, or show one.

    These commands call the admin plane of a service, with the key in HEADGATE_ADMIN_KEY: `headgate serve` prints
    one when it starts with a new database.
    """
    options = admin.options
    query: Json = {"offset": options.offset, "limit": options.limit}
    if options.revision is None:
        found = admin.call("GET", "revisions", query=query)["items"]
        columns = {"REVISION": "revision", "AT": "at", "WHO": "actor", "WHAT": "summary", "WHY": "reason"}
        return admin.write_list(found, columns)
    found = admin.call("GET", "revisions", str(options.revision), query=query)
    if options.json:
        admin.terminal.write_json(found)
        return OK
    why = f": {found['reason']}" if found["reason"] else ""
    admin.terminal.write(printable(f"revision {found['revision']}, {found['at']}, by {found['actor']}{why}"))
    _show(found["items"], found["total"] - options.offset, admin.terminal)
    return OK


@admin_command(
    COMMANDS,
    "undo",
    option("REVISION?", "its number; default: the newest, except automatic clean-ups", type=int),
    option("--force", "also undo values that later revisions have changed"),
    option("--dry-run", "only show what would change"),
    option("--yes", "do not ask for confirmation"),
    changes=True,
    waits=True,
    timeout=BULK_TIMEOUT,
)
def _undo(admin: AdminCommand) -> int:
    """Undo all changes of a revision.

    The undo is a new revision, which can be undone too. If later changes conflict, they are listed, and
    nothing is changed; --force shows the changes and asks for confirmation.

    Exit codes: 0 done, 1 not confirmed, or not all nodes run it yet, 2 it cannot be undone, or a usage error.

    Examples:
      headgate undo 12 --force
    """
    options, terminal = admin.options, admin.terminal
    number = options.revision if options.revision is not None else _newest(admin)

    def undone(*, dry_run: bool, expected: int | None = None) -> Json:
        query = {"limit": _SHOWN, "force": "true" if options.force else "", "dry_run": "true" if dry_run else ""}
        path = ("revisions", str(number), "undo")
        answer: Json = admin.call("POST", *path, query=query, expected=expected, doing=f"undoing revision {number}")
        return answer

    seen: int | None = None
    if options.force and not (options.dry_run or options.yes or options.json):
        planned = undone(dry_run=True)
        _show(planned["changes"], planned["total"], terminal)
        if planned["total"]:
            seen = planned["revision"] - 1  # confirm only what was shown
            if not admin.confirm("This overrides later changes. Continue?"):
                return NO
    answer = undone(dry_run=options.dry_run, expected=seen)
    if options.json:
        terminal.write_json(answer)
    else:
        if seen is None:
            _show(answer["changes"], answer["total"], terminal)
        would = "would be " if options.dry_run else ""
        terminal.write(f"revision {number} {would or 'is '}undone, revision {answer['revision']} {would}in force")
    return OK if options.dry_run else admin.report_lagging()


def _newest(admin: AdminCommand) -> int:
    """Return the newest revision that is not automatic. Raises UsageError."""
    for each in admin.call("GET", "revisions", query={"limit": 1000})["items"]:
        if each["actor"] != _AUTOMATIC:
            number: int = each["revision"]
            return number
    raise UsageError("there is nothing to undo; see headgate revisions")


def _show(changes: list[Json], total: int, terminal: Terminal) -> None:
    for change in changes:
        line = printable(f"{change['action']:<6} {change['kind']} {change['id']}")
        terminal.write(line, _COLOURS[change["action"]])
        for name, before, after in _differences(change["before"], change["after"]):
            terminal.write(printable(f"       {name}{before} -> {after}"))
    if total > len(changes):
        terminal.write(f"and {total - len(changes)} more")
    if not total:
        terminal.write("nothing changes: all objects already have their earlier values")


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


_FILTERS = ("actor", "action", "kind", "subject")


@admin_command(
    AUDIT,
    "list",
    *[option(f"--{name} {name.upper()}", f"only changes of this {name}", "") for name in _FILTERS],
    option("--limit N", "the maximum number of lines", 50),
)
def _list_audit(admin: AdminCommand) -> int:
    """List changes, the newest first."""
    query = {name: getattr(admin.options, name) for name in (*_FILTERS, "limit")}
    columns = {"REVISION": "revision", "AT": "at", "WHO": "actor", "DID": "action", "TO": "kind", "": "subject"}
    return admin.write_list(admin.call("GET", "audit", query=query)["items"], columns | {"WHY": "reason"})


@admin_command(AUDIT, "verify", option("--contains DIGEST", "a digest that must be in the trail", ""), database=True)
def _verify_audit(admin: AdminCommand) -> int:
    """Detect tampering with the audit trail.

    A changed or removed entry is detected, unless all later entries were removed or rewritten too. To detect
    that, search for a digest that was recorded elsewhere (--contains).

    Exit codes: 0 intact, 1 tampered with, 2 usage error.

    Examples:
      headgate audit verify --contains DIGEST   # recorded elsewhere
    """
    contains = admin.options.contains

    async def work(database: Database, _: Actor) -> Json:
        from headgate.admin import audit  # noqa: PLC0415  an extra, slow to load

        async with database.reading() as connection:
            chain = await audit.verify(connection, contains)
        return {"intact": not chain.fault, **chain._asdict()}

    if admin.options.database:
        answer = admin.on_database(work)
    else:
        answer = admin.call("GET", "audit", "verify", query={"contains": contains})
    terminal = admin.terminal
    if admin.options.json:
        terminal.write_json(answer)
    elif answer["intact"]:
        older = f", and {answer['removed']} older ones removed by the retention" if answer["removed"] else ""
        terminal.write(f"intact: {answer['entries']} entries{older}", "green")
        terminal.write(f"the last digest, to record elsewhere: {answer['last']}")
    else:
        terminal.write_error(f"tampered with: {answer['fault']}", "red")
    return OK if answer["intact"] else NO


@admin_command(
    COMMANDS,
    "usage",
    option("RULE?", "the id of a rule; default: all", ""),
    option("--hours N", "the period, in hours", 24),
    option("--step STEP", "the period of each line", "hour", choices=("minute", "hour")),
)
def _usage(admin: AdminCommand) -> int:
    """Show the number of decisions of each rule over time.

    The numbers are from all services that share the database, which write them once a minute. Degraded
    decisions, made without the store, also count as allowed or denied.

    Examples:
      headgate usage orders-user --step minute --hours 1 --json
    """
    rule, step = admin.options.rule, admin.options.step
    since = time.time_ns() // 1000 - max(0, admin.options.hours) * _HOUR_US
    since -= since % (_HOUR_US if step == "hour" else _HOUR_US // 60)  # include the period that began before
    found = admin.pages("usage", rule_id=rule, step=step, since=max(0, since))
    if not found and rule:  # usage of a deleted rule is kept for a while
        known = [each["id"] for each in admin.pages("rules")]
        if rule not in known:
            raise UnknownRule(rule, known)
    lines: dict[tuple[str, str], dict[str, int]] = {}
    for each in found:
        lines.setdefault((each["at"], each["rule_id"]), {})[each["outcome"]] = each["count"]
    rows = [(at, rule, *(counts.get(outcome, 0) for outcome in _OUTCOMES)) for (at, rule), counts in lines.items()]
    return admin.write_rows(found, ("SINCE", "RULE", *(each.upper().replace("_", " ") for each in _OUTCOMES)), rows)


@DATABASE.command("upgrade", _URL)
def _upgrade(options: argparse.Namespace, terminal: Terminal) -> int:
    """Upgrade the tables of a database to this version."""
    return asyncio.run(_migrate(options.url, terminal, upgrade=True))


@DATABASE.command("status", _URL)
def _status(options: argparse.Namespace, terminal: Terminal) -> int:
    """Show the version of a database's tables."""
    return asyncio.run(_migrate(options.url, terminal, upgrade=False))


async def _migrate(url: str, terminal: Terminal, *, upgrade: bool) -> int:
    from headgate.admin.database import Database as Opened  # noqa: PLC0415  an extra, slow to load
    from headgate.admin.database import SchemaMismatch  # noqa: PLC0415

    database = Opened(url)
    name = printable(database.name)
    if not upgrade and not database.exists:  # opening would create it
        raise UsageError(f"{name} does not exist")
    try:
        before = await database.schema()
        if upgrade:
            await database.upgrade()
        found = await database.schema()
        if found is None:
            terminal.write(f"{name}: empty")
            return NO
        await database.check_schema()
        moved = f", upgraded from {before or 'nothing'}" if found != before else ""
        terminal.write(f"{name}: version {found}{moved}, as this Headgate requires")
        return OK
    except SchemaMismatch as error:
        terminal.write_error(printable(str(error)))
        return NO
    finally:
        await database.close()
