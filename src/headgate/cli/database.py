"""``headgate audit`` and ``headgate database``: what was changed, and the tables that keep it."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING

from headgate.cli.admin_client import (
    KEY,
    Json,
    add_action,
    add_admin_options,
    call,
    listed,
    on_database,
)
from headgate.cli.command import NO, OK, Commands, Terminal, add_command
from headgate.core.errors import UsageError, not_installed
from headgate.core.numbers import printable

if TYPE_CHECKING:
    from headgate.admin.database import Database


def add(commands: Commands) -> None:
    """Add the groups audit and database."""
    _add_audit(commands)
    _add_database(commands)


def _add_audit(commands: Commands) -> None:
    group = add_command(commands, "audit", None, summary="who changed what, when and why", more=KEY)
    actions = group.add_subparsers(title="commands", metavar="COMMAND")
    listing = add_action(actions, "list", _list_audit, "list changes, the newest first", changes=False)
    for name in ("actor", "action", "kind", "subject"):
        listing.add_argument(f"--{name}", default="", help=f"only those of this {name}")
    listing.add_argument("--limit", type=int, default=50, metavar="N", help="so many [%(default)s]")
    verify = add_action(
        actions,
        "verify",
        _verify_audit,
        "say whether the audit trail was tampered with",
        changes=False,
        more="An entry that was changed, or removed from the middle, shows by itself. Entries removed at the end\n"
        "show only if a digest that was noted elsewhere is missing: --contains.\n\n"
        "Exit codes: 0 intact, 1 tampered with, 2 wrong usage.",
        examples="headgate audit verify\nheadgate audit verify --contains DIGEST   # one that was noted elsewhere",
    )
    verify.add_argument("--contains", metavar="DIGEST", default="", help="a digest that must be in it")
    add_admin_options(listing)
    add_admin_options(verify, database=True)


def _add_database(commands: Commands) -> None:
    group = add_command(commands, "database", None, summary="the tables of a database with rules")
    actions = group.add_subparsers(title="commands", metavar="COMMAND")
    for name, run, summary in (
        ("upgrade", _upgrade, "bring the tables of a database to this version"),
        ("status", _status, "say which version the tables of a database are of"),
    ):
        parser = add_command(
            actions, name, run, summary=summary, examples=f"headgate database {name} sqlite:///headgate.db"
        )
        parser.add_argument("database", metavar="URL", help="sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME")


def _list_audit(arguments: argparse.Namespace, terminal: Terminal) -> int:
    names = ("actor", "action", "kind", "subject", "limit")
    found = call(arguments, "GET", "/audit", query={name: getattr(arguments, name) for name in names})["items"]
    rows = [
        (each["at"], each["actor"], each["action"], each["kind"], each["subject"], each["reason"]) for each in found
    ]
    return listed(arguments, terminal, found, ("AT", "WHO", "DID", "TO", "", "WHY"), rows)


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
        terminal.say_json(answer)
    elif answer["intact"]:
        terminal.say(terminal.styled(f"intact: {answer['entries']} entries", "green"))
        terminal.say(f"the last digest, to note elsewhere: {answer['last']}")
    else:
        terminal.complain(terminal.styled(f"tampered with: {answer['fault']}", "red", err=True))
    return OK if answer["intact"] else NO


def _upgrade(arguments: argparse.Namespace, terminal: Terminal) -> int:
    return _migrated(arguments, terminal, upgrade=True)


def _status(arguments: argparse.Namespace, terminal: Terminal) -> int:
    return _migrated(arguments, terminal, upgrade=False)


def _migrated(arguments: argparse.Namespace, terminal: Terminal, *, upgrade: bool) -> int:
    try:
        from headgate.admin.database import Database as Opened  # noqa: PLC0415  an extra, slow to load
        from headgate.admin.database import SchemaMismatch  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UsageError(not_installed(error.name, "admin")) from None

    async def main() -> int:
        database = Opened(arguments.database)
        if not upgrade and not database.exists:  # to look would make it
            raise UsageError(f"{printable(database.name)}: there is no such file")
        try:
            before = await database.schema()
            if upgrade and before != "head":
                await database.upgrade()
            found = await database.schema()
            if found is None:
                terminal.say(f"{printable(database.name)}: empty")
                return NO
            try:
                await database.check_schema()
            except SchemaMismatch as error:
                terminal.complain(printable(str(error)))
                return NO
            moved = f", upgraded from {before or 'nothing'}" if found != before else ""
            terminal.say(f"{printable(database.name)}: version {found}{moved}, as this Headgate needs it")
            return OK
        finally:
            await database.close()

    return asyncio.run(main())
