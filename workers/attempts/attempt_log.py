"""What head and agent log of attempts: that one has started, and how it ended."""

import logging

from jobs.state import FailureKind
from jobs.task import Attempt, TaskResult
from workers.daemon_log import DaemonLogger

#: Levels of kinds of failures; others are warnings.
LEVELS = {
    FailureKind.CANCELLED: logging.INFO,
    FailureKind.REQUEUED: logging.INFO,
    FailureKind.INTERNAL: logging.ERROR,
}


def log_start(logger: DaemonLogger, attempt: Attempt) -> None:
    """Log that an attempt has started."""
    nodes = "+".join(place.node for place in attempt.places)
    logger.info("attempt %s started on %s: %s", attempt.id, nodes, attempt.stage, attempt=attempt.id, node=nodes)


def log_end(logger: DaemonLogger, result: TaskResult, nodes: str, state: str | None = None) -> None:
    """Log how an attempt ended, and the state of its task then, if it is known."""
    failure, attempt = result.failure, result.attempt
    level = LEVELS.get(failure.kind, logging.WARNING) if failure else logging.INFO
    outcome = f"{failure.kind}: {failure.message}" if failure else "succeeded"
    task = f"; its task is {state}" if state and state != outcome else ""
    logger.log(level, "attempt %s ended on %s: %s%s", attempt, nodes, outcome, task, attempt=attempt, node=nodes)
