"""Why a task ran, was cached, or has not run. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from json import dumps
from typing import Any

from db.reads.identities import AttemptIdentity, ReusePolicy
from db.reads.reports import TaskRow
from jobs.digest import count_shared_entries, differences
from jobs.stages import STAGES
from jobs.state import DONE, OPEN, FailureKind, TaskState
from orchestrator.tables import TextTable
from orchestrator.times import format_time


class Reason(StrEnum):
    """What decided whether a task ran."""

    CACHED = "cached"  #: an earlier task with its digest had succeeded
    MEASURED = "measured"  #: measurements are not cached
    NO_CACHE = "no_cache"  #: its job was submitted with --no-cache
    FORCED = "forced"  #: its job was submitted with --from
    REGENERATED = "regenerated"  #: it was done, and another task needed its lost files
    FILES_LOST = "files_lost"  #: an earlier task's files were no longer all in the store
    NOT_SUCCEEDED = "not_succeeded"  #: no earlier attempt with its digest had succeeded
    CHANGED = "changed"  #: its identity differs from those of the tasks that had succeeded
    FIRST = "first"  #: no task of its stage had succeeded
    WAITING = "waiting"
    BLOCKED = "blocked"
    NOT_STARTED = "not_started"  #: it failed before it could run
    CANCELLED = "cancelled"
    IMPORTED = "imported"  #: it never ran here


@dataclass(frozen=True)
class Explanation:
    """A reason, with the text for people."""

    reason: Reason
    text: str
    earlier: AttemptIdentity | None = None  #: the attempt whose outputs are used, or that the task is compared with
    changes: tuple[dict[str, Any], ...] = ()  #: entries of the identity: `entry`, `old` (the earlier's), `new`


def explain_open(task: TaskRow, needed: Sequence[TaskRow]) -> Explanation:
    """Explain a task that waits, was blocked, or failed or was cancelled before it ran."""
    if task.state is TaskState.BLOCKED:
        return Explanation(Reason.BLOCKED, f"has not run: {task.blocked_by}")
    if task.has_failed_before and task.failure:
        return Explanation(Reason.NOT_STARTED, f"has not run: {task.failure.kind}: {task.failure.message}")
    if task.state not in OPEN:
        return Explanation(Reason.CANCELLED, "has not run: it was cancelled before")
    unfinished = ", ".join(f"{need.stage} {need.id} ({need.state})" for need in needed if need.state not in DONE)
    waits_for = task.waits_for or unfinished or f"a head; without one, run `haloctl wait {task.job}`"
    purpose = f"to retry after {task.failure.kind}" if task.failure else "to run"
    purpose = f"to make {task.lost_artifacts} again" if task.lost_artifacts else purpose
    return Explanation(Reason.WAITING, f"waits {purpose}: {waits_for}")


def explain_imported() -> Explanation:
    """Explain a task that was imported from a file."""
    return Explanation(Reason.IMPORTED, "was imported: it did not run here, and its outputs are never reused")


def explain_cached(task: str, source: AttemptIdentity, sent_back: str | None = None) -> Explanation:
    """Explain a task that did not have to run; `sent_back` says why it was queued again, if it was."""
    made_at = format_time(source.ended_at.isoformat()) if source.ended_at else ""
    start = f"was queued again {sent_back}, and did not have to run" if sent_back else "did not run"
    if source.task == task:
        return Explanation(Reason.CACHED, f"{start}: its own outputs were all there", source)
    return Explanation(Reason.CACHED, f"{start}: {source.task} has the same digest and was done {made_at}", source)


def explain_run(
    latest: AttemptIdentity, earlier: Sequence[AttemptIdentity], policy: ReusePolicy, sent_back: str | None = None
) -> Explanation:
    """Explain a task that ran, by its latest attempt and the earlier ones of its stage, newest first."""
    if sent_back:
        return Explanation(Reason.REGENERATED, f"ran again {sent_back}")
    if not policy.of_task:
        return _explain_uncached(latest.stage, policy)
    earlier = [
        attempt for attempt in earlier if attempt.task != latest.task and attempt.failure_kind != FailureKind.INPUT_LOST
    ]
    duplicates = [attempt for attempt in earlier if attempt.digest == latest.digest]
    succeeded = [attempt for attempt in earlier if attempt.had_succeeded(latest.started_at)]
    done = [attempt for attempt in duplicates if attempt in succeeded]
    if done:
        text = f"ran: {done[0].task} has the same digest, but some of its files were missing from the artifact store"
        return Explanation(Reason.FILES_LOST, text, done[0])
    if duplicates:
        fate = _fate(duplicates[0], latest)
        text = f"ran: nothing with its digest had succeeded; attempt {duplicates[0].id} {fate}"
        return Explanation(Reason.NOT_SUCCEEDED, text, duplicates[0])
    return _explain_changed(latest, succeeded)


def _explain_uncached(stage: str, policy: ReusePolicy) -> Explanation:
    if not policy.of_job:
        return Explanation(Reason.NO_CACHE, "ran: its job was submitted with --no-cache")
    if STAGES[stage].is_measured:
        text = "ran: measurements are taken from the cache only with --reuse-measurements"
        return Explanation(Reason.MEASURED, text)
    first = next(name for name in STAGES if name in policy.fresh_stages)
    return Explanation(Reason.FORCED, f"ran: its job was submitted with --from {first}")


def _explain_changed(latest: AttemptIdentity, succeeded: Sequence[AttemptIdentity]) -> Explanation:
    """Compare with the most similar attempt: the one that shares the most entries, the newest among equals."""
    identity = latest.identity
    if identity is None:
        return Explanation(Reason.FIRST, "ran before haloctl stored the identities of tasks")
    candidates = [(attempt, attempt.identity) for attempt in succeeded if attempt.identity is not None]
    if not candidates:
        return Explanation(Reason.FIRST, f"ran: no {latest.stage} had succeeded before")
    nearest, nearest_identity = max(candidates, key=lambda pair: count_shared_entries(pair[1], identity))
    text = f"ran: nothing with its digest had succeeded before; the most similar task is {nearest.task}"
    return Explanation(Reason.CHANGED, text, nearest, tuple(differences(nearest_identity, identity)))


def _fate(attempt: AttemptIdentity, latest: AttemptIdentity) -> str:
    """Return the state of an attempt at the time when a later one started."""
    if attempt.ended_at is None or attempt.ended_at > latest.started_at:
        return "was still running"
    return f"had failed ({attempt.failure_kind})" if attempt.failure_kind else f"had ended as {attempt.outcome}"


def to_json(task: TaskRow, explanation: Explanation) -> dict[str, Any]:
    """Return a task with its explanation."""
    earlier = explanation.earlier
    return {
        "task": task.id,
        "stage": task.stage,
        "subject": task.subject,
        "state": task.state.value,
        "reason": explanation.reason.value,
        "text": explanation.text,
        "earlier": earlier
        and {
            "task": earlier.task,
            "attempt": earlier.id,
            "ended_at": earlier.ended_at.isoformat() if earlier.ended_at else None,
        },
        "changes": list(explanation.changes),
    }


def build_change_table(explanation: Explanation) -> TextTable:
    """Return a table of what differs from the earlier attempt."""
    rows = [
        (change["entry"], *(_change_text(change.get(side, "")) for side in ("old", "new")))
        for change in explanation.changes
    ]
    return TextTable(("differs in", "old", "new"), rows)


def _change_text(value: object) -> str:
    return value if isinstance(value, str) else dumps(value)
