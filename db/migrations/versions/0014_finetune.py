"""Ways of fine-tuning tell variants apart."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    """No variant until now was fine-tuned."""
    with op.batch_alter_table("cells") as cells:
        cells.add_column(sa.Column("finetune", sa.String(), nullable=False, server_default="none"))
