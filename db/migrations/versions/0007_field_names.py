"""Columns, stored values and JSON keys get the field's words: what each was called stands in `db.schema.renames`."""

from alembic import op

from db.schema import renames

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Rename in place; no row is lost, and what is cached stays so."""
    renames.rename_columns(op.get_bind())
    renames.rename_values(op.get_bind())
