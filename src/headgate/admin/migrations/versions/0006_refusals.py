"""The last refusals of callers, and how many there were in each hour."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
_PRINCIPALS = ("principal", "user", "apikey", "ip")


def _text(name: str, length: int) -> sa.Column[Any]:
    return sa.Column(name, sa.String(length=length), nullable=False)


def _number(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "refusals",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        _number("at"),
        _text("rule_id", 200),
        *[_text(name, 512) for name in _PRINCIPALS],
        _text("endpoint", 200),
        *[_text(name, 64) for name in ("method", "api", "reason")],
        *[_number(name, nullable=True) for name in ("used", "limit", "retry_after_us")],
        _number("count"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_refusals")),
    )
    op.create_index(op.f("ix_refusals_at"), "refusals", ["at"], unique=False)
    for name in _PRINCIPALS:
        op.create_index(f"ix_refusals_{name}_at", "refusals", [name, "at"], unique=False)
    op.create_table(
        "refusal_hours",
        _number("at"),
        _text("rule_id", 200),
        _text("principal", 512),
        _number("count"),
        sa.PrimaryKeyConstraint("at", "rule_id", "principal", name=op.f("pk_refusal_hours")),
    )
    op.create_index("ix_refusal_hours_principal_at", "refusal_hours", ["principal", "at"], unique=False)


def downgrade() -> None:
    op.drop_table("refusal_hours")
    op.drop_table("refusals")
