"""What rules decided, by minute and by hour."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    for name in ("usage_minutes", "usage_hours"):
        op.create_table(
            name,
            sa.Column("at", sa.BigInteger(), autoincrement=False, nullable=False),
            sa.Column("rule_id", sa.String(length=200), nullable=False),
            sa.Column("outcome", sa.String(length=16), nullable=False),
            sa.Column("count", sa.BigInteger(), nullable=False),
            sa.PrimaryKeyConstraint("at", "rule_id", "outcome", name=op.f(f"pk_{name}")),
        )
        op.create_index(f"ix_{name}_rule_id_at", name, ["rule_id", "at"], unique=False)
    op.create_table(
        "usage_writers",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_usage_writers")),
    )


def downgrade() -> None:
    op.drop_table("usage_writers")
    op.drop_table("usage_hours")
    op.drop_table("usage_minutes")
