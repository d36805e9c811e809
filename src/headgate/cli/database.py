"""``headgate audit``, ``usage`` and ``database``: changes, decisions of rules, and the tables for both."""

from __future__ import annotations

import argparse
import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING

from headgate.cli.admin_client import KEY, Json, add_admin_options, call, on_database, read_pages, write_list
from headgate.cli.command import NO, OK, Commands, Terminal, add_command, add_group
from headgate.core.errors import UsageError
from headgate.core.numbers import printable
from headgate.policy.request import UnknownRule

if TYPE_CHECKING:
    from headgate.admin.database import Database
_OUTCOMES = ("allowed", "denied", "shadow_allowed", "shadow_denied", "degraded")
_HOUR_US = 3_600_000_000


def add(commands: Commands) -> None:
    _add_audit(commands)
    _add_database(commands)
    usage = add_command(
        commands,
        "usage",
        _usage,
        "show how often rules decided what",
        more="From the counters of all services that share the database, written once a minute. Degraded decisions,\n"
        "made without the store, also count as allowed or denied.",
        examples="headgate usage --hours 24\nheadgate usage orders-user --step minute --hours 1 --json",
    )
    usage.add_argument("rule", metavar="RULE", nargs="?", default="", help="the id of a rule; default: all")
    usage.add_argument("--hours", metavar="N", type=int, default=24, help="the period [%(default)s]")
    usage.add_argument("--step", choices=("minute", "hour"), default="hour", help="the period of a line [%(default)s]")
    add_admin_options(usage)


def _add_audit(commands: Commands) -> None:
    actions = add_group(commands, "audit", "list and verify changes: who, what, when and why", more=KEY)
    listing = add_command(actions, "list", _list_audit, "list changes, the newest first")
    for name in ("actor", "action", "kind", "subject"):
        listing.add_argument(f"--{name}", default="", help=f"only those of this {name}")
    listing.add_argument("--limit", type=int, default=50, metavar="N", help="at most so many [%(default)s]")
    verify = add_command(
        actions,
        "verify",
        _verify_audit,
        "detect tampering with the audit trail",
        more="A changed or removed entry is detected, unless all later entries were removed or rewritten too. That is\n"
        "detected only with a digest recorded elsewhere (--contains).\n\n"
        "Exit codes: 0 intact, 1 tampered with, 2 wrong usage.",
        examples="headgate audit verify\nheadgate audit verify --contains DIGEST   # recorded elsewhere",
    )
    verify.add_argument("--contains", metavar="DIGEST", default="", help="a digest that must be in the trail")
    add_admin_options(listing)
    add_admin_options(verify, database=True)


def _add_database(commands: Commands) -> None:
    actions = add_group(commands, "database", "the tables of a database with rules")
    for name, summary in (
        ("upgrade", "upgrade the tables of a database to this version"),
        ("status", "show the version of a database's tables"),
    ):
        run = partial(_migrate, upgrade=name == "upgrade")
        parser = add_command(actions, name, run, summary, examples=f"headgate database {name} sqlite:///headgate.db")
        parser.add_argument("database", metavar="URL", help="sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME")


def _list_audit(arguments: argparse.Namespace, terminal: Terminal) -> int:
    names = ("actor", "action", "kind", "subject", "limit")
    found = call(arguments, "GET", "/audit", query={name: getattr(arguments, name) for name in names})["items"]
    shown = ("revision", "at", "actor", "action", "kind", "subject", "reason")
    rows = [[each[name] for name in shown] for each in found]
    return write_list(arguments, terminal, found, ("REVISION", "AT", "WHO", "DID", "TO", "", "WHY"), rows)


def _verify_audit(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if not arguments.database:
        answer = call(arguments, "GET", "/audit/verify", query={"contains": arguments.contains})
    else:

        async def work(database: Database) -> Json:
            from headgate.admin import audit  # noqa: PLC0415  an extra, slow to load

            async with database.reading() as connection:
                chain = await audit.verify(connection, arguments.contains)
            return {"intact": not chain.fault, **chain._asdict()}

        answer = on_database(arguments.database, work)
    if arguments.json:
        terminal.write_json(answer)
    elif answer["intact"]:
        older = f", and {answer['removed']} older ones removed by the retention" if answer["removed"] else ""
        terminal.write(terminal.styled(f"intact: {answer['entries']} entries{older}", "green"))
        terminal.write(f"the last digest, to record elsewhere: {answer['last']}")
    else:
        terminal.write_error(terminal.styled(f"tampered with: {answer['fault']}", "red", err=True))
    return OK if answer["intact"] else NO


def _usage(arguments: argparse.Namespace, terminal: Terminal) -> int:
    since = time.time_ns() // 1000 - max(0, arguments.hours) * _HOUR_US
    since -= since % (_HOUR_US if arguments.step == "hour" else _HOUR_US // 60)  # include the period that began before
    found = read_pages(arguments, "/usage", rule_id=arguments.rule, step=arguments.step, since=max(0, since))
    if not found and arguments.rule:  # usage of a deleted rule is kept for a while
        known = [each["id"] for each in read_pages(arguments, "/rules")]
        if arguments.rule not in known:
            raise UnknownRule(arguments.rule, known)
    lines: dict[tuple[str, str], dict[str, int]] = {}
    for each in found:
        lines.setdefault((each["at"], each["rule_id"]), {})[each["outcome"]] = each["count"]
    rows = [(at, rule, *(counts.get(outcome, 0) for outcome in _OUTCOMES)) for (at, rule), counts in lines.items()]
    head = ("SINCE", "RULE", *(outcome.upper().replace("_", " ") for outcome in _OUTCOMES))
    return write_list(arguments, terminal, found, head, rows)


def _migrate(arguments: argparse.Namespace, terminal: Terminal, *, upgrade: bool) -> int:
    from headgate.admin.database import Database as Opened  # noqa: PLC0415  an extra, slow to load
    from headgate.admin.database import SchemaMismatch  # noqa: PLC0415

    async def main() -> int:
        database = Opened(arguments.database)
        if not upgrade and not database.exists:  # opening would create it
            raise UsageError(f"{printable(database.name)}: no such file")
        try:
            before = await database.schema()
            if upgrade and before != "head":
                await database.upgrade()
            found = await database.schema()
            if found is None:
                terminal.write(f"{printable(database.name)}: empty")
                return NO
            try:
                await database.check_schema()
            except SchemaMismatch as error:
                terminal.write_error(printable(str(error)))
                return NO
            moved = f", upgraded from {before or 'nothing'}" if found != before else ""
            terminal.write(f"{printable(database.name)}: version {found}{moved}, as this Headgate requires")
            return OK
        finally:
            await database.close()

    return asyncio.run(main())
