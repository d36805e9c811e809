"""Keys of consumers: the callers of the protected API."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "consumer_keys",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("consumer", sa.String(length=512), nullable=False),
        sa.Column("tenant", sa.String(length=512), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.String(length=128), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_consumer_keys")),
    )
    op.create_index(op.f("ix_consumer_keys_consumer"), "consumer_keys", ["consumer"], unique=False)


def downgrade() -> None:
    op.drop_table("consumer_keys")
