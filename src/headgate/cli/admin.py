"""What operators do at a terminal: rules, users, keys and the audit trail, by the admin API or on a database itself."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from headgate.cli.command import NO, OK, Command, Commands, Terminal, add_command
from headgate.cli.rule_files import checked, explained
from headgate.cli.service import NoAnswer, caller_headers, exchanged, parse_target, tls_of
from headgate.core.errors import UsageError, not_installed
from headgate.core.numbers import printable
from headgate.policy.dumping import to_data, to_yaml

if TYPE_CHECKING:
    from headgate.admin.database import Database

ADMIN_URL = "http://127.0.0.1:8082"
API = "/api/v1"
_ROLES = ("viewer", "editor", "admin", "check")
T = TypeVar("T")
Json = dict[str, Any]


# Options


def add_admin_options(parser: argparse.ArgumentParser, *, database: bool = False) -> None:
    """Add the options that say which admin plane is asked, and as whom; or which database, if that is possible."""
    known = os.environ.get("HEADGATE_ADMIN_URL") or ADMIN_URL
    parser.add_argument("--url", default=known, help="where the admin plane is; or HEADGATE_ADMIN_URL [%(default)s]")
    parser.add_argument("--ca", metavar="FILE", help="trust the authorities in this file (PEM)")
    parser.set_defaults(cert=None, key=None)
    parser.add_argument("--timeout", metavar="SECONDS", type=float, default=30.0, help="seconds to wait [%(default)g]")
    parser.add_argument("--json", action="store_true", help="write JSON, for programs")
    if database:
        parser.add_argument(
            "--database", metavar="URL", default="", help="do it on this database, where no service has to run"
        )


def add_reason(parser: argparse.ArgumentParser) -> None:
    """Add the option that says why, for the audit trail."""
    parser.add_argument("--reason", metavar="TEXT", default="", help="why; it is kept in the audit trail")


def add(commands: Commands) -> None:
    """Add the groups users, keys, audit and database."""
    _add_users(commands)
    _add_keys(commands)
    _add_audit(commands)
    _add_database(commands)


def add_to_rules(actions: Commands) -> None:
    """Add to ``headgate rules`` what is done with the rules of a service."""
    get = add_command(
        actions,
        "get",
        _get_rule,
        summary="show a rule that is in force, or all of them as a file",
        examples="headgate rules get orders-user\nheadgate rules get > rules.yaml",
    )
    get.add_argument("id", metavar="ID", nargs="?", default="", help="the id of a rule; default: all, as a file")
    add_admin_options(get)
    apply = add_command(
        actions,
        "apply",
        explained(_apply),
        summary="let a file of rules, and nothing else, be in force",
        more="All of it is changed in one transaction, or nothing. --dry-run says what would change.",
        examples="headgate rules apply rules.yaml --dry-run\nheadgate rules apply rules.yaml --reason 'summer sale'\n"
        "headgate rules apply rules.yaml --database sqlite:///headgate.db",
    )
    apply.add_argument("file", metavar="FILE", help="a YAML file, or - for the standard input")
    apply.add_argument("--dry-run", action="store_true", help="only say what would change")
    _add_yes(apply)
    add_reason(apply)
    add_admin_options(apply, database=True)
    versions = add_command(actions, "versions", _versions, summary="list the versions of a rule")
    versions.add_argument("id", metavar="ID")
    add_admin_options(versions)
    rollback = add_command(actions, "rollback", _roll_back, summary="let a rule be again what it was in a version")
    rollback.add_argument("id", metavar="ID")
    rollback.add_argument("version", metavar="VERSION", type=int)
    add_reason(rollback)
    add_admin_options(rollback)


def _add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="do not ask whether that is really wanted")


def _action(
    actions: Commands, name: str, run: Command, summary: str, *, changes: bool = True, examples: str = ""
) -> argparse.ArgumentParser:
    parser = add_command(actions, name, run, summary=summary, examples=examples)
    if changes:
        add_reason(parser)
    return parser


def _add_users(commands: Commands) -> None:
    group = add_command(commands, "users", None, summary="tiers, overrides and limits of single users")
    actions = group.add_subparsers(title="commands", metavar="COMMAND")
    listing = _action(actions, "list", _list_users, "list users with a tier or an override", changes=False)
    listing.add_argument("--tier", default="", help="only those of a tier")
    show = _action(actions, "show", _show_user, "show a user's limits and their present state", changes=False)
    tier = _action(actions, "tier", _set_tier, "move a user to a tier", examples="headgate users tier 42 premium")
    override = _action(
        actions,
        "override",
        _override,
        "change a rule for one user, for good or until a moment",
        examples="headgate users override 42 orders-user --limit 500 --until 2030-01-01T00:00:00Z\n"
        "headgate users override 42 orders-user --end",
    )
    reset = _action(actions, "reset", _reset_user, "forget what a user used")
    for parser in (show, tier, override, reset):
        parser.add_argument("user", metavar="USER")
    tier.add_argument("tier", metavar="TIER", help="its name; '' for none")
    override.add_argument("rule", metavar="RULE")
    for name in ("limit", "burst", "capacity"):
        override.add_argument(f"--{name}", type=int, metavar="N")
    override.add_argument("--window", metavar="LENGTH")
    override.add_argument("--until", metavar="MOMENT", help="when it ends by itself")
    override.add_argument("--end", action="store_true", help="end the override")
    reset.add_argument("rules", metavar="RULE", nargs="*", help="rules that count users; default: all of them")
    for parser in (listing, show, tier, override, reset):
        add_admin_options(parser)


def _add_keys(commands: Commands) -> None:
    group = add_command(commands, "keys", None, summary="keys of the admin plane")
    actions = group.add_subparsers(title="commands", metavar="COMMAND")
    listing = _action(actions, "list", _list_keys, "list what is known of keys", changes=False)
    create = _action(
        actions,
        "create",
        _create_key,
        "make a key, and show it once",
        examples="headgate keys create deploy-bot --role editor\n"
        "headgate keys create mine --role admin --database sqlite:///headgate.db   # when the last key is lost",
    )
    create.add_argument("name", metavar="NAME")
    create.add_argument("--role", choices=_ROLES, default="viewer", help="what it is good for [%(default)s]")
    create.add_argument("--days", type=int, metavar="N", help="for which it is good; default: for good")
    rotate = _action(actions, "rotate", _rotate_key, "replace a key by another of its name and role")
    rotate.add_argument("--overlap", type=int, metavar="SECONDS", default=0, help="for which the old one stays good")
    revoke = _action(actions, "revoke", _revoke_key, "end a key at once")
    for parser in (rotate, revoke):
        parser.add_argument("id", metavar="ID")
    for parser in (listing, create, rotate, revoke):
        add_admin_options(parser, database=parser is create)


def _add_audit(commands: Commands) -> None:
    group = add_command(commands, "audit", None, summary="who changed what")
    actions = group.add_subparsers(title="commands", metavar="COMMAND")
    listing = _action(actions, "list", _list_audit, "list changes, the newest first", changes=False)
    for name in ("actor", "action", "kind", "subject"):
        listing.add_argument(f"--{name}", default="", help=f"only those of this {name}")
    listing.add_argument("--limit", type=int, default=50, metavar="N", help="so many [%(default)s]")
    verify = _action(
        actions,
        "verify",
        _verify_audit,
        "say whether the audit trail was tampered with",
        changes=False,
        examples="headgate audit verify\nheadgate audit verify --contains DIGEST   # one that was noted elsewhere",
    )
    verify.add_argument("--contains", metavar="DIGEST", default="", help="a digest that must be in it")
    add_admin_options(listing)
    add_admin_options(verify, database=True)


def _add_database(commands: Commands) -> None:
    group = add_command(commands, "database", None, summary="the tables of a database")
    actions = group.add_subparsers(title="commands", metavar="COMMAND")
    for name, run, summary in (
        ("upgrade", _upgrade, "bring the tables of a database to this version"),
        ("status", _status, "say which version the tables of a database are of"),
    ):
        parser = add_command(actions, name, run, summary=summary, examples=f"headgate database {name} URL")
        parser.add_argument("database", metavar="URL", help="sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME")


# Asking


def call(
    arguments: argparse.Namespace,
    method: str,
    path: str,
    body: Any = None,
    *,
    raw: str | None = None,
    query: dict[str, Any] | None = None,
) -> Any:
    """Ask the admin plane that the arguments name; returns what it answers. Raises NoAnswer."""
    target = parse_target(arguments.url)
    key = os.environ.get("HEADGATE_ADMIN_KEY", "")
    if not key:
        raise UsageError("the admin plane wants a key: put it into HEADGATE_ADMIN_KEY")
    headers = {**caller_headers(key), "accept": "application/json"}
    if getattr(arguments, "reason", ""):
        headers["x-reason"] = arguments.reason.encode("ascii", "backslashreplace").decode()
    content = None
    if raw is not None:
        content, headers["content-type"] = raw.encode(), "application/yaml"
    elif body is not None:
        content, headers["content-type"] = msgspec.json.encode(body), "application/json"
    given = {name: value for name, value in (query or {}).items() if value not in {"", None}}
    where = f"{API}{path}?{urlencode(given)}" if given else f"{API}{path}"
    status, answer = exchanged(
        target, method, where, content, headers, tls=tls_of(arguments, target), timeout=arguments.timeout
    )
    if status == 204:
        return None
    return msgspec.json.decode(answer) if not where.startswith(f"{API}/export") else answer.decode()


def _on_database(url: str, work: Callable[[Database], Awaitable[T]]) -> T:
    """Do something on a database itself. Raises DatabaseError."""
    try:
        from headgate.admin.database import Database as Opened  # noqa: PLC0415  an extra, slow to load
    except ModuleNotFoundError as error:
        raise UsageError(not_installed(error.name, "admin")) from None

    async def main() -> T:
        database = await Opened.open(url)
        try:
            return await work(database)
        finally:
            await database.close()

    return asyncio.run(main())


def _me() -> str:
    return f"{getpass.getuser()} (command line)"[:128]


def _confirmed(arguments: argparse.Namespace, terminal: Terminal, question: str) -> bool:
    if arguments.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Say --yes where nobody can be asked.")
    terminal.out.write(f"{question} [y/N] ")
    terminal.out.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}


def _table(terminal: Terminal, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    texts = [[printable("" if cell is None else str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *texts, strict=True)]
    for style, row in (("bold", list(head)), *(("", row) for row in texts)):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        terminal.say(terminal.styled(line, style) if style else line)


# Rules


def _get_rule(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if not arguments.id:
        if arguments.json:
            terminal.say_json(call(arguments, "GET", "/rules", query={"limit": 1000})["items"])
        else:
            terminal.out.write(call(arguments, "GET", "/export"))
        return OK
    terminal.say_json(call(arguments, "GET", f"/rules/{quote(arguments.id, '')}"))
    return OK


def _apply(arguments: argparse.Namespace, terminal: Terminal) -> int:
    ruleset = checked(arguments.file).ruleset
    text = to_yaml(ruleset)

    def applied(dry_run: bool) -> Json:  # noqa: FBT001  one of two
        if not arguments.database:
            query = {"dry_run": "true"} if dry_run else {}
            answer: Json = call(arguments, "POST", "/apply", raw=text, query=query)
            return answer

        async def work(database: Database) -> Json:
            from headgate.admin.audit import Actor  # noqa: PLC0415  an extra, slow to load
            from headgate.admin.catalog import Catalog  # noqa: PLC0415

            actor = Actor(_me(), reason=arguments.reason)
            done = await Catalog(database).apply(to_data(ruleset), actor, dry_run=dry_run)
            changes = [{"action": each.action, "kind": each.kind, "id": each.subject} for each in done.entries]
            return {"revision": done.revision, "dry_run": dry_run, "changes": changes}

        return _on_database(arguments.database, work)

    planned = applied(dry_run=True)
    gone = [change for change in planned["changes"] if change["action"] == "delete"]
    if not arguments.dry_run and gone and not arguments.json:
        names = ", ".join(f"{change['kind']} {printable(change['id'])}" for change in gone[:10])
        if not _confirmed(arguments, terminal, f"This deletes {len(gone)}: {names}. Go on?"):
            return NO
    answer = planned if arguments.dry_run else applied(dry_run=False)
    if arguments.json:
        terminal.say_json(answer)
        return OK
    for change in answer["changes"]:
        terminal.say(f"{change['action']:<6} {change['kind']} {printable(change['id'])}")
    word = "would be " if arguments.dry_run else ""
    terminal.say(f"{len(answer['changes'])} changes, revision {answer['revision']} {word}in force")
    return OK


def _versions(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = call(arguments, "GET", f"/rules/{quote(arguments.id, '')}/versions")["items"]
    if arguments.json:
        terminal.say_json(found)
        return OK
    rows = [(each["version"], each["at"], each["actor"], _brief(each["body"])) for each in found]
    _table(terminal, ("VERSION", "AT", "BY", "RULE"), rows)
    return OK


def _brief(body: Json | None) -> str:
    return "(deleted)" if body is None else msgspec.json.encode(body).decode()


def _roll_back(arguments: argparse.Namespace, terminal: Terminal) -> int:
    path = f"/rules/{quote(arguments.id, '')}/rollback"
    answer = call(arguments, "POST", path, {"version": arguments.version})
    return _told(arguments, terminal, answer, f"revision {answer['revision']} is in force")


def _told(arguments: argparse.Namespace, terminal: Terminal, answer: Any, text: str) -> int:
    if arguments.json:
        terminal.say_json(answer)
    else:
        terminal.say(printable(text))
    return OK


# Users


def _list_users(arguments: argparse.Namespace, terminal: Terminal) -> int:
    items, offset = [], 0
    while offset is not None:
        page = call(arguments, "GET", "/users", query={"tier": arguments.tier, "offset": offset, "limit": 1000})
        items += page["items"]
        offset = page["next"]
    if arguments.json:
        terminal.say_json(items)
        return OK
    rows = [(each["id"], each.get("tier", ""), ", ".join(each.get("overrides", {}))) for each in items]
    _table(terminal, ("USER", "TIER", "OVERRIDES"), rows)
    return OK


def _user(arguments: argparse.Namespace) -> str:
    return f"/users/{quote(arguments.user, '')}"


def _show_user(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = call(arguments, "GET", f"{_user(arguments)}/limits")
    if arguments.json:
        terminal.say_json(found)
        return OK
    terminal.say(f"user {printable(found['user_id'])}, tier {printable(found['tier'] or '(none)')}")
    rows = [
        (rule["rule_id"], rule["endpoint"], limit["quota"], f"{limit['remaining']} of {limit['limit']}", rule["source"])
        for rule in found["rules"]
        for limit in rule["limits"]
    ]
    _table(terminal, ("RULE", "ENDPOINT", "LIMIT", "LEFT", "FROM"), rows)
    return OK


def _set_tier(arguments: argparse.Namespace, terminal: Terminal) -> int:
    answer = call(arguments, "PUT", f"{_user(arguments)}/tier", {"tier": arguments.tier})
    return _told(arguments, terminal, answer, f"user {arguments.user} is of tier {arguments.tier or '(none)'}")


def _override(arguments: argparse.Namespace, terminal: Terminal) -> int:
    names = ("limit", "burst", "capacity", "window", "until")
    given = {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}
    if arguments.end:
        if given:
            raise UsageError(f"--end ends the override: it does not go with --{next(iter(given))}")
        answer = call(arguments, "DELETE", f"{_user(arguments)}/override", query={"rule_id": arguments.rule})
        return _told(arguments, terminal, answer, f"user {arguments.user} has no override of {arguments.rule} any more")
    if not given:
        raise UsageError("say what is different: --limit, --burst, --capacity or --window; or --end")
    answer = call(arguments, "POST", f"{_user(arguments)}/override", {"rule_id": arguments.rule, **given})
    return _told(arguments, terminal, answer, f"user {arguments.user}: {arguments.rule} is overridden")


def _reset_user(arguments: argparse.Namespace, terminal: Terminal) -> int:
    answer = call(arguments, "POST", f"{_user(arguments)}/reset", {"rules": arguments.rules})
    done = ", ".join(answer["reset"]) or "nothing"
    return _told(arguments, terminal, answer, f"user {arguments.user}: reset {done}")


# Keys


def _list_keys(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = call(arguments, "GET", "/keys")["items"]
    if arguments.json:
        terminal.say_json(found)
        return OK
    names = ("id", "name", "role", "created_at", "expires_at", "last_used_at", "revoked_at")
    head = ("ID", "NAME", "ROLE", "CREATED", "EXPIRES", "LAST USED", "REVOKED")
    _table(terminal, head, [[each[name] for name in names] for each in found])
    return OK


def _create_key(arguments: argparse.Namespace, terminal: Terminal) -> int:
    seconds = None if arguments.days is None else arguments.days * 86_400
    if not arguments.database:
        body = {"name": arguments.name, "role": arguments.role}
        answer = call(arguments, "POST", "/keys", body if seconds is None else {**body, "expires_in": seconds})
        return _told_key(arguments, terminal, answer)

    async def work(database: Database) -> Json:
        import time  # noqa: PLC0415  for this alone

        from headgate.admin.audit import Actor  # noqa: PLC0415  an extra, slow to load
        from headgate.admin.keys import ApiKeys, Role  # noqa: PLC0415

        ends = None if seconds is None else time.time_ns() // 1000 + seconds * 1_000_000
        actor = Actor(_me(), reason=arguments.reason)
        made = await ApiKeys(database).create(arguments.name, Role(arguments.role), actor, expires_at=ends)
        return {"id": made.key.id, "name": made.key.name, "role": str(made.key.role), "key": made.text}

    return _told_key(arguments, terminal, _on_database(arguments.database, work))


def _told_key(arguments: argparse.Namespace, terminal: Terminal, answer: Json) -> int:
    if arguments.json:
        terminal.say_json(answer)
    else:
        terminal.say(f"{answer['id']}, {answer['role']}; this is the only time that the key is shown:")
        terminal.say(answer["key"])
    return OK


def _rotate_key(arguments: argparse.Namespace, terminal: Terminal) -> int:
    path = f"/keys/{quote(arguments.id, '')}/rotate"
    return _told_key(arguments, terminal, call(arguments, "POST", path, {"overlap": arguments.overlap}))


def _revoke_key(arguments: argparse.Namespace, terminal: Terminal) -> int:
    call(arguments, "DELETE", f"/keys/{quote(arguments.id, '')}")
    return _told(arguments, terminal, {"id": arguments.id, "revoked": True}, f"key {arguments.id} is revoked")


# Audit


def _list_audit(arguments: argparse.Namespace, terminal: Terminal) -> int:
    names = ("actor", "action", "kind", "subject", "limit")
    found = call(arguments, "GET", "/audit", query={name: getattr(arguments, name) for name in names})["items"]
    if arguments.json:
        terminal.say_json(found)
        return OK
    rows = [
        (each["at"], each["actor"], each["action"], each["kind"], each["subject"], each["reason"]) for each in found
    ]
    _table(terminal, ("AT", "WHO", "DID", "TO", "", "WHY"), rows)
    return OK


def _verify_audit(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if not arguments.database:
        answer = call(arguments, "GET", "/audit/verify", query={"contains": arguments.contains})
    else:

        async def work(database: Database) -> Json:
            from headgate.admin import audit  # noqa: PLC0415  an extra, slow to load

            async with database.reading() as connection:
                chain = await audit.verify(connection, arguments.contains)
            return {"intact": not chain.fault, **chain._asdict()}

        answer = _on_database(arguments.database, work)
    if arguments.json:
        terminal.say_json(answer)
    elif answer["intact"]:
        terminal.say(terminal.styled(f"intact: {answer['entries']} entries", "green"))
        terminal.say(f"the last digest, to note elsewhere: {answer['last']}")
    else:
        terminal.complain(terminal.styled(f"tampered with: {answer['fault']}", "red", err=True))
    return OK if answer["intact"] else NO


# Database


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


__all__ = ["NoAnswer", "add", "add_to_rules", "call"]
