"""The views of `haloctl query`, which keep their names and columns while the tables below them change.

Each session creates them as temporary views, so that no migration concerns them. Times are in UTC; columns
that are called JSON hold it as text. A column that was renamed is there under its old name too, for one release.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Dialect, MetaData, Select, Table, and_, func, select

from db.schema import tables
from db.schema.renames import COLUMNS
from db.writes.changes import ChangeAction
from jobs.state import DONE, TaskState
from jobs.variants import AXES

Tables = Mapping[str, Table]


@dataclass(frozen=True)
class QueryView:
    """A view that queries may read."""

    title: str
    columns: Mapping[str, str]  #: by name, a description; empty where the name says it
    query: Callable[[Tables], Select[Any]]  #: its columns in that order
    deprecated: Mapping[str, str] = field(default_factory=dict)  #: old names of columns, each with its new name

    @property
    def all_columns(self) -> dict[str, str]:
        """The names in `columns`, then the deprecated ones."""
        return {**self.columns, **{old: f"deprecated, use {new}" for old, new in self.deprecated.items()}}


def mentioned(sql: str) -> list[str]:
    """Return the views that a query may read; others need not be created for it."""
    return [name for name in VIEWS if name in sql.lower()]


def create_statements(dialect: Dialect, schema: str, names: Collection[str]) -> list[str]:
    """Return the statements that create views over the tables of a schema."""
    metadata = MetaData()
    copies = {table.name: table.to_metadata(metadata, schema=schema) for table in tables.metadata.sorted_tables}
    return [_create_statement(dialect, name, VIEWS[name], copies) for name in names]


def _create_statement(dialect: Dialect, name: str, view: QueryView, copies: Tables) -> str:
    query = view.query(copies)
    selected = dict(zip(view.columns, query.selected_columns, strict=True))
    query = query.add_columns(*(selected[new] for new in view.deprecated.values()))
    body = query.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    return f"CREATE TEMPORARY VIEW {name} ({', '.join(view.all_columns)}) AS {body}"


def _jobs(t: Tables) -> Select[Any]:
    jobs, tasks = t["jobs"].c, t["tasks"].c

    def count(*states: TaskState) -> Any:
        wanted = [tasks.state.in_(sorted(states))] if states else []
        return select(func.count()).where(tasks.job == jobs.id, *wanted).scalar_subquery()

    return select(
        jobs.id, jobs.name, jobs.model, jobs.submitted_by, jobs.submitted_at, jobs.priority, jobs.due_at,
        count(), count(*DONE), count(TaskState.FAILED), jobs.schedule, jobs.imported_from,
    )  # fmt: skip


def _tasks(t: Tables) -> Select[Any]:
    tasks, attempts = t["tasks"].c, t["attempts"].c
    return select(
        tasks.id, tasks.job, tasks.stage, tasks.subject, tasks.target, tasks.toolchain, tasks.state, tasks.waits_for,
        tasks.blocked_by, tasks.settings, tasks.attempt, tasks.epoch, attempts.node, attempts.started_at,
        attempts.ended_at, attempts.failure_kind, attempts.failure_message,
    ).join(t["attempts"], attempts.id == tasks.attempt, isouter=True)  # fmt: skip


def _cells(t: Tables) -> Select[Any]:
    cells, tasks = t["cells"].c, t["tasks"].c
    return select(
        cells.job, cells.model, cells.variant, cells.target, cells.stage, *(cells[name] for name in AXES),
        cells.task, tasks.state, cells.submitted_at,
    ).join(t["tasks"], tasks.id == cells.task)  # fmt: skip


def _attempts(t: Tables) -> Select[Any]:
    attempts, tasks = t["attempts"].c, t["tasks"].c
    return select(
        attempts.id, attempts.task, tasks.job, tasks.stage, attempts.epoch, attempts.node, attempts.places,
        attempts.commands, attempts.toolchain, attempts.lock, attempts.versions, attempts.digest, attempts.started_at,
        attempts.ended_at, attempts.outcome, attempts.failure_kind, attempts.failure_message, attempts.log_tail,
        attempts.warnings, attempts.duration_s,
    ).join(t["tasks"], tasks.id == attempts.task)  # fmt: skip


def _results(t: Tables) -> Select[Any]:
    measurements, attempts, tasks, cells = (t[name].c for name in ("measurements", "attempts", "tasks", "cells"))
    axes = (cells[name] for name in AXES if name != "toolchain")
    numbers = ("metric", "unit", "median", "samples", "batch", "prompt_tokens")
    return (
        select(
            tasks.job, tasks.id, measurements.attempt, tasks.stage, cells.model, cells.variant, tasks.target, *axes,
            tasks.toolchain, *(measurements[name] for name in numbers), measurements.context["new_tokens"].as_integer(),
            measurements.context, attempts.node, attempts.places, attempts.versions, attempts.ended_at,
        )
        .join(t["attempts"], attempts.id == measurements.attempt)
        .join(t["tasks"], tasks.id == attempts.task)
        .join(t["cells"], and_(cells.task == tasks.id, cells.is_first))
    )  # fmt: skip


def _artifacts(t: Tables) -> Select[Any]:
    files, attempts, tasks = t["artifacts"].c, t["attempts"].c, t["tasks"].c
    return (
        select(
            tasks.job, tasks.id, files.attempt, tasks.stage, tasks.subject, tasks.target, files.name, files.kind,
            files.sha256, files.size_bytes, attempts.ended_at,
        )
        .join(t["attempts"], attempts.id == files.attempt)
        .join(t["tasks"], tasks.id == attempts.task)
    )  # fmt: skip


def _of(table: str, *names: str) -> Callable[[Tables], Select[Any]]:
    return lambda t: select(*(t[table].c[name] for name in names))


def _described(*names: str, **descriptions: str) -> dict[str, str]:
    """Return column descriptions by name, empty where none is given."""
    return {name: descriptions.get(name, "") for name in names}


def _old_names(table: str, *old: str) -> dict[str, str]:
    """Return the names that a table's columns had in the previous release, each with its new name."""
    return {name: COLUMNS[table][name] for name in old}


_DEVICES = "JSON: the nodes with the devices of theirs that it held"
_ACTOR = "the user whose process made the change; null: not known"
_DATABASE_USER = "the user of the database's session; null: SQLite, or not known"
_TARGET = "cpu, mi300x, ...; empty: it does not depend on it"

VIEWS: dict[str, QueryView] = {
    "jobs": QueryView(
        "what was submitted",
        _described(
            "job", "name", "model", "submitted_by", "submitted_at", "priority", "due_at", "tasks", "done", "failed",
            "schedule", "imported_from",
            due_at="when what is left of it is cancelled", tasks="how many it has", done="how many of them succeeded",
            schedule="the name of the one that submitted it", imported_from="the file that it was read from",
        ),
        _jobs,
    ),
    "tasks": QueryView(
        "one stage of one or several variants, with its latest attempt",
        _described(
            "task", "job", "stage", "subject", "target", "toolchain", "state", "waits_for", "blocked_by", "settings",
            "attempt", "attempts", "node", "started_at", "ended_at", "failure_kind", "failure_message",
            target=_TARGET, settings="JSON", attempts="how many it has had",
            state=f"{', '.join(TaskState)}", attempt="its latest, or that of the task whose outputs it reused",
        ),
        _tasks,
    ),
    "cells": QueryView(
        "which task stands in which cell of a job's matrix",
        _described("job", "model", "variant", "target", "stage", *AXES, "task", "state", "submitted_at"),
        _cells,
    ),
    "attempts": QueryView(
        "one try of a task",
        _described(
            "attempt", "task", "job", "stage", "number", "node", "devices", "commands", "toolchain", "lock", "versions",
            "digest", "started_at", "ended_at", "outcome", "failure_kind", "failure_message", "log_tail", "warnings",
            "duration_s", duration_s="by its node's monotonic clock; null while it runs, or if nobody knows",
            devices=_DEVICES, commands="JSON", versions="JSON", warnings="JSON", node="the names of all, joined by +",
            outcome="succeeded, failed or cancelled; null while it runs",
        ),
        _attempts,
    ),
    "results": QueryView(
        "one metric in one workload, for each variant that it counts for",
        _described(
            "job", "task", "attempt", "stage", "model", "variant", "target",
            *(name for name in AXES if name != "toolchain"), "toolchain", "metric", "unit", "median", "samples",
            "batch", "prompt_tokens", "new_tokens", "context", "node", "devices", "versions", "measured_at",
            target=_TARGET, samples="JSON", context="JSON: what else it was measured under", versions="JSON",
            devices=_DEVICES,
        ),
        _results,
    ),
    "artifacts": QueryView(
        "the files that attempts made",
        _described(
            "job", "task", "attempt", "stage", "subject", "target", "name", "kind", "sha256", "size_bytes", "made_at",
            target=_TARGET,
        ),
        _artifacts,
    ),
    "targets": QueryView(
        "quoted numbers that results are held against",
        _described(
            "variant", "target", "metric", "batch", "prompt_tokens", "new_tokens", "value", "unit", "source", "since",
            variant="a name or a pattern", target="empty: any", batch="null: any",
        ),
        _of(
            "targets", "variant", "target", "metric", "batch", "prompt_tokens", "new_tokens", "value", "unit",
            "source", "since",
        ),
    ),
    "nodes": QueryView(
        "the machines that run tasks",
        _described(
            "node", "host", "cpus", "memory_bytes", "versions", "is_up", "first_seen_at", "last_seen_at", "cordon",
            "cordon_reason", "not_ready_reason",
            versions="JSON", cordon="draining, requeuing or quarantined; null: new tasks are started on it",
        ),
        _of(
            "nodes", "id", "host", "cpus", "memory_bytes", "versions", "is_up", "first_seen_at", "last_seen_at",
            "cordon", "cordon_reason", "not_ready_reason",
        ),
        _old_names("nodes", "seen_at", "closed", "closed_why", "refuses_why"),
    ),
    "devices": QueryView(
        "their GPUs, or logical CPU devices",
        _described(
            "node", "kind", "number", "serial", "memory_bytes", "memory_used_bytes", "quarantine_reason",
            quarantine_reason="null: it may be used",
        ),
        _of("devices", "node", "kind", "index", "serial", "memory_bytes", "memory_used_bytes", "quarantine_reason"),
        _old_names("devices", "quarantined_why"),
    ),
    "toolchains": QueryView(
        "what names of toolchains were resolved to",
        _described("name", "digest", "python", "versions", "resolved_at", versions="JSON"),
        _of("toolchains", "name", "digest", "python", "versions", "resolved_at"),
    ),
    "events": QueryView(
        "every change of state",
        _described(
            "id", "at", "job", "task", "attempt", "from_state", "to_state", "detail", "actor", "database_user",
            task="null: the job's submission", actor=_ACTOR, database_user=_DATABASE_USER,
        ),
        _of("events", "id", "at", "job", "task", "attempt", "from_state", "to_state", "detail", "actor",
            "database_user"),
        _old_names("events", "was", "became"),
    ),
    "changes": QueryView(
        "what was done to files, nodes, schedules, targets and toolchains, and by whom",
        _described(
            "id", "at", "actor", "database_user", "action", "subject", "detail",
            actor=_ACTOR, database_user=_DATABASE_USER, action=", ".join(ChangeAction), subject="what was changed",
        ),
        _of("changes", "id", "at", "actor", "database_user", "action", "subject", "detail"),
    ),
}  # fmt: skip
