"""Runs of a task again where it ran before, and whether they come to the same."""

from dataclasses import dataclass
from typing import Any

from db.reads import earlier_measurements, identities, replanning, reports
from db.reads.replanning import Replanned
from db.reads.reports import AttemptRow, TaskRow
from db.schema.actors import current_actor
from db.store import Submission
from db.writes import toolchains
from jobs.digest import differences
from jobs.errors import Conflict, JobFailed, NothingToDo
from jobs.state import OPEN, JobState, TaskState
from jobs.task import Pin
from orchestrator.analysis import agreement
from orchestrator.analysis.comparisons import Comparison
from orchestrator.analysis.verdicts import AGREEING
from orchestrator.context import Context
from orchestrator.views import comparison_rows
from orchestrator.views.rows import format_devices
from workers.toolchain_probe import probe_toolchain


@dataclass(frozen=True)
class VerificationResult:
    """The new attempt beside the old one."""

    old: AttemptRow
    new: AttemptRow
    metrics: list[Comparison]
    files: list[agreement.FileComparison]
    changes: list[dict[str, Any]]  #: `entry`, `old`, `new` of what differs in the task's identity

    @property
    def agrees(self) -> bool:
        """Whether no metric and no file speaks against it."""
        return agreement.agrees([*self.metrics, *self.files])


def start_verification(context: Context, old: AttemptRow) -> str:
    """Return a job that runs the attempt's task again: one that is under way, else a new one.

    Raise NothingToDo where the attempt did not succeed, Conflict where its toolchain is gone.
    """
    if old.outcome != identities.SUCCEEDED:
        raise NothingToDo(f"attempt {old.id} did not succeed: verify one that did")
    if problem := toolchain_problem(context, old):
        raise Conflict(problem)
    name = f"verify {old.task}"
    for job in replanning.jobs_named(context.database, name)[:1]:
        if any(task.state in OPEN for task in reports.tasks(context.database, job)):
            return job
    return submit_replanned(context, replanning.replan(context.database, old.task, pin_of(old)), name)


def submit_replanned(context: Context, replanned: Replanned, name: str) -> str:
    """Submit what was planned again; the inputs come from the cache."""
    return context.store.submit(
        Submission(
            plan=replanned.plan,
            name=name,
            spec=replanned.spec,
            model=replanned.model,
            submitted_by=current_actor(),
            timeout_s=replanned.timeout_s,
            reuse=True,
        )
    )


def pin_of(attempt: AttemptRow) -> Pin | None:
    """Return where an attempt ran: its node and devices. None for a gang, which is not pinned."""
    if len(attempt.places) > 1:
        return None
    return Pin(attempt.node, tuple(device.index for device in attempt.devices))


def toolchain_problem(context: Context, attempt: AttemptRow) -> str | None:
    """Say why a task can't run under the toolchain that its attempt ran under."""
    if attempt.lock:
        current = toolchains.all_current(context.database).get(attempt.toolchain)
        now = current.lock.versions if current else {}
        is_same = current is not None and current.lock.digest == attempt.lock
    else:
        now = probe_toolchain(context.settings.cache).versions
        is_same = dict(now) == dict(attempt.versions)
    if is_same:
        return None
    changed = [
        f"{package} {attempt.versions.get(package, 'none')}, now {now.get(package, 'none')}"
        for package in sorted({**attempt.versions, **now})
        if attempt.versions.get(package) != now.get(package)
    ]
    difference = "; ".join(changed) or "the same versions from other files"
    return (
        f"attempt {attempt.id} ran under another {attempt.toolchain} toolchain: {difference}. "
        f"`haloctl reproduce {attempt.id}` builds the one that it ran under"
    )


def verification_result(context: Context, old: AttemptRow, job: str, state: JobState) -> VerificationResult:
    """Compare once the job has ended; raise JobFailed, or Conflict where the task still waits."""
    again = reports.tasks(context.database, job)[-1]
    if again.state is not TaskState.SUCCEEDED or again.attempt is None:
        raise unfinished(job, state, again)
    new = reports.attempt(context.database, again.attempt)
    old_identity, new_identity = (
        identities.attempt_identity(context.database, attempt.id).identity or {} for attempt in (old, new)
    )
    earlier = earlier_measurements.earlier_measurements(context.database, old.digest, old.places)
    return VerificationResult(
        old,
        new,
        agreement.compare_attempts(
            earlier_measurements.measurements_of(context.database, old.id),
            earlier_measurements.measurements_of(context.database, new.id),
            [measurements for attempt, measurements in earlier.items() if attempt != new.id],
            again.target,
        ),
        agreement.compare_files(old.artifacts, new.artifacts),
        differences(old_identity, new_identity) if old_identity and new_identity else [],
    )


def unfinished(job: str, state: JobState, again: TaskRow) -> JobFailed | Conflict:
    """Return the error of a job that was waited for and has no result of a task."""
    if state in (JobState.FAILED, JobState.CANCELLED):
        return JobFailed(job, state)
    why = again.waits_for or "it has not run yet"
    return Conflict(f"task {again.id} waits: {why}; `haloctl wait {job}` goes on with it")


def as_json(verified: VerificationResult) -> dict[str, Any]:
    """Return all of it for programs."""
    return {
        "of": verified.old.id,
        "attempt": verified.new.id,
        "task": verified.new.task,
        "agrees": verified.agrees,
        "node": verified.new.node,
        "devices": format_devices(verified.new.devices),
        "metrics": [comparison_rows.verify_to_json(metric) for metric in verified.metrics],
        "files": [
            {"name": file.name, "old": file.old, "new": file.new, "finding": file.verdict} for file in verified.files
        ],
        "changes": verified.changes,
    }


def notes(verified: VerificationResult) -> list[str]:
    """Return the notes beside the tables."""
    texts = []
    if verified.old.places != verified.new.places:
        ran = " ".join((verified.old.node, *format_devices(verified.old.devices)))
        texts.append(f"it ran elsewhere before: on {ran}")
    if verified.changes:
        names = ", ".join(change["entry"] for change in verified.changes)
        texts.append(f"the task is not the same any more; what differs: {names}")
    return texts


def disagreement_text(verified: VerificationResult) -> str:
    """Name the metrics and files that disagree, in a line."""
    metrics = (f"{metric.metric} {metric.verdict}" for metric in verified.metrics if metric.verdict not in AGREEING)
    files = (f"{file.name} {file.verdict}" for file in verified.files if file.verdict not in AGREEING)
    return ", ".join(dict.fromkeys((*metrics, *files)))
