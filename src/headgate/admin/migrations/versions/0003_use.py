"""How much single principals ask for, for what another limit would refuse."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def _number(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), autoincrement=False, nullable=False)


def _level() -> sa.Column[Any]:
    return sa.Column("level", sa.Integer(), autoincrement=False, nullable=False)


def _create(name: str, *columns: sa.Column[Any], keys: tuple[str, ...] = ()) -> None:
    op.create_table(
        name,
        sa.Column("rule_id", sa.String(length=64), nullable=False),
        *[_number(each) for each in ("window_us", "in_force", "at")],
        *columns,
        sa.PrimaryKeyConstraint("rule_id", "window_us", "in_force", "at", *keys, name=op.f(f"pk_{name}")),
    )
    op.create_index(f"ix_{name}_at", name, ["at"], unique=False)


def upgrade() -> None:
    _create("use_windows", _level())
    _create("use_principals", _number("principal"), _number("units"), keys=("principal",))
    columns = _level(), _number("low"), _number("principals"), _number("units")
    _create("use_histograms", *columns, keys=("level", "low"))


def downgrade() -> None:
    for name in ("use_histograms", "use_principals", "use_windows"):
        op.drop_table(name)
