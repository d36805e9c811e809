"""``headgate keys`` and ``consumers``: keys of the admin plane, and API keys for the callers of the protected API."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from headgate.cli.admin_client import (
    KEY,
    Json,
    add_admin_options,
    call,
    on_database,
    operator,
    read_pages,
    write_list,
    write_result,
)
from headgate.cli.command import Commands, Terminal, add_command, add_group
from headgate.core.errors import UsageError

if TYPE_CHECKING:
    from headgate.admin.database import Database

_ROLES = ("viewer", "editor", "admin", "check")
_MORE = "A consumer is the user of the same name: `headgate users` has its tier and overrides.\n"
_ROTATE = "headgate keys rotate 1f0c6e2ab94d --overlap 3600   # the old one stays valid for an hour"
_ROLE = (
    "viewer reads all but keys, editor also changes rules and users, admin also keys; check has no access to the admin "
    "plane [%(default)s]"
)


def add(commands: Commands) -> None:
    actions = add_group(commands, "keys", "keys of the admin plane", more=KEY)
    listing = add_command(actions, "list", _list_keys, "list keys")
    create = add_command(
        actions,
        "create",
        _create_key,
        "create a key, and show it once",
        examples="headgate keys create deploy-bot --role editor\n"
        "headgate keys create mine --role admin --database sqlite:///headgate.db   # when the last key is lost",
    )
    create.add_argument("name", metavar="NAME", help="its owner, for the audit trail")
    create.add_argument("--role", choices=_ROLES, default="viewer", help=_ROLE)
    create.add_argument("--days", type=int, metavar="N", help="days of validity; default: unlimited")
    rotate = add_command(
        actions, "rotate", _rotate_key, "replace a key by another of the same name and role", examples=_ROTATE
    )
    rotate.add_argument(
        "--overlap", type=int, metavar="SECONDS", default=0, help="seconds that the old one stays valid [%(default)s]"
    )
    revoke = add_command(actions, "revoke", _revoke_key, "revoke a key immediately")
    for parser in (rotate, revoke):
        parser.add_argument("id", metavar="ID", help="the id from headgate keys list; not the key itself")
    for parser in (listing, create, rotate, revoke):
        add_admin_options(parser, changes=parser is not listing, database=parser is create)
    _add_consumers(commands)


def _add_consumers(commands: Commands) -> None:
    actions = add_group(commands, "consumers", "API keys for the callers of your API", more=_MORE + KEY)
    listing = add_command(actions, "list", _list_consumers, "list consumers")
    create = add_command(
        actions,
        "create",
        _create_consumer,
        "create a consumer and its key, and show the key once",
        examples="headgate consumers create acme --tier premium",
    )
    create.add_argument("--tier", default="", help="of the user of this name; default: unchanged")
    create.add_argument("--tenant", default="", help="the tenant that its keys prove; default: none")
    create.add_argument("--days", type=int, metavar="N", help="days of the key's validity; default: unlimited")
    show = add_command(actions, "show", _show_consumer, "show a consumer and its keys")
    rotate = add_command(
        actions,
        "rotate",
        _rotate_consumer,
        "replace a consumer's key",
        examples="headgate consumers rotate acme --overlap 3600   # the old one stays valid for an hour",
    )
    rotate.add_argument(
        "--overlap", type=int, metavar="SECONDS", default=0, help="seconds that the old one stays valid [%(default)s]"
    )
    revoke = add_command(
        actions, "revoke", _revoke_consumer, "revoke all keys of a consumer; its tier and overrides stay"
    )
    removal = add_command(
        actions, "delete", _delete_consumer, "revoke all keys of a consumer, and delete its tier and overrides"
    )
    for parser in (create, show, rotate, revoke, removal):
        parser.add_argument("name", metavar="NAME", help="of the consumer, and of its user in rules")
    for parser in (listing, create, show, rotate, revoke, removal):
        add_admin_options(parser, changes=parser not in {listing, show}, database=parser in {create, rotate, revoke})


def _list_keys(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = call(arguments, "GET", "/keys")["items"]
    names = ("id", "name", "role", "created_at", "expires_at", "last_used_at", "revoked_at")
    head = ("ID", "NAME", "ROLE", "CREATED", "EXPIRES", "LAST USED", "REVOKED")
    return write_list(arguments, terminal, found, head, [[each[name] for name in names] for each in found])


def _create_key(arguments: argparse.Namespace, terminal: Terminal) -> int:
    seconds = None if arguments.days is None else arguments.days * 86_400
    if not arguments.database:
        body = {"name": arguments.name, "role": arguments.role}
        answer = call(arguments, "POST", "/keys", body if seconds is None else {**body, "expires_in": seconds})
        return _write_key(arguments, terminal, answer)

    async def work(database: Database) -> Json:
        from headgate.admin.audit import Actor  # noqa: PLC0415  an extra, slow to load
        from headgate.admin.keys import AdminKeys, KeyRole  # noqa: PLC0415

        ends = None if seconds is None else time.time_ns() // 1000 + seconds * 1_000_000
        actor = Actor(operator(), reason=arguments.reason)
        made = await AdminKeys(database).create(arguments.name, KeyRole(arguments.role), actor, expires_at=ends)
        return {"id": made.key.id, "name": made.key.name, "role": str(made.key.role), "key": made.text}

    return _write_key(arguments, terminal, on_database(arguments.database, work))


def _write_key(arguments: argparse.Namespace, terminal: Terminal, answer: Json) -> int:
    once = f"{answer['id']}, {answer['role']}; the key is shown only this once:"
    return write_result(arguments, terminal, answer, once, answer["key"])


def _rotate_key(arguments: argparse.Namespace, terminal: Terminal) -> int:
    path = f"/keys/{quote(arguments.id, '')}/rotate"
    return _write_key(arguments, terminal, call(arguments, "POST", path, {"overlap": arguments.overlap}))


def _revoke_key(arguments: argparse.Namespace, terminal: Terminal) -> int:
    call(arguments, "DELETE", f"/keys/{quote(arguments.id, '')}")
    return write_result(arguments, terminal, {"id": arguments.id, "revoked": True}, f"key {arguments.id} is revoked")


def _list_consumers(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = read_pages(arguments, "/consumers")
    head = ("NAME", "TIER", "TENANT", "STATE", "KEY", "CREATED", "EXPIRES")
    rows = [
        [each[name] for name in ("id", "tier", "tenant", "state")]
        + [each["keys"][-1][name] for name in ("id", "created_at", "expires_at")]
        for each in found
    ]
    return write_list(arguments, terminal, found, head, rows)


def _create_consumer(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if arguments.database:
        return _write_consumer_key(arguments, terminal, _change_in_database(arguments, "create"))
    body: Json = {"name": arguments.name, "tier": arguments.tier, "tenant": arguments.tenant}
    if arguments.days is not None:
        body["expires_in"] = arguments.days * 86_400
    return _write_consumer_key(arguments, terminal, call(arguments, "POST", "/consumers", body))


def _show_consumer(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = call(arguments, "GET", _consumer_path(arguments))
    if not arguments.json:
        terminal.write(f"{found['id']}: {found['state']}, tier {found['tier'] or '-'}, tenant {found['tenant'] or '-'}")
    names = ("id", "created_at", "created_by", "expires_at", "revoked_at")
    head = ("KEY", "CREATED", "BY", "EXPIRES", "REVOKED")
    return write_list(arguments, terminal, found, head, [[each[name] for name in names] for each in found["keys"]])


def _rotate_consumer(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if arguments.database:
        return _write_consumer_key(arguments, terminal, _change_in_database(arguments, "rotate"))
    answer = call(arguments, "POST", f"{_consumer_path(arguments)}/rotate", {"overlap": arguments.overlap})
    return _write_consumer_key(arguments, terminal, answer)


def _revoke_consumer(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if arguments.database:
        _change_in_database(arguments, "revoke")
    else:
        call(arguments, "POST", f"{_consumer_path(arguments)}/revoke")
    name = arguments.name
    return write_result(arguments, terminal, {"id": name, "revoked": True}, f"all keys of {name} are revoked")


def _delete_consumer(arguments: argparse.Namespace, terminal: Terminal) -> int:
    call(arguments, "DELETE", _consumer_path(arguments))
    name = arguments.name
    return write_result(arguments, terminal, {"id": name, "deleted": True}, f"consumer {name} is deleted")


def _change_in_database(arguments: argparse.Namespace, action: str) -> Json:
    """Change a consumer in a database without an admin plane. Raises UsageError."""
    if action == "create" and arguments.tier:
        raise UsageError(
            "--tier is a setting of the rules, which a service or a file has: leave it out with --database"
        )

    async def work(database: Database) -> Json:
        from headgate.admin.audit import Actor  # noqa: PLC0415  an extra, slow to load
        from headgate.admin.consumers import Consumers  # noqa: PLC0415

        consumers, actor = Consumers(database), Actor(operator(), reason=arguments.reason)
        name = arguments.name
        if action == "revoke":
            await consumers.revoke(name, actor)
            return {}
        if action == "rotate":
            made = await consumers.rotate(name, actor, overlap_us=arguments.overlap * 1_000_000)
        else:
            ends = None if arguments.days is None else time.time_ns() // 1000 + arguments.days * 86_400_000_000
            made = await consumers.create(name, actor, tenant=arguments.tenant, expires_at=ends)
        return {"id": name, "tenant": made.key.tenant, "key_id": made.key.id, "key": made.text}

    return on_database(arguments.database, work, may_be_new=action == "create")


def _write_consumer_key(arguments: argparse.Namespace, terminal: Terminal, answer: Json) -> int:
    once = f"consumer {answer['id']}; the key is shown only this once:"
    return write_result(arguments, terminal, answer, once, answer["key"])


def _consumer_path(arguments: argparse.Namespace) -> str:
    return f"/consumers/{quote(arguments.name, '')}"
