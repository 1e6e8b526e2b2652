"""What `haloctl query` asks: views that keep their names and columns while the tables below them change.

They are made anew in each session, as temporary ones, so that no migration has to mind them. Times are in UTC; what is
said to be JSON is text in JSON.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Dialect, MetaData, Select, Table, and_, func, select

from db import tables
from jobs.state import DONE, TaskState
from jobs.variants import AXES

Tables = Mapping[str, Table]


@dataclass(frozen=True)
class View:
    """A relation that can be asked."""

    title: str
    columns: Mapping[str, str]  #: by name, what it says; empty: its name does
    query: Callable[[Tables], Select[Any]]  #: its columns in that order


def mentioned(sql: str) -> list[str]:
    """The views that a query may be about; others need not be made for it."""
    return [name for name in VIEWS if name in sql.lower()]


def create_statements(dialect: Dialect, schema: str, names: Collection[str]) -> list[str]:
    """The statements that make views, over the tables of a schema."""
    metadata = MetaData()
    copies = {table.name: table.to_metadata(metadata, schema=schema) for table in tables.metadata.sorted_tables}
    texts = {
        name: VIEWS[name].query(copies).compile(dialect=dialect, compile_kwargs={"literal_binds": True})
        for name in names
    }
    return [
        f"CREATE TEMPORARY VIEW {name} ({', '.join(VIEWS[name].columns)}) AS {text}" for name, text in texts.items()
    ]


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
        attempts.warnings,
    ).join(t["tasks"], tasks.id == attempts.task)  # fmt: skip


def _results(t: Tables) -> Select[Any]:
    found, attempts, tasks, cells = (t[name].c for name in ("measurements", "attempts", "tasks", "cells"))
    axes = (cells[name] for name in AXES if name != "toolchain")
    return (
        select(
            tasks.job, tasks.id, found.attempt, tasks.stage, cells.model, cells.variant, tasks.target, *axes,
            tasks.toolchain, found.metric, found.unit, found.median, found.samples, found.batch, found.prompt_tokens,
            found.context["new_tokens"].as_integer(), found.context, attempts.node, attempts.places, attempts.versions,
            attempts.ended_at,
        )
        .join(t["attempts"], attempts.id == found.attempt)
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


def _said(*names: str, **told: str) -> dict[str, str]:
    """Columns whose names say what they hold, but for some."""
    return {name: told.get(name, "") for name in names}


_DEVICES = "JSON: the nodes with the devices of theirs that it held"
_TARGET = "cpu, mi300x, ...; empty: it does not depend on it"

VIEWS: dict[str, View] = {
    "jobs": View(
        "what was submitted",
        _said(
            "job", "name", "model", "submitted_by", "submitted_at", "priority", "due_at", "tasks", "done", "failed",
            "schedule", "imported_from",
            due_at="when what is left of it is cancelled", tasks="how many it has", done="how many of them succeeded",
            schedule="the name of the one that submitted it", imported_from="the file that it was read from",
        ),
        _jobs,
    ),
    "tasks": View(
        "one stage of one or several variants, with its latest attempt",
        _said(
            "task", "job", "stage", "subject", "target", "toolchain", "state", "waits_for", "blocked_by", "settings",
            "attempt", "attempts", "node", "started_at", "ended_at", "failure_kind", "failure_message",
            target=_TARGET, settings="JSON", attempts="how many it has had",
            state=f"{', '.join(TaskState)}", attempt="its latest, or that of the task that it was taken over from",
        ),
        _tasks,
    ),
    "cells": View(
        "which task stands in which cell of a job's matrix",
        _said("job", "model", "variant", "target", "stage", *AXES, "task", "state", "submitted_at"),
        _cells,
    ),
    "attempts": View(
        "one try of a task",
        _said(
            "attempt", "task", "job", "stage", "number", "node", "devices", "commands", "toolchain", "lock", "versions",
            "digest", "started_at", "ended_at", "outcome", "failure_kind", "failure_message", "log_tail", "warnings",
            devices=_DEVICES, commands="JSON", versions="JSON", warnings="JSON", node="the names of all, joined by +",
            outcome="succeeded, failed or cancelled; null while it runs",
        ),
        _attempts,
    ),
    "results": View(
        "one metric in one workload, for each variant that it counts for",
        _said(
            "job", "task", "attempt", "stage", "model", "variant", "target",
            *(name for name in AXES if name != "toolchain"), "toolchain", "metric", "unit", "median", "samples",
            "batch", "prompt_tokens", "new_tokens", "context", "node", "devices", "versions", "measured_at",
            target=_TARGET, samples="JSON", context="JSON: what else it was measured under", versions="JSON",
            devices=_DEVICES,
        ),
        _results,
    ),
    "artifacts": View(
        "the files that attempts made",
        _said(
            "job", "task", "attempt", "stage", "subject", "target", "name", "kind", "sha256", "size_bytes", "made_at",
            target=_TARGET,
        ),
        _artifacts,
    ),
    "targets": View(
        "quoted numbers that results are held against",
        _said(
            "variant", "target", "metric", "batch", "prompt_tokens", "new_tokens", "value", "unit", "source", "since",
            variant="a name or a pattern", target="empty: any", batch="null: any",
        ),
        _of(
            "targets", "variant", "target", "metric", "batch", "prompt_tokens", "new_tokens", "value", "unit",
            "source", "since",
        ),
    ),
    "nodes": View(
        "the machines that run tasks",
        _said(
            "node", "host", "cpus", "memory_bytes", "versions", "is_up", "first_seen_at", "seen_at", "closed",
            "closed_why", "refuses_why",
            versions="JSON", closed="draining, handing_back or quarantined; null: new tasks are started on it",
        ),
        _of(
            "nodes", "id", "host", "cpus", "memory_bytes", "versions", "is_up", "first_seen_at", "seen_at", "closed",
            "closed_why", "refuses_why",
        ),
    ),
    "devices": View(
        "their GPUs, or logical CPU devices",
        _said(
            "node", "kind", "number", "serial", "memory_bytes", "memory_used_bytes", "quarantined_why",
            quarantined_why="null: it may be used",
        ),
        _of("devices", "node", "kind", "index", "serial", "memory_bytes", "memory_used_bytes", "quarantined_why"),
    ),
    "toolchains": View(
        "what names of toolchains were resolved to",
        _said("name", "digest", "python", "versions", "resolved_at", versions="JSON"),
        _of("toolchains", "name", "digest", "python", "versions", "resolved_at"),
    ),
    "events": View(
        "every change of state",
        _said("id", "at", "job", "task", "attempt", "was", "became", "detail", task="null: the job's submission"),
        _of("events", "id", "at", "job", "task", "attempt", "was", "became", "detail"),
    ),
}  # fmt: skip
