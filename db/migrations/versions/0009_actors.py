"""Who made each change: columns of events, and a table of the changes that move no task."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Nobody knows who made the changes until now."""
    with op.batch_alter_table("events") as events:
        events.add_column(sa.Column("actor", sa.Text))
        events.add_column(sa.Column("database_user", sa.String))
    op.create_table(
        "changes",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("database_user", sa.String),
        sa.Column("action", sa.String, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("detail", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_changes"),
    )
    if op.get_bind().dialect.name == "postgresql":  # the server says it, so that no client can say another
        for name in ("events", "changes"):
            op.execute(f"ALTER TABLE {name} ALTER COLUMN database_user SET DEFAULT SESSION_USER")
