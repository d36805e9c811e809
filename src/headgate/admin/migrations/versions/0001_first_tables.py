"""The first tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _bodies(name: str, longest_id: int, *columns: sa.Column[Any]) -> None:
    op.create_table(
        name,
        sa.Column("id", sa.String(length=longest_id), nullable=False),
        *columns,
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{name}")),
    )
    op.create_index(op.f(f"ix_{name}_updated_at"), name, ["updated_at"], unique=False)


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("role", sa.String(length=16), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=128), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("last_used_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
    )
    op.create_table(
        "audit",
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=512), nullable=False),
        sa.Column("before", sa.JSON(), nullable=True),
        sa.Column("after", sa.JSON(), nullable=True),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("previous", sa.String(length=64), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("sequence", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_action"), "audit", ["action"], unique=False)
    op.create_index(op.f("ix_audit_actor"), "audit", ["actor"], unique=False)
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
    op.create_index("ix_audit_kind_subject", "audit", ["kind", "subject"], unique=False)
    op.create_index(op.f("ix_audit_subject"), "audit", ["subject"], unique=False)
    op.create_table(
        "audit_start",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_start")),
    )
    op.create_table(
        "changes",
        sa.Column("revision", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("subject", sa.String(length=512), nullable=False),
        sa.PrimaryKeyConstraint("revision", "kind", "subject", name=op.f("pk_changes")),
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("process", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_nodes")),
    )
    op.create_index(op.f("ix_nodes_seen_at"), "nodes", ["seen_at"], unique=False)
    op.create_table(
        "revision",
        sa.Column("id", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_revision")),
    )
    _bodies("rules", 64, sa.Column("position", sa.Integer(), nullable=False))
    op.create_index(op.f("ix_rules_position"), "rules", ["position"], unique=False)
    _bodies("settings", 64)
    _bodies("tiers", 64)
    _bodies("users", 512, sa.Column("tier", sa.String(length=64), nullable=False))
    op.create_index(op.f("ix_users_tier"), "users", ["tier"], unique=False)
    op.create_table(
        "versions",
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("id", sa.String(length=512), nullable=False),
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("body", sa.JSON(), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.PrimaryKeyConstraint("kind", "id", "version", name=op.f("pk_versions")),
    )
    op.create_table(
        "overrides",
        sa.Column("user_id", sa.String(length=512), nullable=False),
        sa.Column("rule_id", sa.String(length=64), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_overrides_user_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("user_id", "rule_id", name=op.f("pk_overrides")),
    )
    op.create_index(op.f("ix_overrides_rule_id"), "overrides", ["rule_id"], unique=False)
    op.create_index(op.f("ix_overrides_until"), "overrides", ["until"], unique=False)
    op.execute("INSERT INTO revision (id, number, changed_at) VALUES (1, 0, 0)")
    op.execute(
        f"INSERT INTO audit_start (id, sequence, digest) VALUES (1, 0, '{'0' * 64}')"  # noqa: S608  a constant
    )


def downgrade() -> None:
    for name in ("overrides", "versions", "users", "tiers", "settings", "rules"):
        op.drop_table(name)
    for name in ("revision", "nodes", "changes", "audit_start", "audit", "api_keys"):
        op.drop_table(name)
