"""Order comes from event numbers and durations from nodes' clocks; what lost attempts measured is no result."""

import sqlalchemy as sa
from alembic import op

from db.schema import schema_0008

revision = "0008"
down_revision = "0007"

COLUMNS = (
    ("attempts", "duration_s", sa.Float()),
    ("nodes", "cordoned_after", sa.BigInteger()),
    ("devices", "quarantined_after", sa.BigInteger()),
)


def upgrade() -> None:
    """Add the columns, and fill them from what is known."""
    for name, column, kind in COLUMNS:
        with op.batch_alter_table(name) as table:
            table.add_column(sa.Column(column, kind))
    schema_0008.mend(op.get_bind())
