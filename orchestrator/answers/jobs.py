"""Jobs and tasks as JSON objects, and why a task ran or did not."""

from typing import Any

from db.connection.engine import Database
from db.reads import identities, reports
from db.reads.reports import TaskRow
from db.reads.user_requests import user_requests
from db.schema.imported import DIGEST
from jobs.state import OPEN, TaskState
from orchestrator.views import failure_story, reasons, rows
from orchestrator.views.reasons import Explanation


def show_job(database: Database, name: str) -> dict[str, Any]:
    """Return a job with its job file, its users' requests and its tasks. Raises NotFound, AmbiguousId."""
    job = reports.job(database, name)
    return rows.job_to_json(job) | {
        "spec": reports.job_spec(database, job.id),
        "requests": rows.requests_to_json(user_requests(database, job.id)),
        "tasks": [rows.task_to_json(task) for task in reports.tasks(database, job.id)],
    }


def show_task(database: Database, name: str) -> dict[str, Any]:
    """Return a task with its users' requests and its attempts. Raises NotFound, AmbiguousId."""
    task = reports.task(database, name)
    return rows.task_to_json(task) | {
        "requests": rows.requests_to_json(user_requests(database, task.job, task.id)),
        "attempts": attempts_of(database, task),
    }


def attempts_of(database: Database, task: TaskRow) -> list[dict[str, Any]]:
    """Return the attempts of a task; of a cached task, those of the task whose outputs it reuses."""
    return [rows.attempt_to_json(attempt) for attempt in reports.attempts(database, task.cached_from or task.id)]


def show_attempt(database: Database, name: str) -> dict[str, Any]:
    """Return an attempt. Raises NotFound, AmbiguousId."""
    return rows.attempt_to_json(reports.attempt(database, name))


def why(database: Database, name: str) -> dict[str, Any]:
    """Return why a task ran, was cached, failed, or has not run. Raises NotFound, AmbiguousId."""
    task = reports.task(database, name)
    attempts = reports.attempts(database, task.id) if task.failure else []
    explanation = reasons.to_json(task, explain(database, task))
    return explanation | {"attempts": failure_story.story_to_json(attempts)}


def explain(database: Database, task: TaskRow) -> Explanation:
    """Explain why a task ran, was cached, or has not run; one that ran is compared with the most similar one before."""
    if (task.digest or "").startswith(DIGEST):
        return reasons.explain_imported()
    if task.attempt is None or task.has_failed_before or task.state in OPEN | {TaskState.BLOCKED}:
        needed = [need for need in reports.tasks(database, task.job) if need.id in task.needs]
        return reasons.explain_open(task, needed)
    made, sent_back = identities.attempt_identity(database, task.attempt), identities.remake_reason(database, task.id)
    if task.cached_from:
        return reasons.explain_cached(task.id, made, sent_back)
    earlier = identities.earlier_attempts(database, made)
    return reasons.explain_run(made, earlier, identities.reuse_policy(database, task.id), sent_back)
