"""The tables of version 0.1.0, as `headgate.admin.tables` declares them.

Before a table changes after that release, copy its present form here, and write a migration for the change.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import insert

from headgate.admin import tables

revision = "0.1.0"
down_revision = None


def upgrade() -> None:
    tables.metadata.create_all(op.get_bind())
    op.execute(insert(tables.revision).values(id=1, number=0, changed_at=0))
    op.execute(insert(tables.audit_start).values(id=1, sequence=0, digest="0" * 64))
