"""What an attempt's digest was taken of, so that two can be compared."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Attempts of before have none."""
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("identity", sa.JSON(none_as_null=True)))
