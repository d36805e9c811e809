"""The Redis protocol: commands, the start of a connection, and the meaning of error replies. hiredis parses replies."""

from __future__ import annotations

from random import uniform

import hiredis

from headgate.core.errors import OutcomeUnknown, StoreError, StoreUnavailable
from headgate.stores.redis.address import Address, Role


def bulk(text: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text)


def command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(map(bulk, words))


OLDEST = 7
"""The first major version whose scripts check their permissions in advance."""
RELOADS = 5
"""How often a call may find the script missing, since scripts can be flushed at any time."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between attempts to connect."""
PERMISSIONS = "+evalsha +script|load +time +get +set +getrange +setrange +del +pttl +pexpire ~hg1:*"
"""The permissions of the user on the server."""
_SOMETIMES = "+wait for replicas, +cluster|slots +asking in a cluster, +select for a database number"
"""Also +info, to examine the server; a user without it is not refused."""
_REFUSALS = {
    "NOAUTH": "authentication is required: put the user and the password into the address",
    "WRONGPASS": "the user name or the password is wrong",
    "NOPERM": f"the user lacks a permission: it needs {PERMISSIONS} +info; {_SOMETIMES}",
    "READONLY": "the server is a read-only replica",
    "LOADING": "the server is loading its data",
    "MASTERDOWN": "the server has lost its primary",
    "NOREPLICAS": "the server has too few replicas to accept writes",
    "MISCONF": "the server cannot write to its disk",
    "OOM": "the server is out of memory",
    "BUSY": "the server is busy with another script",
    "CLUSTERDOWN": "the cluster is down",
    "MOVED": "another server of the cluster has this key",
    "ASK": "the key is moving to another server of the cluster",
    "TRYAGAIN": "the keys are moving to another server of the cluster",
    "NOSCRIPT": "the server forgot the script",
    "DENIED": "the server is in protected mode",
}
"""Errors before the script has done anything, by their first word."""
MISLED = frozenset({"READONLY", "MASTERDOWN", "NOREPLICAS"})
"""Those after which the address may lead to another server, so that the connection is useless. (A primary without its
replicas may have been replaced, and be the last to notice.)"""
_UNDONE = ("ERR unknown command", "ERR max number of clients")
"""The same, where the first word is not enough."""

INFO = command(b"INFO")
ASKING = command(b"ASKING")
_WAIT_FOR_NONE = command(b"WAIT", b"0", b"1")
REMINDER = command(b"TIME")
REMIND_AFTER = 0.002
"""Seconds after a wait for replicas should have ended until the server is reminded; then twice as many, and so on. An
idle server notices the end only at its next tick, of which there are ten a second; any command wakes it, also on this
connection."""


class RefusedByServer(StoreUnavailable):
    """The server refused with a reason, and has certainly done nothing.

    Args:
        text: the message for the caller.
        word: the first word of the server's error, such as ``"MOVED"``.
        target: the host and port that it names, if any; an empty host is the server's own.
    """

    def __init__(self, text: str, word: str = "", target: tuple[str, int] = ("", 0)) -> None:
        super().__init__(text)
        self.word, self.target = word, target


def pause_after(failures: int) -> float:
    """Return how many seconds to pause after failures to connect: longer each time, and randomized."""
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 10))
    return uniform(pause / 2, pause)


def login(address: Address) -> list[bytes]:
    """Return the first commands of any connection; `objection` judges their replies."""
    if not (address.password or address.user):
        return []
    user = [address.user.encode()] if address.user else []
    return [command(b"AUTH", *user, address.password.encode())]


def greeting(address: Address, load: bytes) -> list[bytes]:
    """Return the first commands of a connection for limits; `load` is the one that loads the script."""
    selection = [command(b"SELECT", b"%d" % address.database)] if address.database else []
    return [*login(address), *selection, INFO, load]


def vetting(address: Address, replicas: int) -> list[bytes]:
    """Return the commands that find out whether a server in use is still suitable, without the script."""
    asking = [ASKING] if address.role is Role.NODE else []
    return [INFO, *asking, *([_WAIT_FOR_NONE] if replicas else [])]


def replication(replicas: int, seconds: float) -> bytes:
    """Encode the wait for replicas to have the writes of this connection."""
    return command(b"WAIT", b"%d" % replicas, b"%d" % max(1, int(seconds * 1000)))


def objection(address: Address, sent: bytes, reply: object, *, strict: bool = False) -> StoreError | None:
    """Return why the server cannot be used, by its `reply` to a command of the greeting or the vetting.

    A server that denies INFO is used all the same, but it is not ready (`strict`).
    """
    if isinstance(reply, Exception):
        if sent is INFO and str(reply).startswith("NOPERM") and not strict:
            return None
        return StoreUnavailable(str(refusal(address, reply)))
    reason = _unfitness(address, reply) if sent is INFO else None
    return StoreUnavailable(f"{address}: {reason}") if reason else None


def refusal(address: Address, reply: Exception) -> StoreError:
    """Return the error for an error reply, without the part of its text that quotes our data."""
    text = str(reply)
    word, _, rest = text.partition(" ")
    if word in _REFUSALS:
        target = _target(rest) if word in {"MOVED", "ASK"} else ("", 0)
        return RefusedByServer(f"{address}: {_REFUSALS[word]} ({word})", word, target)
    if "ACL failure in script" in text or "The user executing the script" in text:
        return denial(address)
    shown = text.partition(",")[0].partition("'")[0].partition("`")[0][:200].strip()  # arguments come after these
    if text.startswith(_UNDONE):
        return StoreUnavailable(f"{address}: {shown}")
    return OutcomeUnknown(f"{address}: {shown}")


def denial(address: Address) -> RefusedByServer:
    """Return the error for a permission that the script lacks; it has done nothing."""
    return RefusedByServer(f"{address}: {_REFUSALS['NOPERM']} (NOPERM)", "NOPERM")


def connection_failure(address: Address, error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"{address}: cannot connect: {str(error) or 'no response'}")


def connection_loss(address: Address, error: Exception | None) -> OutcomeUnknown:
    """Return the error for a connection that was lost during a call."""
    if isinstance(error, hiredis.ProtocolError):
        return OutcomeUnknown(f"{address}: not a Redis server: it does not speak the protocol")
    return OutcomeUnknown(f"{address}: connection lost: {error or 'closed by the server'}")


def is_forgotten(reply: object) -> bool:
    return isinstance(reply, Exception) and str(reply).startswith("NOSCRIPT")


def is_replicated(replicas: int, reply: object) -> bool:
    """Whether enough replicas have the writes, by the reply to `replication`."""
    return isinstance(reply, int) and reply >= replicas


def _target(text: str) -> tuple[str, int]:
    """Parse the target of a redirection: ``slot host:port``."""
    host, _, port = text.partition(" ")[2].rpartition(":")
    return (host, int(port)) if port.isdecimal() and len(port) < 6 and int(port) < 65536 else ("", 0)


def _unfitness(address: Address, info: object) -> str | None:
    """Return why a server with this INFO cannot keep limits; None if it can."""
    text = info.decode(errors="replace") if isinstance(info, bytes) else ""
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    version = facts.get("valkey_version") or facts.get("redis_version", "unknown")
    major, _, _ = version.partition(".")
    if not major.isdecimal() or int(major) < OLDEST:
        return f"version {version} is not supported: {OLDEST}.0 or later is required"
    if mismatch := _mismatch(address.role, facts):
        return mismatch
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and not address.may_evict:
        return (
            f"its maxmemory-policy, {policy}, may evict state, which resets limits: "
            "set noeviction, or accept it with ?evicting=allow"
        )
    return None


def _mismatch(role: Role, facts: dict[str, str]) -> str | None:
    clustered = facts.get("cluster_enabled") == "1"
    if facts.get("redis_mode") == "sentinel":
        return "this is a Sentinel: use redis+sentinel://host:port/service"
    if clustered and role is not Role.NODE:
        return "this is a node of a cluster: use redis+cluster://"
    if role is Role.NODE and not clustered:
        return "this is not a node of a cluster: use redis://"
    if role is Role.PRIMARY and facts.get("role", "master") != "master":
        return "the Sentinels named this server, but it is not the primary (yet, or any more)"
    return None
