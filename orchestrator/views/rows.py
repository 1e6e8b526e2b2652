"""Jobs, tasks, attempts, measurements and artifacts as JSON objects and as table rows. Pure."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from db.reads.reports import AttemptRow, JobRow, TaskRow
from db.reads.results import ArtifactRow, ResultRow
from db.reads.runs import OF_CONTEXT
from db.reads.user_requests import SUBMITTED, UserRequest
from db.schema.actors import format_actor
from jobs.masking import masked
from jobs.plain_text import plain_log
from jobs.state import DONE, ENDED, TaskState
from jobs.toolchains import DEFAULT
from jobs.variants import AXES
from orchestrator.formatting import format_bytes, format_count, format_duration, format_quantity
from orchestrator.tables import TextTable
from orchestrator.times import format_time
from orchestrator.views.periods import format_period
from orchestrator.workloads import workload_in

JOB_COLUMNS = (
    "job",
    "name",
    "model",
    "state",
    "done",
    "tasks",
    "unschedulable",
    "submitted_by",
    "submitted_at",
    "origin",
)
RESULT_COLUMNS = (
    "job", "task", "model", "variant", "target", *AXES, "stage",
    "metric", "unit", "median", "samples", "batch", "prompt_tokens", *OF_CONTEXT, "device", "node", "versions",
    "context", "when",
)  # fmt: skip
ARTIFACT_COLUMNS = ("job", "task", "stage", "subject", "target", "name", "kind", "sha256", "size_bytes", "path", "when")


def job_to_json(row: JobRow) -> dict[str, Any]:
    """Return a job without its tasks."""
    return {
        "job": row.id,
        "name": row.name,
        "model": row.model,
        "state": row.state.value,
        "done": sum(row.counts.get(state, 0) for state in DONE),
        "tasks": row.tasks,
        "unschedulable": row.unschedulable,
        "counts": {state.value: row.counts[state] for state in TaskState if state in row.counts},
        "submitted_by": row.submitted_by,
        "submitted_at": row.submitted_at.isoformat(),
        "origin": format_origin(row),
        "schedule": row.schedule,
        "imported_from": row.imported_from,
    }


def format_origin(row: JobRow) -> str:
    """Return the schedule or file that a job comes from; an empty text for one that a user submitted."""
    if row.imported_from:
        return f"imported from {row.imported_from}"
    return f"schedule {row.schedule}" if row.schedule else ""


def build_job_table(jobs: Sequence[Mapping[str, Any]]) -> TextTable:
    """Return a table of jobs in JSON, with their origin where any has one."""
    columns = ["job", "state", "done", "name", "by", "when"]
    rows = [
        [
            *(job["job"], job["state"], f"{job['done']}/{job['tasks']}", job["name"], job["submitted_by"]),
            format_time(job["submitted_at"]),
        ]
        for job in jobs
    ]
    if any(job["origin"] for job in jobs):
        columns.append("origin")
        rows = [[*row, job["origin"]] for row, job in zip(rows, jobs, strict=True)]
    return TextTable(columns, rows, right=("done",))


def format_job(row: JobRow, requests: Iterable[UserRequest] = ()) -> list[str]:
    """Return the lines above a job's tasks."""
    job = job_to_json(row)
    origin = f" ({job['origin']})" if job["origin"] else ""
    return [
        f"job {row.id}: {row.name}",
        f"{row.state}, {job['done']} of {row.tasks} tasks done",
        f"submitted by {row.submitted_by} at {format_time(job['submitted_at'])}{origin}",
        *format_requests(requests),
        "",
    ]


def requests_to_json(requests: Iterable[UserRequest]) -> list[dict[str, Any]]:
    """Return who submitted, cancelled and retried a job."""
    return [asdict(request) | {"at": request.at.isoformat()} for request in requests]


def format_requests(requests: Iterable[UserRequest]) -> list[str]:
    """Return a line for each request after the submission: `cancelled by ada at ...: 3 tasks`."""
    return [
        f"{request.request} by {format_actor(request.actor, request.database_user)} "
        f"at {format_time(request.at.isoformat())}: {format_count(request.tasks, 'task')}"
        for request in requests
        if request.request != SUBMITTED
    ]


def task_to_json(row: TaskRow) -> dict[str, Any]:
    """Return a task with its latest attempt."""
    return {
        "task": row.id,
        "job": row.job,
        "stage": row.stage,
        "subject": row.subject,
        "target": row.target,
        "toolchain": row.toolchain,
        "state": row.state.value,
        "shown_state": shown_state(row),
        "needs": list(row.needs),
        "after": row.after,
        "waits_for": row.waits_for,
        "is_unschedulable": row.is_unschedulable,
        "blocked_by": row.blocked_by,
        "lost_artifacts": row.lost_artifacts,
        "cached_from": row.cached_from,
        "attempt": row.attempt,
        "attempts": row.attempts,
        "node": row.node,
        "devices": format_devices(row.devices),
        "started_at": row.started_at.isoformat() if row.started_at else None,
        "ended_at": row.ended_at.isoformat() if row.ended_at else None,
        "duration_s": row.duration_s,
        "took": format_elapsed(row),
        "failure": asdict(row.failure) if row.failure else None,
        "warnings": list(row.warnings),
        "remark": format_remark(row),
        "digest": row.digest,
        "settings": dict(row.settings),
    }


def shown_state(row: TaskRow) -> str:
    """Return a task's state for people: `unschedulable` where the cluster lacks what it needs."""
    return "unschedulable" if row.is_unschedulable else row.state.value


def build_task_table(tasks: Sequence[Mapping[str, Any]]) -> TextTable:
    """Return a table of tasks in JSON."""
    rows = [
        (task["task"], task["shown_state"], task["stage"], task["subject"], task["took"], task["remark"])
        for task in tasks
    ]
    return TextTable(("task", "state", "stage", "for", "time", ""), rows, right=("time",))


def format_elapsed(row: TaskRow) -> str:
    """Return how long a task's latest attempt ran, or has been running."""
    if row.started_at is None or row.cached_from or row.state not in ENDED | {TaskState.RUNNING, TaskState.CANCELLING}:
        return ""
    if row.ended_at is not None:
        return format_duration(row.duration_s)
    return format_duration(max((datetime.now(UTC) - row.started_at).total_seconds(), 0.0))


def format_remark(row: TaskRow) -> str:
    """Return what explains a task's state: its failure, what it waits for, or warnings."""
    if row.state is TaskState.FAILED and row.failure:
        return f"{row.failure.kind}: {row.failure.message}"
    if row.state in (TaskState.PENDING, TaskState.QUEUED):
        retry = f"retry after {row.failure.kind}" if row.failure else ""
        retry = f"makes {row.lost_artifacts} again" if row.lost_artifacts else retry
        return "; ".join(filter(None, (retry, row.waits_for)))
    if row.lost_artifacts:
        return f"makes {row.lost_artifacts} again"
    if row.cached_from:
        return f"from {row.cached_from}"
    if row.state is TaskState.RUNNING and row.again_after:
        return f"retry after {row.again_after}"
    return row.blocked_by or "; ".join(f"warning: {warning}" for warning in row.warnings)


def format_devices(devices: Sequence[Any]) -> list[str]:
    """Return `mi300x:3` for each device, with its serial where that is known."""
    return [f"{device.kind}:{device.index}" + (f":{device.serial}" if device.serial else "") for device in devices]


def attempt_to_json(row: AttemptRow) -> dict[str, Any]:
    """Return an attempt with its commands, inputs, outputs and environment."""
    return {
        "attempt": row.id,
        "outcome": row.outcome,
        "failure": asdict(row.failure) if row.failure else None,
        "node": row.node,
        "devices": format_devices(row.devices),
        "commands": masked([command.argv for command in row.commands]),
        "processes": masked([asdict(process) for process in row.processes]),
        "environment": masked(dict(row.environment)),
        "toolchain": row.toolchain,
        "lock": row.lock,
        "versions": dict(row.versions),
        "digest": row.digest,
        "inputs": {stage: [asdict(artifact) for artifact in artifacts] for stage, artifacts in row.inputs.items()},
        "artifacts": [asdict(artifact) for artifact in row.artifacts],
        "started_at": row.started_at.isoformat(),
        "ended_at": row.ended_at.isoformat() if row.ended_at else None,
        "duration_s": row.duration_s,
    }


def format_task(row: TaskRow, attempts: Sequence[Mapping[str, Any]], requests: Iterable[UserRequest] = ()) -> list[str]:
    """Return the lines for a task and its attempts, with commands quoted for a shell."""
    lines = [
        f"task {row.id}: {row.stage} for {row.subject}",
        ", ".join(filter(None, (row.state.value, format_remark(row)))),
        *format_requests(requests),
    ]
    if row.has_failed_before and row.failure:
        lines += [f"  | {text}" for text in plain_log(row.failure.log_tail).splitlines()]
    lines += [f"  {name}: {address}" for name, address in row.settings.get("links", ())]  # of an imported task
    for attempt in attempts:
        lines += ["", f"attempt {attempt['attempt']} on {attempt['node']}: {attempt['outcome'] or 'running'}"]
        start, end = (time and datetime.fromisoformat(time) for time in (attempt["started_at"], attempt["ended_at"]))
        lines += [f"  {format_period(start, end, attempt['duration_s'])}"]
        lines += [f"  devices {', '.join(attempt['devices'])}"] if attempt["devices"] else []
        lines += [f"  toolchain {attempt['toolchain']} ({attempt['lock'][:16]})"] if attempt["lock"] else []
        lines += [f"  $ {shlex.join(argv)}" for argv in attempt["commands"]]
        lines += [
            f"  exit {process['exit_code']} after {format_duration(process['wall_s'])}, "
            f"{process['peak_rss_bytes'] / (1 << 20):.0f} MiB peak"
            for process in attempt["processes"]
        ]
        lines += [f"  {artifact['name']}  {artifact['sha256']}" for artifact in attempt["artifacts"]]
        if attempt["failure"]:
            tail = plain_log(attempt["failure"]["log_tail"]).rstrip().splitlines()
            lines += [
                f"  {attempt['failure']['kind']}: {attempt['failure']['message']}",
                *(f"  | {text}" for text in tail),
            ]
    return lines


def result_to_json(row: ResultRow) -> dict[str, Any]:
    """Return a measurement with its samples and context."""
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
        **{name: row.context.get(name) for name in OF_CONTEXT},
        "device": format_devices(row.devices),
        "node": row.node,
        "versions": dict(row.versions),
        "context": dict(row.context),
        "when": row.measured_at.isoformat(),
    }


def build_result_table(results: Sequence[Mapping[str, Any]]) -> TextTable:
    """Return a table of measurements in JSON, with their toolchain where it is not always the default one."""
    has_toolchains = any(result["toolchain"] != DEFAULT for result in results)
    rows = [
        (
            *(result["variant"], result["target"]),
            *([result["toolchain"]] if has_toolchains else []),
            result["metric"],
            format_quantity(result["median"], result["unit"]),
            str(len(result["samples"])),
            workload_in(result),
            result["job"] + (" (imported)" if "imported_from" in result["context"] else ""),
            format_time(result["when"]),
        )
        for result in results
    ]
    toolchain = ("toolchain",) if has_toolchains else ()
    columns = ("variant", "target", *toolchain, "metric", "median", "samples", "workload", "job", "when")
    return TextTable(columns, rows, right=("median", "samples"))


def artifact_to_json(row: ArtifactRow, path: str) -> dict[str, Any]:
    """Return a file with its address in the artifact store."""
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


def build_artifact_table(artifacts: Sequence[Mapping[str, Any]]) -> TextTable:
    """Return a table of artifacts in JSON."""
    rows = [
        (
            *(artifact["task"], artifact["subject"], artifact["name"], artifact["kind"]),
            format_bytes(artifact["size_bytes"]),
            artifact["path"],
        )
        for artifact in artifacts
    ]
    return TextTable(("task", "for", "name", "kind", "size", "file"), rows, right=("size",))
