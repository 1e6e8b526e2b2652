"""Tasks that begin after the one that a gate compares them with."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

ID = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def upgrade() -> None:
    """What is there waits for nothing else."""
    with op.batch_alter_table("tasks") as tasks:
        tasks.add_column(sa.Column("after", ID))
