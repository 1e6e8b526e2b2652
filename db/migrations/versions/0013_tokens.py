"""Tokens with which users reach the web server."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0010"


def upgrade() -> None:
    """There are none yet."""
    op.create_table(
        "tokens",
        sa.Column("id", sa.String().with_variant(sa.String(collation="C"), "postgresql"), nullable=False),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("role", sa.String, nullable=False),
        sa.Column("sha256", sa.String, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True)),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )
