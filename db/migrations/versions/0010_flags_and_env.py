"""Sets of compiler flags and of environment variables tell variants apart."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    """All variants until now have the default ones."""
    with op.batch_alter_table("cells") as cells:
        for name in ("flags", "env"):
            cells.add_column(sa.Column(name, sa.String(), nullable=False, server_default="default"))
