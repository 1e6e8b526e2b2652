"""The text and JSON of a plan, for `haloctl submit --dry-run`."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from jobs.exporters import commands_of
from jobs.masking import mask_userinfo
from jobs.plan import Plan, PlannedTask
from jobs.toolchains import DEFAULT, Toolchain
from orchestrator.formatting import format_count
from orchestrator.scheduler import reasons
from orchestrator.submission.preparation import PreparedJob


def format_extent(planned: Plan) -> str:
    """Return the size of a plan: `27 tasks for 6 variants`."""
    return f"{format_count(len(planned.tasks), 'task')} for {format_count(len(planned.variants), 'variant')}"


def dry_run_lines(prepared: PreparedJob) -> Iterator[str]:
    """Yield the plan as text: each task with what it follows, what it needs and its commands."""
    yield f"{prepared.spec.name}: {format_extent(prepared.plan)}; nothing was submitted"
    numbers = {task.key: number for number, task in enumerate(prepared.plan.tasks, 1)}
    for task in prepared.plan.tasks:
        earlier = (*task.needs, task.after) if task.after else task.needs
        after = ", ".join(f"{numbers[key]:02d}" for key in earlier)
        yield ""
        yield f"{numbers[task.key]:02d} {task.stage} {task.subject}"
        under = "" if task.toolchain == DEFAULT else f"; under {task.toolchain}"
        yield f"   {'after ' + after + '; ' if after else ''}needs {format_resources(task)}{under}"
        if variables := task.settings.get("env"):
            yield f"   with {shlex.join(f'{name}={value}' for name, value in variables.items())}"
        for command in argv_of(task, prepared.toolchain):
            yield f"   $ {mask_userinfo(shlex.join(command))}"


def format_resources(task: PlannedTask) -> str:
    """Return what a task takes, and where: `8 x mi300x, 1 core, 2.0 GiB, the node to itself, on node a`."""
    resources, pin = task.resources, task.pin
    where = [f"on each of {resources.nodes} nodes"] if resources.nodes > 1 else []
    where += [f"on {reasons.format_pin(pin, resources)}"] if pin else []
    alone = ["the node to itself"] if resources.is_exclusive else []
    return ", ".join([reasons.format_resources(resources), *alone, *where])


def argv_of(task: PlannedTask, toolchain: Toolchain) -> list[tuple[str, ...]]:
    """Return the argv of each command; under a toolchain other than the default, flags have their newest names."""
    if task.toolchain != DEFAULT:
        toolchain = replace(toolchain, compiler_flags=frozenset())
    return [command.argv for command in commands_of(task.stage, task.settings, toolchain)]


def dry_run_json(prepared: PreparedJob) -> dict[str, Any]:
    """Return the plan for programs."""
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
                "after": numbers[task.after] if task.after else None,
                "resources": asdict(task.resources),
                "pin": asdict(task.pin) if task.pin else None,
                "toolchain": task.toolchain,
                "commands": [list(argv) for argv in argv_of(task, prepared.toolchain)],
            }
            for task in prepared.plan.tasks
        ],
    }
