"""Browsers that are logged in to the console."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    op.create_table(
        "sessions",
        *[sa.Column(name, sa.String(length=64), nullable=False) for name in ("id", "key_id", "key_digest")],
        *[sa.Column(name, sa.BigInteger(), nullable=False) for name in ("created_at", "seen_at")],
        sa.Column("csrf", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_key_id"), "sessions", ["key_id"], unique=False)


def downgrade() -> None:
    op.drop_table("sessions")
