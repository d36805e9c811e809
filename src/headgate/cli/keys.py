"""``headgate keys`` and ``consumers``: keys of the admin plane, and API keys for the callers of the protected API."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from headgate.cli.admin_client import KEY, AdminCommand, Json, admin_command
from headgate.cli.command import Commands, option, whole
from headgate.core.errors import UsageError

if TYPE_CHECKING:
    from headgate.admin.audit import Actor
    from headgate.admin.database import Database

COMMANDS = Commands()
KEYS = COMMANDS.group("keys", f"Create, list and revoke keys of the admin plane.\n\n{KEY}")
CONSUMERS = COMMANDS.group(
    "consumers",
    "Create, list and revoke API keys for the callers of your API.\n\n"
    f"A consumer is the user of the same name: `headgate users` sets its tier and overrides.\n{KEY}",
)
_DAY = 86_400
_ROLES = ("viewer", "editor", "admin", "check")
_ROLE = "viewer reads all except keys, editor also changes rules and users, admin also keys; check cannot use the "
_ID = option("ID", "the id from headgate keys list, not the key itself")
_OVERLAP = option("--overlap SECONDS", "how long the old key stays valid", 0, type=whole(0, 2_592_000))
_NAME = option("NAME", "the name of the consumer, and of its user in rules")


def _expiry(days: int | None) -> int | None:
    return None if days is None else time.time_ns() // 1000 + days * _DAY * 1_000_000


def _expires_in(days: int | None) -> Json:
    return {} if days is None else {"expires_in": days * _DAY}


@admin_command(KEYS, "list")
def _list_keys(admin: AdminCommand) -> int:
    """List keys."""
    columns = {"ID": "id", "NAME": "name", "ROLE": "role", "CREATED": "created_at", "EXPIRES": "expires_at"}
    found = admin.call("GET", "keys")["items"]
    return admin.write_list(found, columns | {"LAST USED": "last_used_at", "REVOKED": "revoked_at"})


@admin_command(
    KEYS,
    "create",
    option("NAME", "the name of its owner, for the audit trail"),
    option("--role ROLE", f"{_ROLE}admin plane", "viewer", choices=_ROLES),
    option("--days N", "the lifetime in days; default: unlimited", type=whole(1, 3650)),
    changes=True,
    database=True,
)
def _create_key(admin: AdminCommand) -> int:
    """Create a key, and show it once.

    Examples:
      headgate keys create mine --role admin --database sqlite:///headgate.db   # when the last key is lost
    """
    name, role, days = admin.options.name, admin.options.role, admin.options.days

    async def work(database: Database, actor: Actor) -> Json:
        from headgate.admin.keys import AdminKeys, KeyRole  # noqa: PLC0415  an extra, slow to load

        made = await AdminKeys(database).create(name, KeyRole(role), actor, expires_at=_expiry(days))
        return {"id": made.key.id, "name": made.key.name, "role": str(made.key.role), "key": made.text}

    if admin.options.database:
        return _write_key(admin, admin.on_database(work))
    return _write_key(admin, admin.call("POST", "keys", body={"name": name, "role": role} | _expires_in(days)))


@admin_command(KEYS, "rotate", _ID, _OVERLAP, changes=True)
def _rotate_key(admin: AdminCommand) -> int:
    """Replace a key with another one of the same name and role."""
    body = {"overlap": admin.options.overlap}
    return _write_key(admin, admin.call("POST", "keys", admin.options.id, "rotate", body=body))


@admin_command(KEYS, "revoke", _ID, changes=True)
def _revoke_key(admin: AdminCommand) -> int:
    """Revoke a key immediately."""
    admin.call("DELETE", "keys", admin.options.id)
    return admin.write_result({"id": admin.options.id, "revoked": True}, f"key {admin.options.id} is revoked")


def _write_key(admin: AdminCommand, answer: Json) -> int:
    name = f"{answer['id']}, {answer['role']}" if "role" in answer else f"consumer {answer['id']}"
    return admin.write_result(answer, f"{name}; the key is shown only this once:", answer["key"])


@admin_command(CONSUMERS, "list")
def _list_consumers(admin: AdminCommand) -> int:
    """List consumers."""
    found = admin.pages("consumers")
    newest = [{**each, **{f"key_{name}": value for name, value in each["keys"][-1].items()}} for each in found]
    columns = {"NAME": "id", "TIER": "tier", "TENANT": "tenant", "STATE": "state", "KEY": "key_id"}
    return admin.write_list(found, columns | {"CREATED": "key_created_at", "EXPIRES": "key_expires_at"}, newest)


@admin_command(
    CONSUMERS,
    "create",
    _NAME,
    option("--tier TIER", "the tier of the user of this name; default: unchanged", ""),
    option("--tenant TENANT", "the tenant that its keys prove; default: none", ""),
    option("--days N", "the lifetime of the key in days; default: unlimited", type=whole(1, 3650)),
    changes=True,
    database=True,
)
def _create_consumer(admin: AdminCommand) -> int:
    """Create a consumer and its key, and show the key once."""
    options = admin.options
    body = {"name": options.name, "tier": options.tier, "tenant": options.tenant} | _expires_in(options.days)
    return _write_key(admin, _change_consumer(admin, "create", ("consumers",), body))


@admin_command(CONSUMERS, "show", _NAME)
def _show_consumer(admin: AdminCommand) -> int:
    """Show a consumer and its keys."""
    found = admin.call("GET", "consumers", admin.options.name)
    if not admin.options.json:
        about = f"{found['state']}, tier {found['tier'] or '-'}, tenant {found['tenant'] or '-'}"
        admin.terminal.write(f"{found['id']}: {about}")
    columns = {"KEY": "id", "CREATED": "created_at", "BY": "created_by", "EXPIRES": "expires_at"}
    return admin.write_list(found, columns | {"REVOKED": "revoked_at"}, found["keys"])


@admin_command(CONSUMERS, "rotate", _NAME, _OVERLAP, changes=True, database=True)
def _rotate_consumer(admin: AdminCommand) -> int:
    """Replace a consumer's key."""
    path, body = ("consumers", admin.options.name, "rotate"), {"overlap": admin.options.overlap}
    return _write_key(admin, _change_consumer(admin, "rotate", path, body))


@admin_command(CONSUMERS, "revoke", _NAME, changes=True, database=True)
def _revoke_consumer(admin: AdminCommand) -> int:
    """Revoke all keys of a consumer; its tier and overrides stay."""
    name = admin.options.name
    _change_consumer(admin, "revoke", ("consumers", name, "revoke"), None)
    return admin.write_result({"id": name, "revoked": True}, f"all keys of {name} are revoked")


@admin_command(CONSUMERS, "delete", _NAME, changes=True)
def _delete_consumer(admin: AdminCommand) -> int:
    """Revoke all keys of a consumer, and delete its tier and overrides."""
    name = admin.options.name
    admin.call("DELETE", "consumers", name)
    return admin.write_result({"id": name, "deleted": True}, f"consumer {name} is deleted")


def _change_consumer(admin: AdminCommand, action: str, path: tuple[str, ...], body: Json | None) -> Any:
    """Change a consumer, with --database without an admin plane. Raises UsageError, NoAnswer."""
    options = admin.options
    if not options.database:
        return admin.call("POST", *path, body=body)
    if action == "create" and options.tier:
        raise UsageError("--tier belongs to the rules of a service or a file: omit it with --database")

    async def work(database: Database, actor: Actor) -> Json:
        from headgate.admin.keys import Consumers  # noqa: PLC0415  an extra, slow to load

        consumers, name = Consumers(database), options.name
        if action == "revoke":
            await consumers.revoke(name, actor)
            return {}
        if action == "rotate":
            made = await consumers.rotate(name, actor, overlap_us=options.overlap * 1_000_000)
        else:
            made = await consumers.create(name, actor, tenant=options.tenant, expires_at=_expiry(options.days))
        return {"id": name, "tenant": made.key.tenant, "key_id": made.key.id, "key": made.text}

    return admin.on_database(work, may_be_new=action == "create")
