"""From a name on the command line to a plan, and its words for `--dry-run`."""

import getpass
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from db.store import Store
from jobs.errors import BadModel, JobFileError
from jobs.plan import Plan, PlannedTask, plan, weightless_problem
from jobs.spec import JobSpec
from jobs.stages import stage_of
from jobs.stages.base import Model
from jobs.task import GIB
from jobs.toolchains import Toolchain
from orchestrator import job_file, model_check
from orchestrator.output import count
from orchestrator.scheduling.words import devices_in_words
from orchestrator.settings import Settings
from workers.environment import probe_toolchain


@dataclass(frozen=True)
class Prepared:
    """A job that can be submitted: everything that can be refused was looked at."""

    spec: JobSpec
    model: Model
    plan: Plan
    toolchain: Toolchain


def prepare(name: str, settings: Settings) -> Prepared:
    """Read a job file or recipe, look at its model, plan it. Raises UserError for whatever can't work."""
    spec, source = job_file.load(name)
    toolchain = probe_toolchain(settings.cache)
    model = model_check.find_out(spec, source, toolchain, settings.cache)
    problem = weightless_problem(spec, model)
    if problem:
        raise BadModel(source.text, problem)
    made = plan(spec, model)
    if not made.variants:
        raise JobFileError(str(job_file.find(name)), None, "variants.exclude", "leaves no variant")
    return Prepared(spec, model, made, toolchain)


def store_job(store: Store, prepared: Prepared, *, reuse: bool) -> str:
    """Submit; returns the job's id."""
    return store.submit(
        prepared.plan,
        name=prepared.spec.name,
        spec=prepared.spec.model_dump(mode="json"),
        model=prepared.model,
        submitted_by=getpass.getuser(),
        timeout_s=prepared.spec.timeout,
        reuse=reuse,
    )


def extent(made: Plan) -> str:
    """`27 tasks for 6 variants`."""
    return f"{count(len(made.tasks), 'task')} for {count(len(made.variants), 'variant')}"


def dry_run_lines(prepared: Prepared) -> Iterator[str]:
    """The plan in words: every task, what it comes after, what it holds, its commands."""
    yield f"{prepared.spec.name}: {extent(prepared.plan)}; nothing was submitted"
    numbers = {task.key: number for number, task in enumerate(prepared.plan.tasks, 1)}
    for task in prepared.plan.tasks:
        after = ", ".join(f"{numbers[need]:02d}" for need in task.needs)
        yield ""
        yield f"{numbers[task.key]:02d} {task.stage} {task.subject}"
        yield f"   {'after ' + after + '; ' if after else ''}needs {needs_in_words(task)}"
        for command in commands_of(task, prepared.toolchain):
            yield f"   $ {shlex.join(command)}"


def needs_in_words(task: PlannedTask) -> str:
    """What a task holds while it runs: `8 x mi300x, 1 core, 2.0 GiB`."""
    need = task.resources
    parts = [devices_in_words(need)] if need.devices else []
    parts += [f"{need.cpus} core{'s' if need.cpus > 1 else ''}", f"{need.memory_bytes / GIB:.1f} GiB"]
    return ", ".join(parts) + (", the node to itself" if need.is_quiet else "")


def commands_of(task: PlannedTask, toolchain: Toolchain) -> list[tuple[str, ...]]:
    """The argv of each of a task's commands."""
    return [command.argv for command in stage_of(task.stage, task.settings).commands(task.settings, toolchain)]


def dry_run_json(prepared: Prepared) -> dict[str, Any]:
    """The plan for programs."""
    numbers = {task.key: number for number, task in enumerate(prepared.plan.tasks, 1)}
    return {
        "name": prepared.spec.name,
        "variants": [{"variant": variant.name, "target": variant.target} for variant in prepared.plan.variants],
        "tasks": [
            {
                "number": numbers[task.key],
                "stage": task.stage,
                "variants": [{"variant": variant.name, "target": variant.target} for variant in task.variants],
                "needs": [numbers[need] for need in task.needs],
                "resources": {
                    "cpus": task.resources.cpus,
                    "memory_bytes": task.resources.memory_bytes,
                    "devices": task.resources.devices,
                    "device_kind": task.resources.device_kind,
                    "is_quiet": task.resources.is_quiet,
                },
                "commands": [list(argv) for argv in commands_of(task, prepared.toolchain)],
            }
            for task in prepared.plan.tasks
        ],
    }
