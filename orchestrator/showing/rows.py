"""Rows of the database as people and programs are shown them. Pure."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from db.reports import AttemptRow, JobRow, TaskRow
from db.results import ArtifactRow, ResultRow
from jobs.errors import BadSetting
from jobs.state import DONE, ENDED, TaskState
from jobs.variants import AXES
from orchestrator.output import quantity, seconds
from orchestrator.showing.workloads import workload_in

JOB_COLUMNS = ("job", "name", "model", "state", "done", "tasks", "stuck", "submitted_by", "submitted_at", "origin")
RESULT_COLUMNS = (
    "job", "task", "model", "variant", "target", *AXES, "stage",
    "metric", "unit", "median", "samples", "batch", "prompt_tokens", "new_tokens", "device", "node", "versions",
    "context", "when",
)  # fmt: skip
ARTIFACT_COLUMNS = ("job", "task", "stage", "subject", "target", "name", "kind", "sha256", "size_bytes", "path", "when")
AGE = re.compile(r"(\d+)([mhd])")
DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
AGE_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def when(time: str) -> str:
    """A stored time (ISO 8601, UTC) in the reader's own zone, to the minute."""
    return datetime.fromisoformat(time).astimezone().strftime("%Y-%m-%d %H:%M")


def end_in_time(text: str, now: datetime, option: str) -> datetime:
    """What an end means: as of `point_in_time`, but a day is all of it."""
    time = point_in_time(text, now, option)
    return time + timedelta(days=1) if DAY.fullmatch(text.strip()) else time


def point_in_time(text: str, now: datetime, option: str = "--since") -> datetime:
    """What `--since`, or another `option`, means: a date or time in the user's zone, or an age before `now`."""
    age = AGE.fullmatch(text.strip())
    if age:
        return now - timedelta(**{AGE_UNITS[age[2]]: int(age[1])})
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        said = "is neither a date or time such as 2026-11-20 or 2026-11-20T08:00 nor an age such as 90m, 12h or 7d"
        raise BadSetting(option, f"{text!r} {said}") from None


def job(row: JobRow) -> dict[str, Any]:
    """A job."""
    return {
        "job": row.id,
        "name": row.name,
        "model": row.model,
        "state": row.state.value,
        "done": sum(row.counts.get(state, 0) for state in DONE),
        "tasks": row.tasks,
        "stuck": row.stuck,
        "counts": {state.value: row.counts[state] for state in TaskState if state in row.counts},
        "submitted_by": row.submitted_by,
        "submitted_at": row.submitted_at.isoformat(),
        "origin": origin(row),
        "schedule": row.schedule,
        "imported_from": row.imported_from,
    }


def origin(row: JobRow) -> str:
    """Whence a job came where nobody submitted it."""
    if row.imported_from:
        return f"imported from {row.imported_from}"
    return f"schedule {row.schedule}" if row.schedule else ""


def task(row: TaskRow) -> dict[str, Any]:
    """A task, without its settings' details."""
    return {
        "task": row.id,
        "job": row.job,
        "stage": row.stage,
        "subject": row.subject,
        "target": row.target,
        "toolchain": row.toolchain,
        "state": row.state.value,
        "shown_state": "waits" if row.is_stuck else row.state.value,
        "needs": list(row.needs),
        "after": row.after,
        "waits_for": row.waits_for,
        "is_stuck": row.is_stuck,
        "blocked_by": row.blocked_by,
        "lost": row.lost,
        "cached_from": row.cached_from,
        "attempt": row.attempt,
        "attempts": row.attempts,
        "node": row.node,
        "devices": devices(row.devices),
        "started_at": row.started_at.isoformat() if row.started_at else None,
        "ended_at": row.ended_at.isoformat() if row.ended_at else None,
        "took": took(row),
        "failure": asdict(row.failure) if row.failure else None,
        "warnings": list(row.warnings),
        "remark": remark(row),
        "digest": row.digest,
        "settings": dict(row.settings),
    }


def took(row: TaskRow) -> str:
    """How long a task's latest attempt ran, or runs already."""
    if row.started_at is None or row.cached_from or row.state not in ENDED | {TaskState.RUNNING, TaskState.CANCELLING}:
        return ""
    return seconds(((row.ended_at or datetime.now(UTC)) - row.started_at).total_seconds())


def remark(row: TaskRow) -> str:
    """What is to be said of a task beside its state."""
    if row.state is TaskState.FAILED and row.failure:
        return f"{row.failure.kind}: {row.failure.message}"
    if row.state in (TaskState.PENDING, TaskState.QUEUED):
        again = f"again after {row.failure.kind}; " if row.failure else ""
        again = f"makes {row.lost} again; " if row.lost else again
        return (again + (row.waits_for or "")).removesuffix("; ")
    if row.lost:
        return f"makes {row.lost} again"
    if row.cached_from:
        return f"from {row.cached_from}"
    if row.state is TaskState.RUNNING and row.again_after:
        return f"again after {row.again_after}"
    return row.blocked_by or "; ".join(f"warning: {warning}" for warning in row.warnings)


def devices(found: Sequence[Any]) -> list[str]:
    """`mi300x:3`, with the serial where it is known."""
    return [f"{device.kind}:{device.index}" + (f":{device.serial}" if device.serial else "") for device in found]


def attempt(row: AttemptRow) -> dict[str, Any]:
    """An attempt, with all that made it what it was."""
    return {
        "attempt": row.id,
        "outcome": row.outcome,
        "failure": asdict(row.failure) if row.failure else None,
        "node": row.node,
        "devices": devices(row.devices),
        "commands": [list(command.argv) for command in row.commands],
        "processes": [asdict(process) for process in row.processes],
        "environment": dict(row.environment),
        "toolchain": row.toolchain,
        "lock": row.lock,
        "versions": dict(row.versions),
        "digest": row.digest,
        "inputs": {stage: [asdict(artifact) for artifact in found] for stage, found in row.inputs.items()},
        "artifacts": [asdict(artifact) for artifact in row.artifacts],
        "started_at": row.started_at.isoformat(),
        "ended_at": row.ended_at.isoformat() if row.ended_at else None,
    }


def task_lines(row: TaskRow, attempts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A task and its attempts in words, with the commands as they would be typed."""
    lines = [f"task {row.id}: {row.stage} for {row.subject}", ", ".join(filter(None, (row.state.value, remark(row))))]
    if row.has_failed_before and row.failure:
        lines += [f"  | {text}" for text in row.failure.log_tail.splitlines()]
    lines += [f"  {name}: {address}" for name, address in row.settings.get("links", ())]  # what was imported with it
    for found in attempts:
        lines += ["", f"attempt {found['attempt']} on {found['node']}: {found['outcome'] or 'running'}"]
        lines += [f"  devices {', '.join(found['devices'])}"] if found["devices"] else []
        lines += [f"  toolchain {found['toolchain']} ({found['lock'][:16]})"] if found["lock"] else []
        lines += [f"  $ {shlex.join(argv)}" for argv in found["commands"]]
        lines += [
            f"  exit {process['exit_code']} after {seconds(process['wall_s'])}, "
            f"{process['peak_rss_bytes'] / (1 << 20):.0f} MiB at most"
            for process in found["processes"]
        ]
        lines += [f"  {artifact['name']}  {artifact['sha256']}" for artifact in found["artifacts"]]
        if found["failure"]:
            tail = found["failure"]["log_tail"].rstrip().splitlines()
            lines += [f"  {found['failure']['kind']}: {found['failure']['message']}", *(f"  | {text}" for text in tail)]
    return lines


def result(row: ResultRow) -> dict[str, Any]:
    """A measurement."""
    return {
        "job": row.job,
        "task": row.task,
        "model": row.model,
        "variant": row.variant,
        "target": row.target,
        **row.axes,
        "stage": row.stage,
        "metric": row.metric,
        "unit": row.unit,
        "median": row.median,
        "samples": list(row.samples),
        "batch": row.batch,
        "prompt_tokens": row.prompt_tokens,
        "new_tokens": row.context.get("new_tokens"),
        "device": devices(row.devices),
        "node": row.node,
        "versions": dict(row.versions),
        "context": dict(row.context),
        "when": row.measured_at.isoformat(),
    }


def result_columns(*, with_toolchain: bool) -> tuple[str, ...]:
    """The heads of `result_line`."""
    under = ("toolchain",) if with_toolchain else ()
    return ("variant", "target", *under, "metric", "median", "samples", "workload", "job", "when")


def result_line(found: Mapping[str, Any], *, with_toolchain: bool) -> tuple[str, ...]:
    """A measurement in a table."""
    return (
        found["variant"],
        found["target"],
        *([found["toolchain"]] if with_toolchain else []),
        found["metric"],
        quantity(found["median"], found["unit"]),
        str(len(found["samples"])),
        workload_in(found),
        found["job"] + (" (imported)" if "imported_from" in found["context"] else ""),
        when(found["when"]),
    )


def artifact(row: ArtifactRow, path: str) -> dict[str, Any]:
    """A file, with where it lies."""
    return {
        "job": row.job,
        "task": row.task,
        "stage": row.stage,
        "subject": row.subject,
        "target": row.target,
        "name": row.name,
        "kind": row.kind,
        "sha256": row.sha256,
        "size_bytes": row.size_bytes,
        "path": path,
        "when": row.made_at.isoformat(),
    }
