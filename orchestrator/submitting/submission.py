"""From a name on the command line to a plan, and its words for `--dry-run`."""

import getpass
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from db.store import Store
from jobs.errors import BadModel, BadSetting, JobFileError
from jobs.plan import (
    Plan,
    PlannedTask,
    each_problem,
    engine_problem,
    places_problem,
    plan,
    unquantized_problem,
    weightless_problem,
)
from jobs.spec import JobSpec
from jobs.stages import STAGES, stage_of
from jobs.stages.base import Model
from jobs.task import Node
from jobs.toolchains import DEFAULT, Toolchain
from jobs.variants import On
from orchestrator import known_nodes
from orchestrator.output import count
from orchestrator.scheduling import words
from orchestrator.settings import Settings
from orchestrator.submitting import job_file, model_check
from orchestrator.toolchains import site_toolchains
from workers.environment import probe_toolchain


@dataclass(frozen=True)
class Prepared:
    """A job that can be submitted: everything that can be refused was looked at."""

    spec: JobSpec
    model: Model
    plan: Plan
    toolchain: Toolchain


@dataclass(frozen=True)
class Asked:
    """What the command line says instead of the job file."""

    priority: int | None = None
    on: On | None = None
    option: str = ""  #: that `on` was asked for by
    start: str | None = None  #: the stage that runs again, with those that follow it


def prepare(name: str, settings: Settings, asked: Asked = Asked()) -> Prepared:
    """Read a job file or recipe, look at its model, plan it. Raises UserError for whatever can't work."""
    toolchains = site_toolchains.rows(settings)
    spec, sources = job_file.load(name, toolchains)
    spec, nodes = _as_asked(spec, name, asked)
    for source in sources:
        problem = weightless_problem(spec, has_weights=source.has_weights)
        if problem:
            raise BadModel(source.text, problem)
    toolchain = probe_toolchain(settings.cache)
    problem = engine_problem(spec, toolchain.versions, toolchains)
    if problem:
        raise JobFileError(str(job_file.find(name)), None, "variants.engine", problem)
    model, *more = (model_check.find_out(spec, source, toolchain, settings.cache) for source in sources)
    for one in (model, *more):
        problem = unquantized_problem(spec, one)
        if problem:
            raise JobFileError(str(job_file.find(name)), None, "stages", problem)
    model = replace(model, more=tuple(more))
    made = run_again_from(asked.start, spec, plan(spec, model, nodes, toolchains))
    if not made.variants:
        raise JobFileError(str(job_file.find(name)), None, "variants.exclude", "leaves no variant")
    return Prepared(spec, model, made, toolchain)


def _as_asked(spec: JobSpec, name: str, asked: Asked) -> tuple[JobSpec, Sequence[Node]]:
    """The job as the command line has it, and the nodes that it is to be measured on if that is each of them."""
    if asked.priority is not None:
        spec = spec.model_copy(update={"priority": asked.priority})
    if asked.on is not None:
        spec = spec.model_copy(update={"benchmark": spec.benchmark.model_copy(update={"on": asked.on})})
    if spec.benchmark.on is On.ANY:
        return spec, ()
    nodes = known_nodes.up()
    problem = each_problem(spec) or places_problem(spec, nodes)
    if problem and asked.on is not None:
        raise BadSetting(asked.option, problem)
    if problem:
        raise JobFileError(str(job_file.find(name)), None, "benchmark.on", problem)
    return spec, nodes


def run_again_from(start: str | None, spec: JobSpec, made: Plan) -> Plan:
    """The plan in which a stage and what follows it runs, whatever was computed before; raises BadSetting."""
    if start is None:
        return made
    order = [name for name in STAGES if name in spec.stages]
    if start not in order:
        what = f"the job has no stage {start}" if start in STAGES else f"no stage is called {start!r}"
        raise BadSetting("--from", f"{what}; its stages are {', '.join(order)}")
    again = order[order.index(start) :]
    return replace(made, tasks=tuple(replace(task, is_fresh=task.stage in again) for task in made.tasks))


def store_job(
    store: Store, spec: JobSpec, model: Model, made: Plan, *, reuse: bool = True, reuse_measurements: bool = False
) -> str:
    """Submit; returns the job's id."""
    return store.submit(
        made,
        name=spec.name,
        spec=spec.model_dump(mode="json"),
        model=model,
        submitted_by=getpass.getuser(),
        timeout_s=spec.timeout,
        reuse=reuse,
        reuse_measurements=reuse_measurements,
        priority=spec.priority,
        job_timeout_s=spec.job_timeout,
    )


def extent(made: Plan) -> str:
    """`27 tasks for 6 variants`."""
    return f"{count(len(made.tasks), 'task')} for {count(len(made.variants), 'variant')}"


def dry_run_lines(prepared: Prepared) -> Iterator[str]:
    """The plan in words: every task, what it comes after, what it holds, its commands."""
    yield f"{prepared.spec.name}: {extent(prepared.plan)}; nothing was submitted"
    numbers = {task.key: number for number, task in enumerate(prepared.plan.tasks, 1)}
    for task in prepared.plan.tasks:
        earlier = (*task.needs, task.after) if task.after else task.needs
        after = ", ".join(f"{numbers[other]:02d}" for other in earlier)
        yield ""
        yield f"{numbers[task.key]:02d} {task.stage} {task.subject}"
        under = "" if task.toolchain == DEFAULT else f"; under {task.toolchain}"
        yield f"   {'after ' + after + '; ' if after else ''}needs {needs_in_words(task)}{under}"
        for command in commands_of(task, prepared.toolchain):
            yield f"   $ {shlex.join(command)}"


def needs_in_words(task: PlannedTask) -> str:
    """What a task holds while it runs, and where: `8 x mi300x, 1 core, 2.0 GiB, the node to itself, on node a`."""
    need, pin = task.resources, task.pin
    where = [f"on each of {need.nodes} nodes"] if need.nodes > 1 else []
    where += [f"on {words.pin_in_words(pin, need)}"] if pin else []
    return ", ".join([words.needs_in_words(need), *(["the node to itself"] if need.is_quiet else []), *where])


def commands_of(task: PlannedTask, toolchain: Toolchain) -> list[tuple[str, ...]]:
    """The argv of each of a task's commands; under another toolchain than the default with the newest flags' names."""
    if task.toolchain != DEFAULT:
        toolchain = replace(toolchain, compiler_flags=frozenset())
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
                "after": numbers[task.after] if task.after else None,
                "resources": asdict(task.resources),
                "pin": asdict(task.pin) if task.pin else None,
                "toolchain": task.toolchain,
                "commands": [list(argv) for argv in commands_of(task, prepared.toolchain)],
            }
            for task in prepared.plan.tasks
        ],
    }
