"""Why a task ran, was taken over from an earlier one, or has not run. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from db.identities import Freedom, Made
from db.reports import TaskRow
from jobs.digest import differences, likeness
from jobs.stages import STAGES
from jobs.state import DONE, OPEN, FailureKind, TaskState
from orchestrator.showing.rows import when


class Reason(StrEnum):
    """What decided."""

    TAKEN_OVER = "taken_over"  #: an earlier task with its digest had succeeded
    MEASURED = "measured"  #: measurements are made anew
    NO_CACHE = "no_cache"  #: the job was submitted so
    RUN_AGAIN = "run_again"  #: the job was submitted to run it, whatever was there
    MADE_AGAIN = "made_again"  #: it was done, and something needed files of it that were lost
    FILES_GONE = "files_gone"  #: an earlier task's files were not all there any more
    UNDONE = "undone"  #: an earlier attempt at the same had not succeeded
    CHANGED = "changed"  #: what had succeeded was made of something else
    FIRST = "first"  #: nothing of its stage had succeeded
    WAITS = "waits"
    BLOCKED = "blocked"
    UNABLE = "unable"  #: it failed before it could run
    CANCELLED = "cancelled"
    IMPORTED = "imported"  #: it never ran here


@dataclass(frozen=True)
class Explanation:
    """The reason, in words too."""

    reason: Reason
    text: str
    earlier: Made | None = None  #: the attempt that was taken over, or that the task is compared with
    changes: tuple[dict[str, Any], ...] = ()  #: entries of the identity: `entry`, `old` (the earlier's), `new`


def explain_open(task: TaskRow, needed: Sequence[TaskRow]) -> Explanation:
    """Of a task that waits, was blocked, or failed or was cancelled before it ran."""
    if task.state is TaskState.BLOCKED:
        return Explanation(Reason.BLOCKED, f"has not run: {task.blocked_by}")
    if task.has_failed_before and task.failure:
        return Explanation(Reason.UNABLE, f"has not run: {task.failure.kind}: {task.failure.message}")
    if task.state not in OPEN:
        return Explanation(Reason.CANCELLED, "has not run: it was cancelled before")
    undone = ", ".join(f"{need.stage} {need.id} ({need.state})" for need in needed if need.state not in DONE)
    wanted = task.waits_for or undone or f"a head; where there is none, `haloctl wait {task.job}` runs it"
    again = f"once more after {task.failure.kind}" if task.failure else "to run"
    again = f"to make {task.lost} again" if task.lost else again
    return Explanation(Reason.WAITS, f"waits {again}: {wanted}")


def explain_imported() -> Explanation:
    """Of a task that somebody else's file tells of."""
    return Explanation(Reason.IMPORTED, "was imported: it did not run here, and nothing is taken over from it")


def explain_taken_over(task: str, source: Made, sent_back: str | None = None) -> Explanation:
    """Of a task that did not have to run; `sent_back` says what it was once more asked for, if it was."""
    made = when(source.ended_at.isoformat()) if source.ended_at else ""
    what = f"was asked {sent_back}, and did not have to run" if sent_back else "did not run"
    if source.task == task:
        return Explanation(Reason.TAKEN_OVER, f"{what}: what it had made itself was all there", source)
    return Explanation(Reason.TAKEN_OVER, f"{what}: {source.task} has the same digest and was done {made}", source)


def explain_run(latest: Made, earlier: Sequence[Made], freedom: Freedom, sent_back: str | None = None) -> Explanation:
    """Of a task that ran, by its latest attempt and those of its stage that were begun earlier, newest first."""
    if sent_back:
        return Explanation(Reason.MADE_AGAIN, f"ran once more {sent_back}")
    if not freedom.of_task:
        return _explain_asked(latest.stage, freedom)
    earlier = [one for one in earlier if one.task != latest.task and one.failure_kind != FailureKind.INPUT_LOST]
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


def _explain_asked(stage: str, freedom: Freedom) -> Explanation:
    """Of what may take over nothing."""
    if not freedom.of_job:
        return Explanation(Reason.NO_CACHE, "ran: its job was submitted with --no-cache")
    if STAGES[stage].is_measured:
        text = "ran: a measurement is never taken from the cache unless --reuse-measurements asks for it"
        return Explanation(Reason.MEASURED, text)
    first = next(name for name in STAGES if name in freedom.fresh_stages)
    return Explanation(Reason.RUN_AGAIN, f"ran: its job was submitted to run everything again from {first} on")


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
