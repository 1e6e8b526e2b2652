"""What variants are told apart by; quoted targets; what was imported; schedules."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

ID = sa.String().with_variant(sa.String(collation="C"), "postgresql")
BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True)

#: What every variant was until now.
AXES = {"kv_precision": "same", "kv_cache": "contiguous", "quantizer": "haloctl", "exporter": "haloctl"}


def upgrade() -> None:
    """Nothing that is there changes."""
    _add_axes()
    _name_models()
    _make_targets()
    _find_newest_cells()
    _make_reports()
    _make_imports()
    _make_schedules()


def _add_axes() -> None:
    with op.batch_alter_table("cells") as cells:
        for name, default in AXES.items():
            cells.add_column(sa.Column(name, sa.String(), nullable=False, server_default=default))
        cells.add_column(sa.Column("pp", sa.Integer(), nullable=False, server_default="1"))


def _name_models() -> None:
    """A job had one model until now."""
    with op.batch_alter_table("cells") as cells:
        cells.add_column(sa.Column("model", sa.Text()))
    op.execute("UPDATE cells SET model = (SELECT model FROM jobs WHERE jobs.id = cells.job)")
    with op.batch_alter_table("cells") as cells:
        cells.alter_column("model", existing_type=sa.Text(), nullable=False)
        cells.create_index("ix_cells_model", ["model"])


def _make_targets() -> None:
    op.create_table(
        "targets",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("variant", sa.Text, nullable=False),
        sa.Column("target", sa.String, nullable=False),
        sa.Column("metric", sa.String, nullable=False),
        sa.Column("batch", sa.Integer),
        sa.Column("prompt_tokens", sa.Integer),
        sa.Column("new_tokens", sa.Integer),
        sa.Column("value", sa.Float, nullable=False),
        sa.Column("unit", sa.String, nullable=False),
        sa.Column("source", sa.Text, nullable=False),
        sa.Column("recorded_by", sa.Text, nullable=False),
        sa.Column("since", MOMENT, nullable=False),
    )


def _find_newest_cells() -> None:
    """A place's newest cell is read from an index, and so are the names of toolchains."""
    with op.batch_alter_table("cells") as cells:
        cells.add_column(sa.Column("submitted_at", MOMENT))
        cells.drop_index("ix_cells_variant_target_stage")
    op.execute("UPDATE cells SET submitted_at = (SELECT submitted_at FROM jobs WHERE jobs.id = cells.job)")
    with op.batch_alter_table("cells") as cells:
        cells.alter_column("submitted_at", existing_type=MOMENT, nullable=False)
        cells.create_index(
            "ix_cells_variant_target_stage_submitted_at_job", ["variant", "target", "stage", "submitted_at", "job"]
        )
        cells.create_index("ix_cells_toolchain", ["toolchain"])


def _make_imports() -> None:
    """Jobs that are there were submitted."""
    with op.batch_alter_table("jobs") as jobs:
        jobs.add_column(sa.Column("imported_from", sa.Text()))
        jobs.add_column(sa.Column("schedule", sa.String()))
    op.create_table(
        "imports",
        sa.Column("digest", ID, primary_key=True),
        sa.Column("job", ID, sa.ForeignKey("jobs.id", name="fk_imports_job"), nullable=False),
    )
    op.create_index("ix_imports_job", "imports", ["job"])


def _make_schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("name", ID, primary_key=True),
        sa.Column("cron", sa.String, nullable=False),
        sa.Column("timezone", sa.String, nullable=False),
        sa.Column("file", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("spec", sa.JSON, nullable=False),
        sa.Column("model_facts", sa.JSON, nullable=False),
        sa.Column("if_missed", sa.String, nullable=False),
        sa.Column("is_paused", sa.Boolean, nullable=False),
        sa.Column("next_at", MOMENT),
        sa.Column("added_by", sa.Text, nullable=False),
        sa.Column("added_at", MOMENT, nullable=False),
    )
    op.create_index("ix_schedules_next_at", "schedules", ["next_at"])
    op.create_table(
        "schedule_runs",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("schedule", ID, sa.ForeignKey("schedules.name", name="fk_schedule_runs_schedule"), nullable=False),
        sa.Column("due_at", MOMENT, nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("outcome", sa.String, nullable=False),
        sa.Column("count", sa.Integer, nullable=False),
        sa.Column("job", ID, sa.ForeignKey("jobs.id", name="fk_schedule_runs_job")),
        sa.Column("detail", sa.Text, nullable=False),
    )
    op.create_index("ix_schedule_runs_schedule_due_at", "schedule_runs", ["schedule", "due_at"])
    op.create_index("ix_schedule_runs_job", "schedule_runs", ["job"])


def _make_reports() -> None:
    op.create_table(
        "reports",
        sa.Column("id", BIG_ID, primary_key=True),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("made_by", sa.Text, nullable=False),
    )
