"""Many nodes: terms of heads, nodes and their devices, gangs, pins, priorities, followed logs."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

ID = sa.String().with_variant(sa.String(collation="C"), "postgresql")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)

#: One place out of the node and the devices that an attempt had.
PLACES = {
    "sqlite": "json_array(json_object('node', node, 'devices', json(devices)))",
    "postgresql": "json_build_array(json_build_object('node', node, 'devices', devices))",
}


def upgrade() -> None:
    """An attempt of before ran on one node."""
    _alter_jobs()
    _alter_tasks()
    _alter_cells()
    _alter_attempts()
    _make_durations()
    _make_terms()
    _make_nodes()
    _make_logs()


def _alter_jobs() -> None:
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("priority", sa.Integer(), nullable=False, server_default="0"))
        jobs.add_column(sa.Column("job_timeout_s", sa.Float()))
        jobs.add_column(sa.Column("due_at", MOMENT))
        jobs.add_column(sa.Column("version", sa.Integer(), nullable=False, server_default="0"))
        jobs.create_index("ix_jobs_due_at", ["due_at"])


def _alter_tasks() -> None:
    with op.batch_alter_table("tasks") as tasks:
        tasks.add_column(sa.Column("pin", sa.JSON(none_as_null=True)))
        tasks.add_column(sa.Column("asked_epoch", sa.Integer()))
        tasks.add_column(sa.Column("likeness", sa.String()))
    op.execute("UPDATE tasks SET asked_epoch = epoch - tries")
    with op.batch_alter_table("tasks") as tasks:
        tasks.alter_column("asked_epoch", existing_type=sa.Integer(), nullable=False)
        tasks.drop_column("tries")


def _alter_cells() -> None:
    with op.batch_alter_table("cells") as cells:
        cells.add_column(sa.Column("engine", sa.String(), nullable=False, server_default="iree"))
        cells.add_column(sa.Column("nodes", sa.Integer(), nullable=False, server_default="1"))


def _alter_attempts() -> None:
    with op.batch_alter_table("attempts") as attempts:
        attempts.add_column(sa.Column("places", sa.JSON()))
        attempts.add_column(sa.Column("weight", sa.Float()))
        attempts.add_column(sa.Column("term", sa.Integer()))
        attempts.add_column(sa.Column("is_counted", sa.Boolean()))
        attempts.create_index("ix_attempts_started_at", ["started_at"])
        attempts.create_index("ix_attempts_ended_at", ["ended_at"])
    op.execute(f"UPDATE attempts SET places = {PLACES[op.get_bind().dialect.name]}")
    op.execute("UPDATE attempts SET is_counted = failure_kind <> 'handed_back' WHERE failure_kind IS NOT NULL")
    with op.batch_alter_table("attempts") as attempts:
        attempts.alter_column("places", existing_type=sa.JSON(), nullable=False)
        attempts.drop_column("devices")


def _make_durations() -> None:
    op.create_table(
        "durations",
        sa.Column("likeness", ID, primary_key=True),
        sa.Column("recent_s", sa.JSON, nullable=False),
    )


def _make_terms() -> None:
    op.create_table(
        "terms",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("began_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT),
    )


def _make_nodes() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", ID, primary_key=True),
        sa.Column("host", sa.Text, nullable=False),
        sa.Column("address", sa.String, nullable=False),
        sa.Column("cpus", sa.Integer, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("versions", sa.JSON, nullable=False),
        sa.Column("first_seen_at", MOMENT, nullable=False),
        sa.Column("seen_at", MOMENT, nullable=False),
        sa.Column("is_up", sa.Boolean, nullable=False),
        sa.Column("closed", sa.String),
        sa.Column("closed_why", sa.Text),
        sa.Column("closed_at", MOMENT),
        sa.Column("refuses_why", sa.Text),
        sa.Column("checks", sa.JSON, nullable=False),
    )
    op.create_table(
        "devices",
        sa.Column("node", ID, sa.ForeignKey("nodes.id"), primary_key=True),
        sa.Column("kind", sa.String, primary_key=True),
        sa.Column("index", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("serial", sa.String, nullable=False),
        sa.Column("memory_bytes", sa.BigInteger, nullable=False),
        sa.Column("memory_used_bytes", sa.BigInteger),
        sa.Column("quarantined_why", sa.Text),
        sa.Column("quarantined_at", MOMENT),
    )


def _make_logs() -> None:
    op.create_table(
        "followed_logs",
        sa.Column("attempt", ID, sa.ForeignKey("attempts.id"), primary_key=True),
        sa.Column("until", MOMENT, nullable=False),
    )
    op.create_table(
        "log_chunks",
        sa.Column("attempt", ID, sa.ForeignKey("attempts.id"), primary_key=True),
        sa.Column("offset", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("text", sa.Text, nullable=False),
    )
