"""Jobs, their tasks and cells, attempts, and what attempts made."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

ID = sa.String().with_variant(sa.String(collation="C"), "postgresql")
NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)


def upgrade() -> None:
    """From nothing."""
    _jobs()
    _tasks()
    _cells()
    _attempts()
    _made_by_attempts()
    _events()


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("id", ID, primary_key=True),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("model_facts", sa.JSON, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("submitted_by", sa.Text, nullable=False),
        sa.Column("submitted_at", MOMENT, nullable=False, index=True),
        sa.Column("timeout_s", sa.Float, nullable=False),
        sa.Column("reuse", sa.Boolean, nullable=False),
    )


def _tasks() -> None:
    op.create_table(
        "tasks",
        sa.Column("id", ID, primary_key=True),
        sa.Column("job", ID, sa.ForeignKey("jobs.id"), nullable=False, index=True),
        sa.Column("stage", sa.String, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("target", sa.String, nullable=False),
        sa.Column("settings", sa.JSON, nullable=False),
        sa.Column("needs", sa.JSON, nullable=False),
        sa.Column("resources", sa.JSON, nullable=False),
        sa.Column("state", sa.String, nullable=False),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("attempt", ID),
        sa.Column("waits_for", sa.Text),
        sa.Column("is_stuck", sa.Boolean, nullable=False),
        sa.Column("blocked_by", sa.Text),
    )
    op.create_index("ix_tasks_state_job", "tasks", ["state", "job"])


def _cells() -> None:
    op.create_table(
        "cells",
        sa.Column("job", ID, sa.ForeignKey("jobs.id"), primary_key=True),
        sa.Column("position", sa.Integer, nullable=False),
        sa.Column("variant", ID, primary_key=True),
        sa.Column("target", sa.String, primary_key=True),
        sa.Column("stage", sa.String, primary_key=True),
        sa.Column("precision", sa.String, nullable=False),
        sa.Column("attention", sa.String, nullable=False),
        sa.Column("tp", sa.Integer, nullable=False),
        sa.Column("task", ID, sa.ForeignKey("tasks.id"), nullable=False, index=True),
        sa.Column("is_first", sa.Boolean, nullable=False),
    )
    op.create_index("ix_cells_variant_target_stage", "cells", ["variant", "target", "stage"])


def _attempts() -> None:
    op.create_table(
        "attempts",
        sa.Column("id", ID, primary_key=True),
        sa.Column("task", ID, sa.ForeignKey("tasks.id"), nullable=False, index=True),
        sa.Column("epoch", sa.Integer, nullable=False),
        sa.Column("node", sa.String, nullable=False),
        sa.Column("devices", sa.JSON, nullable=False),
        sa.Column("commands", sa.JSON, nullable=False),
        sa.Column("inputs", sa.JSON, nullable=False),
        sa.Column("digest", sa.String, nullable=False, index=True),
        sa.Column("toolchain", sa.String, nullable=False),
        sa.Column("versions", sa.JSON, nullable=False),
        sa.Column("host_cpu", sa.String, nullable=False),
        sa.Column("environment", sa.JSON, nullable=False),
        sa.Column("timeout_s", sa.Float, nullable=False),
        sa.Column("started_at", MOMENT, nullable=False),
        sa.Column("ended_at", MOMENT),
        sa.Column("outcome", sa.String),
        sa.Column("failure_kind", sa.String),
        sa.Column("failure_message", sa.Text),
        sa.Column("log_tail", sa.Text),
        sa.Column("warnings", sa.JSON, nullable=False),
        sa.Column("processes", sa.JSON, nullable=False),
    )


def _made_by_attempts() -> None:
    op.create_table(
        "artifacts",
        sa.Column("attempt", ID, sa.ForeignKey("attempts.id"), primary_key=True),
        sa.Column("name", ID, primary_key=True),
        sa.Column("kind", sa.String, nullable=False),
        sa.Column("sha256", sa.String, nullable=False, index=True),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "measurements",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("attempt", ID, sa.ForeignKey("attempts.id"), nullable=False),
        sa.Column("metric", sa.String, nullable=False, index=True),
        sa.Column("unit", sa.String, nullable=False),
        sa.Column("median", sa.Float, nullable=False),
        sa.Column("samples", sa.JSON, nullable=False),
        sa.Column("batch", sa.Integer),
        sa.Column("prompt_tokens", sa.Integer),
        sa.Column("context", sa.JSON, nullable=False),
    )
    op.create_index("ix_measurements_attempt_metric", "measurements", ["attempt", "metric"])


def _events() -> None:
    op.create_table(
        "events",
        sa.Column("id", NUMBER, primary_key=True),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("job", ID, sa.ForeignKey("jobs.id"), nullable=False, index=True),
        sa.Column("task", ID, sa.ForeignKey("tasks.id"), index=True),
        sa.Column("attempt", ID, sa.ForeignKey("attempts.id")),
        sa.Column("was", sa.String),
        sa.Column("became", sa.String),
        sa.Column("detail", sa.Text, nullable=False),
    )
