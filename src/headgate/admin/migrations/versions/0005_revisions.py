"""What one revision did, to be listed and undone: its audit entries, and where rules were that it deleted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("versions", sa.Column("place", sa.Integer(), nullable=True))
    op.create_index(op.f("ix_audit_revision"), "audit", ["revision"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_audit_revision"), table_name="audit")
    op.drop_column("versions", "place")
