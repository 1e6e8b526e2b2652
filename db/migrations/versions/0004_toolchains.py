"""Toolchains: their locks, what runs under which, and which nodes have them. Pins, and what may be taken over."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

ID = sa.String().with_variant(sa.String(collation="C"), "postgresql")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """What there was ran under the default toolchain."""
    _alter_tasks()
    with op.batch_alter_table("cells") as cells:
        cells.add_column(sa.Column("toolchain", sa.String(), nullable=False, server_default="default"))
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("lock", sa.String(), nullable=False, server_default=""))
    with op.batch_alter_table("nodes") as nodes:
        nodes.add_column(sa.Column("toolchains", sa.JSON(), nullable=False, server_default="{}"))
    _make_toolchains()
    _make_pins()


def _alter_tasks() -> None:
    with op.batch_alter_table("tasks") as tasks:
        tasks.add_column(sa.Column("toolchain", sa.String(), nullable=False, server_default="default"))
        tasks.add_column(sa.Column("reuse", sa.Boolean()))
        tasks.add_column(sa.Column("lost", sa.Text()))
        tasks.add_column(sa.Column("failure", sa.JSON(none_as_null=True)))
        tasks.add_column(sa.Column("version", sa.Integer(), nullable=False, server_default="0"))
    allowed = "(SELECT reuse FROM jobs WHERE jobs.id = tasks.job)"
    op.execute(f"UPDATE tasks SET reuse = stage <> 'benchmark' AND {allowed}")
    with op.batch_alter_table("tasks") as tasks:
        tasks.alter_column("reuse", existing_type=sa.Boolean(), nullable=False)


def _make_toolchains() -> None:
    op.create_table(
        "toolchains",
        sa.Column("name", ID, primary_key=True),
        sa.Column("digest", ID, primary_key=True),
        sa.Column("source", sa.String, nullable=False),
        sa.Column("is_over", sa.Boolean, nullable=False),
        sa.Column("python", sa.String, nullable=False),
        sa.Column("lines", sa.JSON, nullable=False),
        sa.Column("versions", sa.JSON, nullable=False),
        sa.Column("compiler_flags", sa.JSON(none_as_null=True)),
        sa.Column("resolved_at", MOMENT, nullable=False),
    )


def _make_pins() -> None:
    op.create_table(
        "pins",
        sa.Column("sha256", ID, primary_key=True),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("pinned_by", sa.Text, nullable=False),
        sa.Column("pinned_at", MOMENT, nullable=False),
    )
