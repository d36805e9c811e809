"""What goes over the wire: commands encoded, greetings, and what an error reply means."""

from __future__ import annotations

import hiredis

from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from headgate.stores.redis import scripts
from headgate.stores.redis.address import Address
from headgate.stores.redis.resp import command

OLDEST = 7
"""The first major version whose scripts refuse up front what they cannot do."""
RELOADS = 5
"""How often a question may find the script forgotten: somebody may flush the scripts all the time."""
PERMISSIONS = "+evalsha +script|load +time +get +set +getrange +setrange +del +pttl +pexpire ~hg1:*"
"""What a user on the server needs; also +select for a database number, and +info to have the server vetted."""
_REFUSALS = {
    b"NOAUTH": "authentication is required: give user and password in the address",
    b"WRONGPASS": "the user name or the password is wrong",
    b"NOPERM": f"the user lacks a permission: it needs {PERMISSIONS}",
    b"READONLY": "the server is a read-only replica",
    b"LOADING": "the server is loading its data",
    b"MASTERDOWN": "the server has lost its primary",
    b"NOREPLICAS": "the server has too few replicas to write",
    b"MISCONF": "the server cannot write to its disk",
    b"OOM": "the server is out of memory",
    b"BUSY": "the server is busy with another script",
    b"CLUSTERDOWN": "the cluster is down",
    b"MOVED": "the server is a part of a cluster",
    b"NOSCRIPT": "the server forgot the script",
    b"DENIED": "the server is in protected mode",
}
"""Errors that come before the script has done anything, by their first word."""
_UNDONE = ("ERR unknown command", "ERR max number of clients")
"""The same, where the first word does not tell."""


LOAD = command(b"SCRIPT", b"LOAD", scripts.SCRIPT)
INFO = command(b"INFO")


def greeting(address: Address) -> list[bytes]:
    """Return the commands that open a conversation; `objection` says what to think of their answers."""
    commands = []
    if address.password or address.user:
        user = [address.user.encode()] if address.user else []
        commands.append(command(b"AUTH", *user, address.password.encode()))
    if address.database:
        commands.append(command(b"SELECT", b"%d" % address.database))
    return [*commands, INFO, LOAD]


def objection(address: Address, asked: bytes, reply: object) -> StoreError | None:
    """Return why the server cannot be used, going by its `reply` to a command of the greeting."""
    if isinstance(reply, Exception):
        if asked is INFO and str(reply).startswith("NOPERM"):
            return None  # whoever made this user has made up their mind about the server
        return StoreUnavailable(str(refusal(address, reply)))
    reason = _unfitness(address, reply) if asked is INFO else None
    return StoreUnavailable(reason) if reason else None


def refusal(address: Address, reply: Exception) -> StoreError:
    """Return the error that an error reply means to the caller. Never shows what the server said about our data."""
    text = str(reply)
    word = text.split(" ", 1)[0].encode()
    if word in _REFUSALS:
        return StoreUnavailable(f"{address}: {_REFUSALS[word]} ({word.decode()})")
    if "ACL failure in script" in text or "The user executing the script" in text:  # in the middle of it, perhaps
        return OutcomeUnknown(f"{address}: {_REFUSALS[b'NOPERM']} (NOPERM)")
    said = text.partition(",")[0].partition("'")[0].partition("`")[0][:200].strip()  # arguments come after these
    if text.startswith(_UNDONE):
        return StoreUnavailable(f"{address}: {said}")
    return OutcomeUnknown(f"{address}: {said}")


def unconnected(address: Address, error: Exception) -> StoreUnavailable:
    """Return the error of a connection that could not be made."""
    return StoreUnavailable(f"{address}: cannot connect: {str(error) or 'no answer'}")


def lost(address: Address, error: Exception | None) -> OutcomeUnknown:
    """Return the error of a connection that ended with a question in the air."""
    if isinstance(error, hiredis.ProtocolError):
        return OutcomeUnknown(f"{address}: not a Redis server: it does not speak the protocol")
    return OutcomeUnknown(f"{address}: connection lost: {error or 'closed by the server'}")


def is_forgotten(reply: object) -> bool:
    """Does `reply` say that the server does not have the script?"""
    return isinstance(reply, Exception) and str(reply).startswith("NOSCRIPT")


def _unfitness(address: Address, info: object) -> str | None:
    """Return why a server with this INFO cannot keep limits, if it cannot."""
    text = info.decode(errors="replace") if isinstance(info, bytes) else ""
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    version = facts.get("valkey_version") or facts.get("redis_version", "unknown")
    major, _, _ = version.partition(".")
    if not major.isdecimal() or int(major) < OLDEST:
        return f"{address}: version {version} is not supported: {OLDEST}.0 or later is needed"
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and not address.may_evict:
        return (
            f"{address}: its maxmemory-policy, {policy}, may evict state and so hand out fresh budget: "
            "set noeviction, or accept it with ?evicting=allow"
        )
    return None
