"""``headgate rules get``, ``apply``, ``versions`` and ``rollback``: the rules of a service, or of a database."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from headgate.cli import progress
from headgate.cli.admin_client import (
    Json,
    add_admin_options,
    call,
    confirm,
    on_database,
    operator,
    read_pages,
    report_lagging,
    write_list,
    write_result,
)
from headgate.cli.command import NO, OK, Commands, Terminal, add_command, as_json, named
from headgate.cli.rule_files import read_rules, reports_problems
from headgate.config.times import length_of
from headgate.config.yaml_text import Document, resolved
from headgate.core.errors import UsageError
from headgate.core.numbers import printable
from headgate.files import replace_file
from headgate.policy.loading import load
from headgate.policy.model import Ruleset

if TYPE_CHECKING:
    from headgate.admin.database import Database

_DAY_US = 86_400_000_000
BULK_SECONDS = 600.0
"""Timeout for requests that may cover 100,000 users."""
LISTED = 20
"""Changes listed by default."""
_NAMED = 5
"""Principals named in a line."""


def add_to_rules(actions: Commands) -> None:
    """Add the commands for a service's rules to ``headgate rules``."""
    get = add_command(
        actions,
        "get",
        _get_rule,
        "show a rule that is in force, or all of them as a file",
        examples="headgate rules get orders-user\nheadgate rules get > rules.yaml\n"
        "headgate rules get --output rules.yaml   # replaces the file atomically",
    )
    get.add_argument("id", metavar="ID", nargs="?", default="", help="the id of a rule; default: all, as a file")
    about = "write to this file, which is replaced atomically, and kept on failure"
    get.add_argument("-o", "--output", metavar="FILE", default="", help=about)
    add_admin_options(get, seconds=BULK_SECONDS)
    apply = add_command(
        actions,
        "apply",
        reports_problems(_apply),
        "put the rules of a file in force",
        more="All of it is changed in one transaction, or nothing. --dry-run shows the changes. Sections missing from\n"
        "the file, such as users, are kept, and so are overrides with an end.",
        examples="headgate rules apply rules.yaml --dry-run\nheadgate rules apply rules.yaml --reason 'summer sale'\n"
        "headgate rules apply rules.yaml --database sqlite:///headgate.db",
    )
    apply.add_argument("file", metavar="FILE", help="a YAML file, or - for the standard input")
    apply.add_argument("--dry-run", action="store_true", help="only show what would change")
    about = "also end overrides with an end that are not in the file"
    apply.add_argument("--replace-users", action="store_true", help=about)
    apply.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    apply.add_argument("--all", action="store_true", help=f"list all changes, not only the first {LISTED}")
    add_admin_options(apply, changes=True, database=True, waits=True, seconds=BULK_SECONDS)
    delete = add_command(
        actions,
        "delete",
        _delete_rule,
        "delete a rule; its versions are kept, and it can be rolled back",
        more="A rule in use is not deleted: the message names what uses it.",
        examples="headgate rules delete exports --reason 'not needed any more'",
    )
    delete.add_argument("id", metavar="ID", help="the id of a rule")
    about = "also delete its overrides by users and tiers"
    delete.add_argument("--drop-overrides", action="store_const", const="drop", default="", help=about)
    add_admin_options(delete, changes=True, waits=True)
    setting = add_command(
        actions,
        "set",
        _set,
        "change some fields of a rule",
        more="Values are written as in a rule file; null removes a field, and when.region is a member of when.",
        examples="headgate rules set orders-user limit=200 burst=null --reason 'summer sale'\n"
        "headgate rules set orders-user 'methods=[GET, POST]' when.region=eu --wait",
    )
    enable = add_command(actions, "enable", partial(_set, enabled=True), "enable a rule")
    disable = add_command(actions, "disable", partial(_set, enabled=False), "disable a rule, without deleting it")
    for parser in (setting, enable, disable):
        parser.add_argument("id", metavar="ID", help="the id of a rule")
        add_admin_options(parser, changes=True, waits=True)
    setting.add_argument("fields", metavar="FIELD=VALUE", nargs="+", help="the fields to change")
    versions = add_command(
        actions,
        "versions",
        _versions,
        "list all versions of a rule, the newest first",
        examples="headgate rules versions orders-user",
    )
    versions.add_argument("id", metavar="ID", help="the id of a rule")
    add_admin_options(versions)
    what_if = add_command(
        actions,
        "what-if",
        _what_if,
        "estimate what another limit of a rule would have refused",
        more="From the usage of single principals in each window of the rule: all principals while they are few, else\n"
        "a sample. Principals count once in each window with requests.",
        examples="headgate rules what-if orders-user --limit 60 --who\n"
        "headgate rules what-if orders-user --limit 600 --in-force 1000 --days 30   # for those of a tier",
    )
    what_if.add_argument("id", metavar="ID", help="the id of a rule")
    what_if.add_argument("--limit", metavar="N", type=int, required=True, help="the other limit, in units")
    what_if.add_argument("--window", metavar="LENGTH", help="the window, of a rule with several, such as 1m")
    what_if.add_argument(
        "--in-force",
        metavar="N",
        type=int,
        help="for principals with this limit, as by a tier; default: the rule's own",
    )
    what_if.add_argument("--days", metavar="N", type=int, default=7, help="the period [%(default)s]")
    about = "list all hot keys that now exceed the other limit, as the log shows them"
    what_if.add_argument("--who", action="store_true", help=about)
    add_admin_options(what_if)
    rollback = add_command(
        actions,
        "rollback",
        _roll_back,
        "restore a version of a rule",
        more="That creates a new version. A deleted rule is restored.",
        examples="headgate rules rollback orders-user 3 --reason 'too generous'",
    )
    rollback.add_argument("id", metavar="ID", help="the id of a rule")
    rollback.add_argument("version", metavar="VERSION", type=int, help="as headgate rules versions shows it")
    add_admin_options(rollback, changes=True, waits=True)


def _get_rule(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if arguments.id:
        text = as_json(call(arguments, "GET", f"/rules/{quote(arguments.id, '')}"))
    elif arguments.json:
        text = as_json(read_pages(arguments, "/rules"))
    else:
        text = _export(arguments)
    if not arguments.output:
        terminal.out.write(text)
        return OK
    try:
        replace_file(Path(arguments.output), text.encode())
    except OSError as error:
        raise UsageError(f"{printable(arguments.output)} cannot be written: {error.strerror}") from None
    return OK


def _export(arguments: argparse.Namespace) -> str:
    text: str = call(arguments, "GET", "/export", doing="reading the rules in force")
    return text


def in_force(arguments: argparse.Namespace, terminal: Terminal) -> Ruleset:
    """Return the rules in force according to the admin plane."""
    text = _export(arguments)
    with progress.show(terminal, "checking the rules in force"):
        return load(text, name=arguments.url)


def _apply(arguments: argparse.Namespace, terminal: Terminal) -> int:
    with progress.show(terminal, f"checking {arguments.file}"):
        text, loaded = read_rules(arguments.file)
    size = f"{_counted(len(loaded.ruleset.rules), 'rule')} and {_counted(len(loaded.ruleset.users), 'user')}"

    def applied(*, dry_run: bool, expected: int | None = None) -> Json:
        doing = f"comparing {size} with those in force" if dry_run else f"applying {size}"
        if not arguments.database:
            query: Json = {} if arguments.all or arguments.json else {"changes": LISTED}
            query |= {"dry_run": "true"} if dry_run else {}
            query |= {"replace_users": "true"} if arguments.replace_users else {}
            answer: Json = call(arguments, "POST", "/apply", raw=text, query=query, expected=expected, doing=doing)
            return answer

        async def work(database: Database) -> Json:
            from headgate.admin.audit import Actor  # noqa: PLC0415  an extra, slow to load
            from headgate.admin.catalog import Catalog  # noqa: PLC0415

            actor = Actor(operator(), reason=arguments.reason)
            how: Json = {"sections": loaded.sections, "replace_users": arguments.replace_users}
            done = await Catalog(database).apply(loaded.ruleset, actor, dry_run=dry_run, expected=expected, **how)
            return done.to_data(dry_run=dry_run)

        with progress.show(terminal, doing):
            return on_database(arguments.database, work, may_be_new=True)

    if arguments.database and arguments.wait:
        raise UsageError("--wait requires a service: it cannot be combined with --database")
    planned = applied(dry_run=True)
    gone: dict[str, int] = planned["counts"].get("delete", {})
    seen: int | None = None
    if not arguments.dry_run and gone and not arguments.json:
        first = list(islice(_named_deletions(planned["changes"]), 10))
        names = ", ".join(map(printable, first))
        more = ", ..." if len(first) < sum(gone.values()) else ""
        if not confirm(arguments, terminal, f"This deletes {sum(gone.values())}: {names}{more}. Continue?"):
            return NO
        seen = None if arguments.yes else planned["revision"] - 1  # confirm only what was shown
    answer = planned
    if not arguments.dry_run:
        answer = applied(dry_run=False, expected=seen)
    if arguments.json:
        terminal.write_json(answer)
    else:
        _write_changes(answer, terminal, most=None if arguments.all else LISTED)
    return OK if arguments.dry_run else report_lagging(arguments, terminal)


def _write_changes(answer: Json, terminal: Terminal, *, most: int | None) -> None:
    """Write the changes of an apply: some of them individually, and the totals."""
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
            numbers = ", ".join(_counted(count, kind) for kind, count in of_kind.items())
            terminal.write(f"{f'would {action}' if answer['dry_run'] else f'{action}d'} {numbers}")
    word = "would be " if answer["dry_run"] else ""
    terminal.write(f"{_counted(total, 'change')}, revision {answer['revision']} {word}in force")


def _named_deletions(changes: list[Json]) -> Iterator[str]:
    """Yield the names of deleted objects and of overrides that users lose."""
    for change in changes:
        if change["action"] == "delete":
            yield f"{change['kind']} {change['id']}"
        if change["kind"] == "user" and change["before"]:
            kept = (change["after"] or {}).get("overrides", {})
            lost = [rule for rule in change["before"].get("overrides", {}) if rule not in kept]
            yield from (f"override {rule} of user {change['id']}" for rule in lost)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _delete_rule(arguments: argparse.Namespace, terminal: Terminal) -> int:
    call(arguments, "DELETE", f"/rules/{quote(arguments.id, '')}", query={"overrides": arguments.drop_overrides})
    return write_result(arguments, terminal, {"id": arguments.id, "deleted": True}, f"rule {arguments.id} is deleted")


def _set(arguments: argparse.Namespace, terminal: Terminal, *, enabled: bool | None = None) -> int:
    patch: Json = {} if enabled is None else {"enabled": enabled}
    for text in getattr(arguments, "fields", ()):
        path, value = named(text, "set", "limit=200")
        *outer, field = path.split(".")
        target = patch
        for name in outer:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise UsageError(f"{name} is given twice, with a value and with members")
        if field in target:
            raise UsageError(f"{path} is given twice")
        target[field] = Document(value, text).data if value[0] in "[{\"'" else resolved(value)
    answer = call(arguments, "PATCH", f"/rules/{quote(arguments.id, '')}", patch)
    rule = {name: value for name, value in answer.items() if name not in {"created_at", "updated_at", "version"}}
    return write_result(arguments, terminal, answer, msgspec.json.encode(rule).decode())


def _what_if(arguments: argparse.Namespace, terminal: Terminal) -> int:
    until = time.time_ns() // 1000
    query: Json = {"limit": arguments.limit, "in_force": arguments.in_force, "until": until}
    query["since"] = max(0, until - max(0, arguments.days) * _DAY_US)
    if arguments.window is not None:
        query["window_seconds"] = _seconds(arguments.window)
    found = call(arguments, "GET", f"/rules/{quote(arguments.id, '')}/what-if", query=query)
    if arguments.json:
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
    if arguments.who:
        above = [(each["key"], f"{each['per_second'] * found['window_seconds']:.0f}") for each in found["hot_keys"]]
        terminal.write_table(("PRINCIPAL", f"NOW IN {found['window_seconds']:g} S"), above)
    return OK


def _refused_text(found: Json) -> str:
    """Return a line about what another limit would have refused."""
    low, high = found["refused_at_least"], found["refused_at_most"]
    bounds = f" ({low} to {high})" if low != high else ""
    text = f"{found['limit']} instead of {found['in_force']} would have refused {found['refused']}{bounds} of "
    text += f"{found['units']} units, in {found['touched']} of {found['principals']} windows of single principals"
    named = ", ".join(printable(each["key"]) for each in found["hot_keys"][:_NAMED])
    return f"{text} (now above it: {named})" if named else text


def _seconds(text: str) -> int:
    """Return the length of a window. Raises UsageError."""
    try:
        length_us = length_of(text) if not text.isdecimal() else int(text) * 1_000_000
    except ValueError:
        raise UsageError(f"--window must be a duration, such as 30s, 1m or 1 day, not {text!r}") from None
    return -(-length_us // 1_000_000)


def _versions(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = call(arguments, "GET", f"/rules/{quote(arguments.id, '')}/versions")["items"]
    rows = [(each["version"], each["at"], each["actor"], _brief(each["body"])) for each in found]
    return write_list(arguments, terminal, found, ("VERSION", "AT", "BY", "RULE"), rows)


def _brief(body: Json | None) -> str:
    return "(deleted)" if body is None else msgspec.json.encode(body).decode()


def _roll_back(arguments: argparse.Namespace, terminal: Terminal) -> int:
    path = f"/rules/{quote(arguments.id, '')}/rollback"
    answer = call(arguments, "POST", path, {"version": arguments.version})
    return write_result(arguments, terminal, answer, f"revision {answer['revision']} is in force")
