"""``headgate consumers``: API keys for the callers of the API that is protected."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from headgate.cli.admin_client import KEY, Json, add_admin_options, call, listed, on_database, operator, paged, told
from headgate.cli.command import Commands, Terminal, add_command, add_group
from headgate.core.errors import UsageError

if TYPE_CHECKING:
    from headgate.admin.database import Database

_MORE = "A consumer is the user of its name: `headgate users` has its tier and overrides.\n"


def add(commands: Commands) -> None:
    """Add the group consumers."""
    actions = add_group(commands, "consumers", "API keys for the callers of your API", more=_MORE + KEY)
    listing = add_command(actions, "list", _list, "list consumers")
    create = add_command(
        actions,
        "create",
        _create,
        "make a consumer and its key, and show the key once",
        examples="headgate consumers create acme --tier premium",
    )
    create.add_argument("--tier", default="", help="of the user of this name; default: as it is")
    create.add_argument("--tenant", default="", help="what its keys prove as the tenant; default: nothing")
    create.add_argument("--days", type=int, metavar="N", help="for which the key is good; default: for good")
    show = add_command(actions, "show", _show, "show a consumer and what is known of its keys")
    rotate = add_command(
        actions,
        "rotate",
        _rotate,
        "replace a consumer's key",
        examples="headgate consumers rotate acme --overlap 3600   # the old one is good for an hour more",
    )
    rotate.add_argument(
        "--overlap", type=int, metavar="SECONDS", default=0, help="for which the old one stays good [%(default)s]"
    )
    revoke = add_command(actions, "revoke", _revoke, "end all keys of a consumer at once; its tier and overrides stay")
    removal = add_command(actions, "delete", _delete, "end all keys of a consumer, and take tier and overrides away")
    for parser in (create, show, rotate, revoke, removal):
        parser.add_argument("name", metavar="NAME", help="of the consumer, and of the user that it is for rules")
    for parser in (listing, create, show, rotate, revoke, removal):
        add_admin_options(parser, changes=parser not in {listing, show}, database=parser in {create, rotate, revoke})


def _list(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = paged(arguments, "/consumers")
    head = ("NAME", "TIER", "TENANT", "STATE", "KEY", "CREATED", "EXPIRES")
    rows = [
        [each[name] for name in ("id", "tier", "tenant", "state")]
        + [each["keys"][-1][name] for name in ("id", "created_at", "expires_at")]
        for each in found
    ]
    return listed(arguments, terminal, found, head, rows)


def _create(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if arguments.database:
        return _told_key(arguments, terminal, _on_database(arguments, "create"))
    body: Json = {"name": arguments.name, "tier": arguments.tier, "tenant": arguments.tenant}
    if arguments.days is not None:
        body["expires_in"] = arguments.days * 86_400
    return _told_key(arguments, terminal, call(arguments, "POST", "/consumers", body))


def _show(arguments: argparse.Namespace, terminal: Terminal) -> int:
    found = call(arguments, "GET", _path(arguments))
    if not arguments.json:
        terminal.say(f"{found['id']}: {found['state']}, tier {found['tier'] or '-'}, tenant {found['tenant'] or '-'}")
    names = ("id", "created_at", "created_by", "expires_at", "revoked_at")
    head = ("KEY", "CREATED", "BY", "EXPIRES", "REVOKED")
    return listed(arguments, terminal, found, head, [[each[name] for name in names] for each in found["keys"]])


def _rotate(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if arguments.database:
        return _told_key(arguments, terminal, _on_database(arguments, "rotate"))
    answer = call(arguments, "POST", f"{_path(arguments)}/rotate", {"overlap": arguments.overlap})
    return _told_key(arguments, terminal, answer)


def _revoke(arguments: argparse.Namespace, terminal: Terminal) -> int:
    if arguments.database:
        _on_database(arguments, "revoke")
    else:
        call(arguments, "POST", f"{_path(arguments)}/revoke")
    name = arguments.name
    return told(arguments, terminal, {"id": name, "revoked": True}, f"all keys of {name} are revoked")


def _delete(arguments: argparse.Namespace, terminal: Terminal) -> int:
    call(arguments, "DELETE", _path(arguments))
    name = arguments.name
    return told(arguments, terminal, {"id": name, "deleted": True}, f"consumer {name} is deleted")


def _on_database(arguments: argparse.Namespace, action: str) -> Json:
    """Do something to a consumer of a database, where no service has an admin plane. Raises UsageError."""
    if action == "create" and arguments.tier:
        raise UsageError(
            "--tier is of a user of the rules, which a service or a file has: leave it out with --database"
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


def _told_key(arguments: argparse.Namespace, terminal: Terminal, answer: Json) -> int:
    once = f"consumer {answer['id']}; this is the only time that the key is shown:"
    return told(arguments, terminal, answer, once, answer["key"])


def _path(arguments: argparse.Namespace) -> str:
    return f"/consumers/{quote(arguments.name, '')}"
