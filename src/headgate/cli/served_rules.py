"""``headgate rules get``, ``apply``, ``versions`` and others: the rules of a service, or of a database."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headgate.cli import progress
from headgate.cli.admin_client import BULK_TIMEOUT, AdminCommand, Json, admin_command, admin_options
from headgate.cli.command import NO, OK, Commands, Terminal, as_json, duration_us, option, split_pair
from headgate.cli.rule_files import read_rules, reports_problems
from headgate.config.yaml_text import Document, resolve_scalar
from headgate.core.errors import UsageError
from headgate.core.quota import SECOND
from headgate.files import replace_file
from headgate.messages import counted, printable
from headgate.policy.loading import load
from headgate.policy.model import Ruleset

if TYPE_CHECKING:
    from headgate.admin.audit import Actor
    from headgate.admin.database import Database

COMMANDS = Commands()
_DAY_US = 86_400_000_000
LISTED = 20
_NAMED = 5
_ID = option("ID", "the id of a rule")


@admin_command(
    COMMANDS,
    "get",
    option("ID?", "the id of a rule; default: all, as a file", ""),
    option("-o --output FILE", "write to this file, which is replaced only after a complete download", ""),
    timeout=BULK_TIMEOUT,
)
def _get_rule(admin: AdminCommand) -> int:
    """Show a rule in force, or all rules as a file."""
    options = admin.options
    if options.id:
        text = as_json(admin.call("GET", "rules", options.id))
    elif options.json:
        text = as_json(admin.pages("rules"))
    else:
        text = _export(admin)
    if not options.output:
        admin.terminal.out.write(text)
        return OK
    try:
        replace_file(Path(options.output), text.encode())
    except OSError as error:
        raise UsageError(f"{printable(options.output)} cannot be written: {error.strerror}") from None
    return OK


def _export(admin: AdminCommand) -> str:
    text: str = admin.call("GET", "export", doing="reading the rules in force")
    return text


def in_force(options: argparse.Namespace, terminal: Terminal) -> Ruleset:
    text = _export(AdminCommand(options, terminal))
    with progress.show(terminal, "checking the rules in force"):
        return load(text, name=options.url)


@COMMANDS.command(
    "apply",
    option("FILE", "a YAML file, or - for the standard input"),
    option("--dry-run", "only show what would change"),
    option("--replace-users", "also remove temporary overrides that are missing from the file"),
    option("--yes", "do not ask for confirmation"),
    option("--all", f"list all changes, not only the first {LISTED}"),
    admin_options(changes=True, database=True, waits=True, timeout=BULK_TIMEOUT),
)
@reports_problems
def _apply(options: argparse.Namespace, terminal: Terminal) -> int:
    """Put the rules of a file in force.

    The change is one transaction. --dry-run shows it. Sections that are missing from the file, such as users,
    are kept, and so are temporary overrides.

    Examples:
      headgate rules apply rules.yaml --dry-run
      headgate rules apply rules.yaml --database sqlite:///headgate.db
    """
    admin = AdminCommand(options, terminal)
    with progress.show(terminal, f"checking {options.file}"):
        text, loaded = read_rules(options.file)
    size = f"{counted(len(loaded.ruleset.rules), 'rule')} and {counted(len(loaded.ruleset.users), 'user')}"

    def applied(*, dry_run: bool, expected: int | None = None) -> Json:
        doing = f"comparing {size} with those in force" if dry_run else f"applying {size}"
        if not options.database:
            query: Json = {} if options.all or options.json else {"changes": LISTED}
            query |= {"dry_run": "true"} if dry_run else {}
            query |= {"replace_users": "true"} if options.replace_users else {}
            answer: Json = admin.call("POST", "apply", text=text, query=query, expected=expected, doing=doing)
            return answer

        async def work(database: Database, actor: Actor) -> Json:
            from headgate.admin.catalog import Catalog  # noqa: PLC0415  an extra, slow to load

            how: Json = {"sections": loaded.sections, "replace_users": options.replace_users}
            done = await Catalog(database).apply(loaded.ruleset, actor, dry_run=dry_run, expected=expected, **how)
            return done.to_data(dry_run=dry_run)

        with progress.show(terminal, doing):
            return admin.on_database(work, may_be_new=True)

    if options.database and options.wait:
        raise UsageError("--wait requires a service: it cannot be combined with --database")
    answer = applied(dry_run=True)
    gone: dict[str, int] = answer["counts"].get("delete", {})
    seen: int | None = None
    if not options.dry_run and gone and not options.json:
        first = list(islice(_named_deletions(answer["changes"]), 10))
        names = ", ".join(map(printable, first))
        more = ", ..." if len(first) < sum(gone.values()) else ""
        if not admin.confirm(f"This deletes {sum(gone.values())}: {names}{more}. Continue?"):
            return NO
        seen = None if options.yes else answer["revision"] - 1  # confirm only what was shown
    if not options.dry_run:
        answer = applied(dry_run=False, expected=seen)
    if options.json:
        terminal.write_json(answer)
    else:
        _write_changes(answer, terminal, most=None if options.all else LISTED)
    return OK if options.dry_run else admin.report_lagging()


def _write_changes(answer: Json, terminal: Terminal, *, most: int | None) -> None:
    for change in answer["changes"][:most]:
        used = ", ".join(f"{count} {outcome}" for outcome, count in sorted(change.get("last_day", {}).items()))
        lately = f" (in the last 24 hours: {used})" if used else ""
        terminal.write(f"{change['action']:<6} {change['kind']} {printable(change['id'])}{lately}")
        for found in change.get("what_if", ()):
            terminal.write(f"       {_refused_text(found)} in the last 7 days")
    total = answer["total"]
    is_cut = most is not None and total > most
    if is_cut:
        terminal.write(f"... and {total - len(answer['changes'][:most]):,} more; --all lists them")
    for action, of_kind in answer["counts"].items():
        if is_cut or action == "delete":
            numbers = ", ".join(counted(count, kind) for kind, count in of_kind.items())
            terminal.write(f"{f'would {action}' if answer['dry_run'] else f'{action}d'} {numbers}")
    word = "would be " if answer["dry_run"] else ""
    terminal.write(f"{counted(total, 'change')}, revision {answer['revision']} {word}in force")


def _named_deletions(changes: list[Json]) -> Iterator[str]:
    """Yield the names of deleted objects and of overrides that users lose."""
    for change in changes:
        if change["action"] == "delete":
            yield f"{change['kind']} {change['id']}"
        if change["kind"] == "user" and change["before"]:
            kept = (change["after"] or {}).get("overrides", {})
            lost = [rule for rule in change["before"].get("overrides", {}) if rule not in kept]
            yield from (f"override {rule} of user {change['id']}" for rule in lost)


@admin_command(
    COMMANDS,
    "delete",
    _ID,
    option("--drop-overrides", "also delete its overrides by users and tiers", "", action="store_const", const="drop"),
    changes=True,
    waits=True,
)
def _delete_rule(admin: AdminCommand) -> int:
    """Delete a rule; its versions are kept for a roll-back.

    A rule in use is not deleted: the message lists the users and tiers that use it.
    """
    rule = admin.options.id
    admin.call("DELETE", "rules", rule, query={"overrides": admin.options.drop_overrides})
    return admin.write_result({"id": rule, "deleted": True}, f"rule {rule} is deleted")


@admin_command(COMMANDS, "set", _ID, option("FIELD=VALUE+", "the fields to change"), changes=True, waits=True)
def _set(admin: AdminCommand) -> int:
    """Change some fields of a rule.

    Values are written as in a rule file; null removes a field, and when.region is a member of when.

    Examples:
      headgate rules set orders-user limit=200 burst=null --reason 'summer sale'
      headgate rules set orders-user 'methods=[GET, POST]' when.region=eu --wait
    """
    patch: Json = {}
    for text in admin.options.field:
        path, value = split_pair(text, "set", "limit=200")
        *outer, field = path.split(".")
        target = patch
        for name in outer:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise UsageError(f"{name} occurs twice, with a value and with members")
        if field in target:
            raise UsageError(f"{path} occurs twice")
        target[field] = Document(value, text).data if value.startswith(("[", "{", '"', "'")) else resolve_scalar(value)
    return _patch(admin, patch)


@admin_command(COMMANDS, "enable", _ID, changes=True, waits=True)
def _enable(admin: AdminCommand) -> int:
    """Enable a rule."""
    return _patch(admin, {"enabled": True})


@admin_command(COMMANDS, "disable", _ID, changes=True, waits=True)
def _disable(admin: AdminCommand) -> int:
    """Disable a rule, without deleting it."""
    return _patch(admin, {"enabled": False})


def _patch(admin: AdminCommand, fields: Json) -> int:
    answer = admin.call("PATCH", "rules", admin.options.id, body=fields)
    rule = {name: value for name, value in answer.items() if name not in {"created_at", "updated_at", "version"}}
    return admin.write_result(answer, msgspec.json.encode(rule).decode())


@admin_command(COMMANDS, "versions", _ID)
def _versions(admin: AdminCommand) -> int:
    """List all versions of a rule, the newest first."""
    found = admin.call("GET", "rules", admin.options.id, "versions")["items"]
    rows = []
    for each in found:
        rule = "(deleted)" if each["body"] is None else msgspec.json.encode(each["body"]).decode()
        rows.append((each["version"], each["at"], each["actor"], rule))
    return admin.write_rows(found, ("VERSION", "AT", "BY", "RULE"), rows)


@admin_command(
    COMMANDS,
    "what-if",
    _ID,
    option("--limit N", "the other limit, in units", type=int, required=True),
    option("--window LENGTH", "the window of a rule with several, such as 1m"),
    option("--in-force N", "only principals with this limit, such as those of a tier; default: the rule's", type=int),
    option("--days N", "the period, in days", 7),
    option("--who", "list the callers that currently exceed the other limit"),
)
def _what_if(admin: AdminCommand) -> int:
    """Estimate what another limit of a rule would have refused.

    The estimate is based on the usage of single principals in each window of the rule, or of a sample of
    them. A principal counts once in each window in which it sent requests.

    Examples:
      headgate rules what-if orders-user --limit 600 --in-force 1000 --days 30   # for those of a tier
    """
    options, terminal = admin.options, admin.terminal
    until = time.time_ns() // 1000
    query: Json = {"limit": options.limit, "in_force": options.in_force, "until": until}
    query["since"] = max(0, until - max(0, options.days) * _DAY_US)
    if options.window is not None:
        window = f"{options.window}s" if options.window.isdecimal() else options.window
        query["window_seconds"] = -(-duration_us(window, "--window") // SECOND)
    found = admin.call("GET", "rules", options.id, "what-if", query=query)
    if options.json:
        terminal.write_json(found)
        return OK
    terminal.write(_refused_text(found))
    for other in found["others"]:
        terminal.write(f"not included: {other['units']} units of principals with a limit of {other['in_force']}")
    if found["sampled"] < 1:
        share = f"{100 * found['sampled']:.3g}%"
        terminal.write(f"by a sample of {share}: ±{round(1.96 * found['standard_error']):,} (95 %)")
    terminal.write(printable(f"assumption: {found['assumes']}"))
    for quota in found["not_counted"]:
        terminal.write(printable(f"unknown: usage of {quota}, which is not counted by principal"))
    if options.who:
        above = [(each["key"], f"{each['per_second'] * found['window_seconds']:.0f}") for each in found["hot_keys"]]
        terminal.write_table(("PRINCIPAL", f"NOW IN {found['window_seconds']:g} S"), above)
    return OK


def _refused_text(found: Json) -> str:
    low, high = found["refused_at_least"], found["refused_at_most"]
    bounds = f" ({low} to {high})" if low != high else ""
    text = f"{found['limit']} instead of {found['in_force']} would have refused {found['refused']}{bounds} of "
    text += f"{found['units']} units, in {found['touched']} of {found['principals']} windows of single principals"
    named = ", ".join(printable(each["key"]) for each in found["hot_keys"][:_NAMED])
    return f"{text} (now above it: {named})" if named else text


@admin_command(
    COMMANDS,
    "rollback",
    _ID,
    option("VERSION", "the version, from headgate rules versions", type=int),
    changes=True,
    waits=True,
)
def _roll_back(admin: AdminCommand) -> int:
    """Restore a version of a rule.

    The roll-back is a new version. It also restores a deleted rule.
    """
    answer = admin.call("POST", "rules", admin.options.id, "rollback", body={"version": admin.options.version})
    return admin.write_result(answer, f"revision {answer['revision']} is in force")
