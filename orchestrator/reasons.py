"""Why a task ran, was taken over from an earlier one, or has not run. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from db.identities import Made
from db.reports import TaskRow
from jobs.digest import differences, likeness
from jobs.stages import STAGES
from jobs.state import DONE, OPEN, TaskState
from orchestrator.rows import when


class Reason(StrEnum):
    """What decided."""

    TAKEN_OVER = "taken_over"  #: an earlier task with its digest had succeeded
    MEASURED = "measured"  #: measurements are made anew
    NO_CACHE = "no_cache"  #: the job was submitted so
    FILES_GONE = "files_gone"  #: an earlier task's files were not all there any more
    UNDONE = "undone"  #: an earlier attempt at the same had not succeeded
    CHANGED = "changed"  #: what had succeeded was made of something else
    FIRST = "first"  #: nothing of its stage had succeeded
    WAITS = "waits"
    BLOCKED = "blocked"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class Explanation:
    """The reason, in words too."""

    reason: Reason
    text: str
    earlier: Made | None = None  #: the attempt that was taken over, or that the task is compared with
    changes: tuple[dict[str, Any], ...] = ()  #: entries of the identity: `entry`, `old` (the earlier's), `new`


def explain_open(task: TaskRow, needed: Sequence[TaskRow]) -> Explanation:
    """Of a task that waits, was blocked, or was cancelled before it ran."""
    if task.state is TaskState.BLOCKED:
        return Explanation(Reason.BLOCKED, f"has not run: {task.blocked_by}")
    if task.state not in OPEN:
        return Explanation(Reason.CANCELLED, "has not run: it was cancelled before")
    undone = ", ".join(f"{need.stage} {need.id} ({need.state})" for need in needed if need.state not in DONE)
    wanted = task.waits_for or undone or f"a head; where there is none, `haloctl wait {task.job}` runs it"
    again = f"once more after {task.failure.kind}" if task.failure else "to run"
    return Explanation(Reason.WAITS, f"waits {again}: {wanted}")


def explain_taken_over(source: Made) -> Explanation:
    """Of a task that did not have to run."""
    made = when(source.ended_at.isoformat()) if source.ended_at else ""
    return Explanation(Reason.TAKEN_OVER, f"did not run: {source.task} has the same digest and was done {made}", source)


def explain_run(latest: Made, earlier: Sequence[Made], *, reuses: bool) -> Explanation:
    """Of a task that ran, by its latest attempt and those of its stage that were begun earlier, newest first."""
    if STAGES[latest.stage].is_measured:
        return Explanation(Reason.MEASURED, "ran: a measurement is never taken from the cache")
    if not reuses:
        return Explanation(Reason.NO_CACHE, "ran: its job was submitted with --no-cache")
    twins = [other for other in earlier if other.digest == latest.digest]
    succeeded = [other for other in earlier if other.had_succeeded(latest.started_at)]
    done = [other for other in twins if other in succeeded]
    if done:
        text = f"ran: {done[0].task} has the same digest, but its files were not all in the artifact store any more"
        return Explanation(Reason.FILES_GONE, text, done[0])
    if twins:
        text = f"ran: nothing with its digest had succeeded; attempt {twins[0].id} {_fate(twins[0], latest)}"
        return Explanation(Reason.UNDONE, text, twins[0])
    return _explain_new(latest, succeeded)


def _explain_new(latest: Made, succeeded: Sequence[Made]) -> Explanation:
    """Compare with the nearest: what shares the most entries, the newest among equals."""
    known = latest.identity
    if known is None:
        return Explanation(Reason.FIRST, "ran before haloctl kept what tasks were made of")
    compared = [(other, other.identity) for other in succeeded if other.identity is not None]
    if not compared:
        return Explanation(Reason.FIRST, f"ran: no {latest.stage} had succeeded before")
    nearest, identity = max(compared, key=lambda pair: likeness(pair[1], known))
    text = f"ran: nothing with its digest had succeeded before; the nearest is {nearest.task}"
    return Explanation(Reason.CHANGED, text, nearest, tuple(differences(identity, known)))


def _fate(twin: Made, latest: Made) -> str:
    """What had become of an attempt when a later one was begun."""
    if twin.ended_at is None or twin.ended_at > latest.started_at:
        return "was still running"
    return f"had failed ({twin.failure_kind})" if twin.failure_kind else f"had ended as {twin.outcome}"
