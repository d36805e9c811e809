"""The tables of the admin database, the same on SQLite and PostgreSQL.

Times are microseconds since the epoch. Bodies are JSON in the form of a rules file, which the file, the API and the
database share; other columns repeat parts of a body for searches.

::

    revision                        one row: the number of the last change; every change locks it first
    rules, tiers, users, settings   objects in force: the body of each, and its version
    overrides                       users, the rules that they override, and until when
    versions                        all versions of all bodies
    changes                         the objects that each revision changed, for nodes that catch up
    audit, audit_start              the audit trail, a chain of digests; and where the chain starts
    api_keys, consumer_keys         digests of keys, never keys
    sessions                        digests of the tokens of browsers that are logged in to the console
    nodes                           services, and the revision that each runs
    figures                         present rates of each node, during views of the overview
    usage_minutes, usage_hours      decisions of rules, lately by minute, before that by hour
    use_windows, use_principals     use of principals of a sample in open windows
    use_histograms                  numbers of principals by their use, for all windows that began in an hour
    refusals, refusal_hours         the last refusals of callers, for a day; and their numbers by hour
    usage_writers                   the last batch of each service, so that none is added twice
"""

from __future__ import annotations

from time import time_ns
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)


def epoch_us() -> int:
    """Return the present time, in microseconds since the epoch."""
    return time_ns() // 1000


metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
Json = JSON(none_as_null=True)
RULE_ID, TIER, USER_ID = String(64), String(64), String(512)
STAT = String(200)  # the name of a rule in counters: Envoy's descriptors have longer names than rules

revision = Table(
    "revision",
    metadata,
    Column("id", SmallInteger, CheckConstraint("id = 1", name="only"), primary_key=True, autoincrement=False),
    Column("number", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
)


def _bodies(name: str, key: String, *columns: Column[Any]) -> Table:
    return Table(
        name,
        metadata,
        Column("id", key, primary_key=True),
        *columns,
        Column("body", Json, nullable=False),
        Column("version", Integer, nullable=False),
        Column("created_at", BigInteger, nullable=False),
        Column("updated_at", BigInteger, nullable=False, index=True),
    )


rules = _bodies("rules", RULE_ID, Column("position", Integer, nullable=False, index=True))
tiers = _bodies("tiers", TIER)
users = _bodies("users", USER_ID, Column("tier", TIER, nullable=False, index=True))
settings = _bodies("settings", RULE_ID)
overrides = Table(  # repeated from the bodies of users, for searches by rule and by time
    "overrides",
    metadata,
    Column("user_id", USER_ID, ForeignKey("users.id", ondelete="CASCADE"), primary_key=True),
    Column("rule_id", RULE_ID, primary_key=True, index=True),
    Column("until", BigInteger, index=True),
)
versions = Table(
    "versions",
    metadata,
    Column("kind", String(16), primary_key=True),
    Column("id", USER_ID, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("body", Json),  # null: it was deleted
    Column("place", Integer),  # of a deleted rule: the number of rules before it
    Column("revision", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("actor", String(128), nullable=False),
)
changes = Table(
    "changes",
    metadata,
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", String(16), primary_key=True),
    Column("subject", USER_ID, primary_key=True),
)
audit = Table(
    "audit",
    metadata,
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("at", BigInteger, nullable=False, index=True),
    Column("actor", String(128), nullable=False, index=True),
    Column("action", String(32), nullable=False, index=True),
    Column("kind", String(16), nullable=False),
    Column("subject", USER_ID, nullable=False, index=True),
    Column("before", Json),
    Column("after", Json),
    Column("request_id", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
    Column("previous", String(64), nullable=False),
    Column("digest", String(64), nullable=False),
)
audit_start = Table(
    "audit_start",
    metadata,
    Column("id", SmallInteger, CheckConstraint("id = 1", name="only"), primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, nullable=False),
    Column("digest", String(64), nullable=False),
)
api_keys = Table(
    "api_keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(128), nullable=False),
    Column("role", String(16), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", String(128), nullable=False),
    Column("expires_at", BigInteger),
    Column("last_used_at", BigInteger),
    Column("revoked_at", BigInteger),
)
sessions = Table(
    "sessions",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("key_id", String(64), nullable=False, index=True),
    Column("key_digest", String(64), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    Column("csrf", String(64), nullable=False),
)
consumer_keys = Table(
    "consumer_keys",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("consumer", USER_ID, nullable=False, index=True),
    Column("tenant", USER_ID, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", String(128), nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
)
nodes = Table(
    "nodes",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("host", String(255), nullable=False),
    Column("process", Integer, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False, index=True),
    Column("revision", BigInteger, nullable=False),
    Column("error", Text, nullable=False),
)
figures = Table(  # without an index by time: there is a row for each node
    "figures",
    metadata,
    Column("id", String(64), primary_key=True),  # of the node; or WATCHED, whose `at` is the end of views
    Column("at", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
)
WATCHED = "watched"


def _usage(name: str) -> Table:
    return Table(
        name,
        metadata,
        Column("at", BigInteger, primary_key=True, autoincrement=False),  # the beginning of the minute or hour
        Column("rule_id", STAT, primary_key=True),
        Column("outcome", String(16), primary_key=True),
        Column("count", BigInteger, nullable=False),
        Index(f"ix_{name}_rule_id_at", "rule_id", "at"),
    )


usage_minutes, usage_hours = _usage("usage_minutes"), _usage("usage_hours")


def _use(name: str, *columns: Column[Any]) -> Table:
    return Table(
        name,
        metadata,
        Column("rule_id", RULE_ID, primary_key=True),
        Column("window_us", BigInteger, primary_key=True, autoincrement=False),
        Column("in_force", BigInteger, primary_key=True, autoincrement=False),  # the limit at that time
        Column("at", BigInteger, primary_key=True, autoincrement=False),  # the beginning of the window, or the first
        *columns,
        Index(f"ix_{name}_at", "at"),
    )


use_windows = _use("use_windows", Column("level", Integer, nullable=False))  # the sample: one of 2 ** level
use_principals = _use(
    "use_principals",
    Column("principal", BigInteger, primary_key=True, autoincrement=False),  # a digest
    Column("units", BigInteger, nullable=False),
)
use_histograms = _use(
    "use_histograms",
    Column("level", Integer, primary_key=True, autoincrement=False),
    Column("low", BigInteger, primary_key=True, autoincrement=False),  # the least units of the bucket
    Column("principals", BigInteger, nullable=False),
    Column("units", BigInteger, nullable=False),
)
_SHOWN = String(512)  # a principal in the form of logs
refusals = Table(
    "refusals",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("at", BigInteger, nullable=False, index=True),
    Column("rule_id", STAT, nullable=False),
    *[Column(name, _SHOWN, nullable=False) for name in ("principal", "user", "apikey", "ip")],
    Column("endpoint", String(200), nullable=False),
    *[Column(name, String(64), nullable=False) for name in ("method", "api", "reason")],
    *[Column(name, BigInteger) for name in ("used", "limit", "retry_after_us")],
    Column("count", BigInteger, nullable=False),
    *[Index(f"ix_refusals_{name}_at", name, "at") for name in ("principal", "user", "apikey", "ip")],
)
refusal_hours = Table(
    "refusal_hours",
    metadata,
    Column("at", BigInteger, primary_key=True, autoincrement=False),
    Column("rule_id", STAT, primary_key=True),
    Column("principal", _SHOWN, primary_key=True),
    Column("count", BigInteger, nullable=False),
    Index("ix_refusal_hours_principal_at", "principal", "at"),
)
usage_writers = Table(
    "usage_writers",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
)
Index("ix_audit_kind_subject", audit.c.kind, audit.c.subject)
