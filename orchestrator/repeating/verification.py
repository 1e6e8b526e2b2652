"""Running a task again where it ran before, and what came of it."""

import getpass
from dataclasses import dataclass
from typing import Any

from db import identities, measured, replanning, reports, toolchains
from db.replanning import Replanned
from db.reports import AttemptRow, TaskRow
from jobs.digest import differences
from jobs.errors import Conflict, JobFailed, NothingToDo
from jobs.state import OPEN, JobState, TaskState
from jobs.task import Pin
from orchestrator.context import Context
from orchestrator.output import count
from orchestrator.repeating import agreement
from orchestrator.showing.rows import devices
from workers.environment import probe_toolchain


@dataclass(frozen=True)
class Verified:
    """What the new run came to beside the old one."""

    old: AttemptRow
    new: AttemptRow
    metrics: list[agreement.Comparison]
    files: list[agreement.FileComparison]
    changes: list[dict[str, Any]]  #: entries of the task's identity that are not the same: `entry`, `old`, `new`

    @property
    def agrees(self) -> bool:
        """Whether all that was compared does."""
        return agreement.agrees(self.metrics, self.files)


def job_for(context: Context, old: AttemptRow) -> str:
    """A job that runs the attempt's task again: one that is under way already, else a new one.

    Raises NothingToDo where the attempt did not succeed, Conflict where its toolchain is not there any more.
    """
    if old.outcome != identities.SUCCEEDED:
        raise NothingToDo(f"attempt {old.id} did not succeed: there is nothing to agree with")
    problem = toolchain_problem(context, old)
    if problem:
        raise Conflict(problem)
    name = f"verify {old.task}"
    for job in replanning.jobs_named(context.database, name)[:1]:
        if any(task.state in OPEN for task in reports.tasks(context.database, job)):
            return job
    return submit_again(context, replanning.replan(context.database, old.task, pin_of(old)), name)


def submit_again(context: Context, again: Replanned, name: str) -> str:
    """A job of what was planned again; what it needs is taken over from earlier tasks."""
    return context.store.submit(
        again.plan,
        name=name,
        spec=again.spec,
        model=again.model,
        submitted_by=getpass.getuser(),
        timeout_s=again.timeout_s,
        reuse=True,
    )


def pin_of(attempt: AttemptRow) -> Pin | None:
    """Where it ran: its node and its devices. A gang is not pinned."""
    if len(attempt.places) > 1:
        return None
    return Pin(attempt.node, tuple(device.index for device in attempt.devices))


def toolchain_problem(context: Context, attempt: AttemptRow) -> str | None:
    """Why it can't be run under what it ran under."""
    if attempt.lock:
        kept = toolchains.all_current(context.database).get(attempt.toolchain)
        now = kept.lock.versions if kept else {}
        is_same = kept is not None and kept.lock.digest == attempt.lock
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
    what = "; ".join(changed) or "the same versions from other files"
    return (
        f"attempt {attempt.id} ran under another {attempt.toolchain} toolchain: {what}. "
        f"`haloctl reproduce {attempt.id}` builds the one that it ran under"
    )


def outcome(context: Context, old: AttemptRow, job: str, state: JobState) -> Verified:
    """Compare once the job has ended; raises JobFailed, and Conflict where it waits for what is not there."""
    again = reports.tasks(context.database, job)[-1]
    if again.state is not TaskState.SUCCEEDED or again.attempt is None:
        raise unfinished(job, state, again)
    new = reports.attempt(context.database, again.attempt)
    old_made, new_made = (identities.made(context.database, one.id).identity or {} for one in (old, new))
    earlier = measured.measured_before(context.database, old.digest, old.places)
    return Verified(
        old,
        new,
        agreement.compare(
            measured.measured(context.database, old.id),
            measured.measured(context.database, new.id),
            [found for attempt, found in earlier.items() if attempt != new.id],
            again.target,
        ),
        agreement.compare_files(old.artifacts, new.artifacts),
        differences(old_made, new_made) if old_made and new_made else [],
    )


def unfinished(job: str, state: JobState, again: TaskRow) -> JobFailed | Conflict:
    """Why a job that was waited for has no result of a task."""
    if state in (JobState.FAILED, JobState.CANCELLED):
        return JobFailed(job, state)
    why = again.waits_for or "it has not run yet"
    return Conflict(f"task {again.id} waits: {why}; `haloctl wait {job}` goes on with it")


def as_json(found: Verified) -> dict[str, Any]:
    """All of it, for programs."""
    return {
        "of": found.old.id,
        "attempt": found.new.id,
        "task": found.new.task,
        "agrees": found.agrees,
        "node": found.new.node,
        "devices": devices(found.new.devices),
        "metrics": [agreement.as_row(one) for one in found.metrics],
        "files": [{"name": one.name, "old": one.old, "new": one.new, "finding": one.finding} for one in found.files],
        "changes": found.changes,
    }


def notes(found: Verified) -> list[str]:
    """What is to be said beside the tables."""
    told = []
    if found.old.places != found.new.places:
        ran = " ".join((found.old.node, *devices(found.old.devices)))
        told.append(f"it ran elsewhere before: on {ran}")
    if found.changes:
        names = ", ".join(change["entry"] for change in found.changes)
        told.append(
            f"it is not quite the same task any more: {count(len(found.changes), 'entry')} of it differ: {names}"
        )
    return told


def what_disagrees(found: Verified) -> str:
    """The metrics and files, in a line."""
    metrics = (f"{one.metric} {one.finding}" for one in found.metrics if one.finding not in agreement.AGREEING)
    files = (f"{one.name} {one.finding}" for one in found.files if one.finding not in agreement.AGREEING)
    return ", ".join(dict.fromkeys((*metrics, *files)))
