"""A decision to start a task as the attempt that nodes are handed. Pure."""

from jobs.stages import stage_of
from jobs.task import Attempt
from orchestrator.leading.reuse import Reuse
from orchestrator.scheduler import Start


def attempt_of(start: Start, reuse: Reuse) -> Attempt:
    """The next attempt of a task, whose inputs `reuse` knows."""
    task, toolchain = start.task, reuse.toolchain_of(start.task)
    return Attempt(
        id=f"{task.id}-{task.attempts + 1}",
        epoch=task.epoch + 1,
        stage=task.stage,
        settings=task.settings,
        commands=tuple(stage_of(task.stage, task.settings).commands(task.settings, toolchain)),
        inputs=reuse.inputs(task),
        places=start.places,
        timeout_s=task.timeout_s,
        cpus=task.resources.cpus,
        toolchain=toolchain.lock,
    )
