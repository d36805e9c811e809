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
    confirmed,
    listed,
    on_database,
    operator,
    paged,
    told,
    waited,
)
from headgate.cli.command import NO, OK, Commands, Terminal, add_command, as_json, named
from headgate.cli.rule_files import checked_text, explained
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
"""How long what may be about 100,000 users waits for an answer."""
LISTED = 20
"""Changes that are listed, if all are not asked for."""
_NAMED = 5
"""Principals that a line names."""


def add_to_rules(actions: Commands) -> None:
    """Add to ``headgate rules`` what is done with the rules of a service."""
    get = add_command(
        actions,
        "get",
        _get_rule,
        "show a rule that is in force, or all of them as a file",
        examples="headgate rules get orders-user\nheadgate rules get > rules.yaml\n"
        "headgate rules get --output rules.yaml   # replaces the file when all of it has come",
    )
    get.add_argument("id", metavar="ID", nargs="?", default="", help="the id of a rule; default: all, as a file")
    about = "write to this file, which is replaced when all has come; it stays as it is when something fails"
    get.add_argument("-o", "--output", metavar="FILE", default="", help=about)
    add_admin_options(get, seconds=BULK_SECONDS)
    apply = add_command(
        actions,
        "apply",
        explained(_apply),
        "let all that a file of rules has be in force",
        more="All of it is changed in one transaction, or nothing. --dry-run says what would change. Sections that\n"
        "the file does not have, such as users, stay as they are, and so do overrides with an end.",
        examples="headgate rules apply rules.yaml --dry-run\nheadgate rules apply rules.yaml --reason 'summer sale'\n"
        "headgate rules apply rules.yaml --database sqlite:///headgate.db",
    )
    apply.add_argument("file", metavar="FILE", help="a YAML file, or - for the standard input")
    apply.add_argument("--dry-run", action="store_true", help="only say what would change")
    about = "overrides with an end that the file does not have end, too"
    apply.add_argument("--replace-users", action="store_true", help=about)
    apply.add_argument("--yes", action="store_true", help="do not ask whether that is really wanted")
    apply.add_argument("--all", action="store_true", help=f"list all changes, not only the first {LISTED}")
    add_admin_options(apply, changes=True, database=True, waits=True, seconds=BULK_SECONDS)
    delete = add_command(
        actions,
        "delete",
        _delete_rule,
        "delete a rule; its versions stay, and it can be rolled back",
        more="A rule that is in use is not deleted: the message names what uses it.",
        examples="headgate rules delete exports --reason 'not needed any more'",
    )
    delete.add_argument("id", metavar="ID", help="the id of a rule")
    about = "delete what users and tiers change of it, too"
    delete.add_argument("--drop-overrides", action="store_const", const="drop", default="", help=about)
    add_admin_options(delete, changes=True, waits=True)
    setting = add_command(
        actions,
        "set",
        _set,
        "change some fields of a rule",
        more="Values are those of a rules file; null takes a field away, and when.region is a member of when.",
        examples="headgate rules set orders-user limit=200 burst=null --reason 'summer sale'\n"
        "headgate rules set orders-user 'methods=[GET, POST]' when.region=eu --wait",
    )
    enable = add_command(actions, "enable", partial(_set, enabled=True), "let a rule apply again")
    disable = add_command(actions, "disable", partial(_set, enabled=False), "let a rule not apply, and keep it")
    for parser in (setting, enable, disable):
        parser.add_argument("id", metavar="ID", help="the id of a rule")
        add_admin_options(parser, changes=True, waits=True)
    setting.add_argument("fields", metavar="FIELD=VALUE", nargs="+", help="what is to change")
    versions = add_command(
        actions,
        "versions",
        _versions,
        "list all that a rule ever was, the newest first",
        examples="headgate rules versions orders-user",
    )
    versions.add_argument("id", metavar="ID", help="the id of a rule")
    add_admin_options(versions)
    what_if = add_command(
        actions,
        "what-if",
        _what_if,
        "say what another limit of a rule would have refused",
        more="From how much single principals asked for in each window of the rule: all of them while they are few,\n"
        "else a sample. Principals are counted once in each window in which they asked.",
        examples="headgate rules what-if orders-user --limit 60 --who\n"
        "headgate rules what-if orders-user --limit 600 --in-force 1000 --days 30   # for those of a tier",
    )
    what_if.add_argument("id", metavar="ID", help="the id of a rule")
    what_if.add_argument("--limit", metavar="N", type=int, required=True, help="the other limit, in units")
    what_if.add_argument("--window", metavar="LENGTH", help="which window, of a rule with several, such as 1m")
    what_if.add_argument(
        "--in-force", metavar="N", type=int, help="for those who had this limit, as by a tier; default: the rule's own"
    )
    what_if.add_argument("--days", metavar="N", type=int, default=7, help="how far back [%(default)s]")
    about = "list all hot keys that ask for more than the other limit now, as the log shows them"
    what_if.add_argument("--who", action="store_true", help=about)
    add_admin_options(what_if)
    rollback = add_command(
        actions,
        "rollback",
        _roll_back,
        "let a rule be again what it was in a version",
        more="That makes a new version. A rule that was deleted comes back.",
        examples="headgate rules rollback orders-user 3 --reason 'too generous'",
    )
    rollback.add_argument("id", metavar="ID", help="the id of a rule")
    rollback.add_argument("version", metavar="VERSION", type=int, help="as headgate rules versions shows it")
    add_admin_options(rollback, changes=True, waits=True)


def _get_rule(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if arguments.id:
        text = as_json(call(arguments, "GET", f"/rules/{quote(arguments.id, '')}"))
    elif arguments.json:
        text = as_json(paged(arguments, "/rules"))
    else:
        text = _exported(arguments)
    if not arguments.output:
        terminal.out.write(text)
        return OK
    try:
        replace_file(Path(arguments.output), text.encode())
    except OSError as error:
        raise UsageError(f"{printable(arguments.output)} cannot be written: {error.strerror}") from None
    return OK


def _exported(arguments: argparse.Namespace) -> str:
    text: str = call(arguments, "GET", "/export", doing="reading the rules in force")
    return text


def in_force(arguments: argparse.Namespace, terminal: Terminal) -> Ruleset:
    """Return the rules that the admin plane of a service says are in force."""
    text = _exported(arguments)
    with progress.shown(terminal, "checking the rules in force"):
        return load(text, name=arguments.url)


def _apply(arguments: argparse.Namespace, terminal: Terminal) -> int:
    with progress.shown(terminal, f"checking {arguments.file}"):
        text, loaded = checked_text(arguments.file)
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

        with progress.shown(terminal, doing):
            return on_database(arguments.database, work, may_be_new=True)

    if arguments.database and arguments.wait:
        raise UsageError("--wait asks a service which nodes run the change: it does not go with --database")
    planned = applied(dry_run=True)
    gone: dict[str, int] = planned["counts"].get("delete", {})
    seen: int | None = None
    if not arguments.dry_run and gone and not arguments.json:
        first = list(islice(_named_deletions(planned["changes"]), 10))
        names = ", ".join(map(printable, first))
        more = ", ..." if len(first) < sum(gone.values()) else ""
        if not confirmed(arguments, terminal, f"This deletes {sum(gone.values())}: {names}{more}. Go on?"):
            return NO
        seen = None if arguments.yes else planned["revision"] - 1  # what is confirmed is what was shown, and no more
    answer = planned
    if not arguments.dry_run:
        answer = applied(dry_run=False, expected=seen)
    if arguments.json:
        terminal.say_json(answer)
    else:
        _tell_changes(answer, terminal, most=None if arguments.all else LISTED)
    return OK if arguments.dry_run else waited(arguments, terminal)


def _tell_changes(answer: Json, terminal: Terminal, *, most: int | None) -> None:
    """Write what an apply changes, or would change: some of it one by one, and all of it as numbers."""
    for change in answer["changes"][:most]:
        used = ", ".join(f"{count} {outcome}" for outcome, count in sorted(change.get("last_day", {}).items()))
        lately = f" (in the last 24 hours: {used})" if used else ""
        terminal.say(f"{change['action']:<6} {change['kind']} {printable(change['id'])}{lately}")
        for found in change.get("what_if", ()):
            terminal.say(f"       {_told_refused(found)} in the last 7 days")
    total = answer["total"]
    is_cut = most is not None and total > most
    if is_cut:
        terminal.say(f"... and {total - len(answer['changes'][:most]):,} more; --all lists them")
    for action, of_kind in answer["counts"].items():
        if is_cut or action == "delete":
            numbers = ", ".join(_counted(count, kind) for kind, count in of_kind.items())
            terminal.say(f"{f'would {action}' if answer['dry_run'] else f'{action}d'} {numbers}")
    word = "would be " if answer["dry_run"] else ""
    terminal.say(f"{_counted(total, 'change')}, revision {answer['revision']} {word}in force")


def _named_deletions(changes: list[Json]) -> Iterator[str]:
    """Yield the names of what is deleted, and of overrides that users lose."""
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
    return told(arguments, terminal, {"id": arguments.id, "deleted": True}, f"rule {arguments.id} is deleted")


def _set(arguments: argparse.Namespace, terminal: Terminal, *, enabled: bool | None = None) -> int:
    patch: Json = {} if enabled is None else {"enabled": enabled}
    for text in getattr(arguments, "fields", ()):
        path, value = named(text, "set", "limit=200")
        *outer, field = path.split(".")
        target = patch
        for name in outer:
            target = target.setdefault(name, {})
            if not isinstance(target, dict):
                raise UsageError(f"{name} is there twice, with a value and with members")
        if field in target:
            raise UsageError(f"{path} is there twice")
        target[field] = Document(value, text).data if value[0] in "[{\"'" else resolved(value)
    answer = call(arguments, "PATCH", f"/rules/{quote(arguments.id, '')}", patch)
    rule = {name: value for name, value in answer.items() if name not in {"created_at", "updated_at", "version"}}
    return told(arguments, terminal, answer, msgspec.json.encode(rule).decode())


def _what_if(arguments: argparse.Namespace, terminal: Terminal) -> int:
    until = time.time_ns() // 1000
    query: Json = {"limit": arguments.limit, "in_force": arguments.in_force, "until": until}
    query["since"] = max(0, until - max(0, arguments.days) * _DAY_US)
    if arguments.window is not None:
        query["window_seconds"] = _seconds(arguments.window)
    found = call(arguments, "GET", f"/rules/{quote(arguments.id, '')}/what-if", query=query)
    if arguments.json:
        terminal.say_json(found)
        return OK
    terminal.say(_told_refused(found))
    for other in found["others"]:
        terminal.say(f"not among them: {other['units']} units of those with a limit of {other['in_force']}")
    if found["sampled"] < 1:
        share = f"{100 * found['sampled']:.3g}%"
        terminal.say(f"by a sample of {share}: ±{round(1.96 * found['standard_error']):,} (95 %)")
    terminal.say(printable(f"assumed: {found['assumes']}"))
    for quota in found["not_counted"]:
        terminal.say(printable(f"not known: who comes near {quota}, since its use is not counted"))
    if arguments.who:
        above = [(each["key"], f"{each['per_second'] * found['window_seconds']:.0f}") for each in found["hot_keys"]]
        terminal.say_table(("PRINCIPAL", f"NOW IN {found['window_seconds']:g} S"), above)
    return OK


def _told_refused(found: Json) -> str:
    """Return a line that says what another limit would have refused."""
    low, high = found["refused_at_least"], found["refused_at_most"]
    bounds = f" ({low} to {high})" if low != high else ""
    told = f"{found['limit']} instead of {found['in_force']} would have refused {found['refused']}{bounds} of "
    told += f"{found['units']} units, in {found['touched']} of {found['principals']} windows of single principals"
    named = ", ".join(printable(each["key"]) for each in found["hot_keys"][:_NAMED])
    return f"{told} (now above it: {named})" if named else told


def _seconds(text: str) -> int:
    """Return how long a window is. Raises UsageError."""
    try:
        length_us = length_of(text) if not text.isdecimal() else int(text) * 1_000_000
    except ValueError:
        raise UsageError(f"--window is a length of time, such as 30s, 1m or 1 day, not {text!r}") from None
    return -(-length_us // 1_000_000)


def _versions(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = call(arguments, "GET", f"/rules/{quote(arguments.id, '')}/versions")["items"]
    rows = [(each["version"], each["at"], each["actor"], _brief(each["body"])) for each in found]
    return listed(arguments, terminal, found, ("VERSION", "AT", "BY", "RULE"), rows)


def _brief(body: Json | None) -> str:
    return "(deleted)" if body is None else msgspec.json.encode(body).decode()


def _roll_back(arguments: argparse.Namespace, terminal: Terminal) -> int:
    path = f"/rules/{quote(arguments.id, '')}/rollback"
    answer = call(arguments, "POST", path, {"version": arguments.version})
    return told(arguments, terminal, answer, f"revision {answer['revision']} is in force")
