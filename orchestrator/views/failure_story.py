"""The story of a task that failed: each of its attempts, why there was no further one, and what to do. Pure."""

from collections.abc import Sequence
from typing import Any

from db.reads.reports import AttemptRow
from jobs.state import POLICIES, Failure, FailureKind
from orchestrator.formatting import format_count
from orchestrator.views.periods import format_period

#: What helps, by the kind of the last failure; others are for the log and `haloctl retry`.
REMEDIES = {
    FailureKind.BAD_INPUT: "correct the job, and submit it again",
    FailureKind.INPUT_CHANGED: "put the file back and retry, or submit the job again",
    FailureKind.TIMED_OUT: "give it longer with `timeout` in the job file",
    FailureKind.OUT_OF_MEMORY: "make its workload smaller, or give it more devices",
    FailureKind.INTERNAL: "report it, with the log",
}


def tell_failure(job: str, failure: Failure, attempts: Sequence[AttemptRow]) -> list[str]:
    """Return the lines of the story."""
    last = attempts[-1]
    remedy = REMEDIES.get(failure.kind, "find the cause in its log")
    return [
        f"failed: {failure.kind}: {failure.message}",
        *(f"  {_tell_attempt(attempt)}" for attempt in attempts),
        f"  {_tell_end(failure.kind, attempts)}",
        f"  {remedy}: `haloctl logs {last.id}`, then `haloctl retry {job}`",
    ]


def story_to_json(attempts: Sequence[AttemptRow]) -> list[dict[str, Any]]:
    """Return the attempts of a task with times and failures."""
    return [
        {
            "attempt": attempt.id,
            "node": attempt.node,
            "started_at": attempt.started_at.isoformat(),
            "ended_at": attempt.ended_at.isoformat() if attempt.ended_at else None,
            "duration_s": attempt.duration_s,
            "outcome": attempt.outcome,
            "failure_kind": attempt.failure.kind if attempt.failure else None,
            "failure_message": attempt.failure.message if attempt.failure else None,
        }
        for attempt in attempts
    ]


def _tell_attempt(attempt: AttemptRow) -> str:
    period = format_period(attempt.started_at, attempt.ended_at, attempt.duration_s)
    outcome = f"{attempt.failure.kind}: {attempt.failure.message}" if attempt.failure else attempt.outcome or "running"
    return f"attempt {attempt.id} on {attempt.node}, {period}: {outcome}"


def _tell_end(kind: FailureKind, attempts: Sequence[AttemptRow]) -> str:
    """Return why there was no further attempt."""
    tries = POLICIES[kind].tries
    if tries == 1:
        return f"not tried again, because {kind} would happen again"
    count = sum(attempt.failure is not None and attempt.failure.kind is kind for attempt in attempts)
    return f"not tried again, because {format_count(count, 'attempt')} ended so"
