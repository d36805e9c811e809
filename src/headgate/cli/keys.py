"""``headgate keys``: who may ask the admin plane."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from headgate.cli.admin_client import KEY, Json, add_admin_options, call, listed, on_database, operator, told
from headgate.cli.command import Commands, Terminal, add_command, add_group

if TYPE_CHECKING:
    from headgate.admin.database import Database

_ROLES = ("viewer", "editor", "admin", "check")
_ROTATE = "headgate keys rotate 1f0c6e2ab94d --overlap 3600   # the old one is good for an hour more"
_ROLE = (
    "viewer reads all but keys, editor also changes rules and users, admin also keys; check opens nothing of the admin "
    "plane [%(default)s]"
)


def add(commands: Commands) -> None:
    """Add the group keys."""
    actions = add_group(commands, "keys", "keys of the admin plane", more=KEY)
    listing = add_command(actions, "list", _list_keys, "list what is known of keys")
    create = add_command(
        actions,
        "create",
        _create_key,
        "make a key, and show it once",
        examples="headgate keys create deploy-bot --role editor\n"
        "headgate keys create mine --role admin --database sqlite:///headgate.db   # when the last key is lost",
    )
    create.add_argument("name", metavar="NAME", help="whose it is; the audit trail shows it")
    create.add_argument("--role", choices=_ROLES, default="viewer", help=_ROLE)
    create.add_argument("--days", type=int, metavar="N", help="for which it is good; default: for good")
    rotate = add_command(
        actions, "rotate", _rotate_key, "replace a key by another of its name and role", examples=_ROTATE
    )
    rotate.add_argument(
        "--overlap", type=int, metavar="SECONDS", default=0, help="for which the old one stays good [%(default)s]"
    )
    revoke = add_command(actions, "revoke", _revoke_key, "end a key at once")
    for parser in (rotate, revoke):
        parser.add_argument("id", metavar="ID", help="as headgate keys list shows it; not the key itself")
    for parser in (listing, create, rotate, revoke):
        add_admin_options(parser, changes=parser is not listing, database=parser is create)


def _list_keys(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = call(arguments, "GET", "/keys")["items"]
    names = ("id", "name", "role", "created_at", "expires_at", "last_used_at", "revoked_at")
    head = ("ID", "NAME", "ROLE", "CREATED", "EXPIRES", "LAST USED", "REVOKED")
    return listed(arguments, terminal, found, head, [[each[name] for name in names] for each in found])


def _create_key(arguments: argparse.Namespace, terminal: Terminal) -> int:
    seconds = None if arguments.days is None else arguments.days * 86_400
    if not arguments.database:
        body = {"name": arguments.name, "role": arguments.role}
        answer = call(arguments, "POST", "/keys", body if seconds is None else {**body, "expires_in": seconds})
        return _told_key(arguments, terminal, answer)

    async def work(database: Database) -> Json:
        from headgate.admin.audit import Actor  # noqa: PLC0415  an extra, slow to load
        from headgate.admin.keys import AdminKeys, KeyRole  # noqa: PLC0415

        ends = None if seconds is None else time.time_ns() // 1000 + seconds * 1_000_000
        actor = Actor(operator(), reason=arguments.reason)
        made = await AdminKeys(database).create(arguments.name, KeyRole(arguments.role), actor, expires_at=ends)
        return {"id": made.key.id, "name": made.key.name, "role": str(made.key.role), "key": made.text}

    return _told_key(arguments, terminal, on_database(arguments.database, work))


def _told_key(arguments: argparse.Namespace, terminal: Terminal, answer: Json) -> int:
    once = f"{answer['id']}, {answer['role']}; this is the only time that the key is shown:"
    return told(arguments, terminal, answer, once, answer["key"])


def _rotate_key(arguments: argparse.Namespace, terminal: Terminal) -> int:
    path = f"/keys/{quote(arguments.id, '')}/rotate"
    return _told_key(arguments, terminal, call(arguments, "POST", path, {"overlap": arguments.overlap}))


def _revoke_key(arguments: argparse.Namespace, terminal: Terminal) -> int:
    call(arguments, "DELETE", f"/keys/{quote(arguments.id, '')}")
    return told(arguments, terminal, {"id": arguments.id, "revoked": True}, f"key {arguments.id} is revoked")
