"""Applies decisions that change tasks' states without starting anything."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from db.store import OpenTask, Store
from jobs.state import TaskState
from orchestrator.leader.cache import OutputCache
from orchestrator.leader.toolchain_builds import ToolchainBuilds
from orchestrator.scheduler.decision import Action, Block, Fail, Queue, Unqueue
from workers import daemon_log

logger = daemon_log.logger(__name__)


def apply_transitions(
    actions: Sequence[Action], store: Store, cache: OutputCache, builds: ToolchainBuilds
) -> dict[str, TaskState]:
    """Queue, unqueue, fail and block tasks, and serve queued ones from the cache; return the new states by task.

    Tasks that somebody else changed meanwhile are left as they are.
    """
    states: dict[str, TaskState] = {}
    if unready := [action.task.id for action in actions if isinstance(action, Unqueue)]:
        states |= dict.fromkeys(store.unqueue(unready), TaskState.PENDING)
    if fails := [action for action in actions if isinstance(action, Fail)]:
        states |= dict.fromkeys(store.fail({fail.task.id: fail.failure for fail in fails}), TaskState.FAILED)
        for fail in fails:
            task = fail.task.id
            logger.warning("task %s failed: %s: %s", task, fail.failure.kind, fail.failure.message, task=task)
        builds.note_failed(fails)
    if reasons := {action.task.id: action.reason for action in actions if isinstance(action, Block)}:
        states |= dict.fromkeys(store.block(reasons), TaskState.BLOCKED)
    if ready := [action.task for action in actions if isinstance(action, Queue)]:
        queued = store.queue([task.id for task in ready])
        states |= dict.fromkeys(queued, TaskState.QUEUED)
        cache.compute_digests(ready)
        states |= dict.fromkeys(cache.apply([task for task in ready if task.id in queued]), TaskState.CACHED)
    return states


def with_states(tasks: Sequence[OpenTask], states: Mapping[str, TaskState]) -> tuple[OpenTask, ...]:
    """Return the tasks with their new states; those that changed wait for nothing yet."""
    return tuple(
        replace(task, state=states[task.id], waits_for=None, is_unschedulable=False) if task.id in states else task
        for task in tasks
    )
