"""From a job to its tasks: a pure expansion in which equal work is planned once."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from jobs.digest import digest_of, what_matters
from jobs.spec import JobSpec
from jobs.stages import ENGINES, STAGES
from jobs.stages.base import Cell, Model
from jobs.task import Pin, Resources
from jobs.variants import Variant, model_name


@dataclass(frozen=True)
class PlannedTask:
    """One stage, for every variant that it is the same for."""

    key: str  #: equal for equal work
    stage: str
    settings: Mapping[str, Any]
    needs: tuple[str, ...]  #: keys
    resources: Resources
    variants: tuple[Variant, ...]
    pin: Pin | None = None  #: where alone it may run

    @property
    def subject(self) -> str:
        """What it is done for, in a few words: a variant's name, with the target unless it serves several."""
        targets = {variant.target for variant in self.variants}
        name = self.variants[0].name
        return f"{name} {targets.pop()}" if "target" in self.settings else name


@dataclass(frozen=True)
class Plan:
    """All of a job's work, each task after what it needs."""

    variants: tuple[Variant, ...]
    tasks: tuple[PlannedTask, ...]


def variants_of(spec: JobSpec, model: Model) -> list[Variant]:
    """The rows of a job's matrix."""
    return spec.variants.of(model_name(model.name, model.overrides))


def plan(spec: JobSpec, model: Model) -> Plan:
    """Expand a job. The order is that of the stages, within them that of the variants."""
    variants = variants_of(spec, model)
    tasks: dict[str, PlannedTask] = {}
    keys: dict[tuple[Variant, str], str] = {}
    for name, variant in product(STAGES, variants):
        stage = ENGINES[variant.engine].get(name)
        if stage and name in spec.stages:
            cell = Cell(spec, variant, model)
            settings = stage.settings(cell)
            needs = tuple(keys[variant, need] for need in stage.needs)
            key = digest_of([name, what_matters(settings), needs])
            keys[variant, name] = key
            earlier = tasks[key].variants if key in tasks else ()
            tasks[key] = PlannedTask(key, name, settings, needs, stage.resources(cell), (*earlier, variant))
    return Plan(tuple(variants), tuple(tasks.values()))


def stages_problem(spec: JobSpec) -> str | None:
    """Why the stages that were asked for can't be what its engines do."""
    for engine in spec.variants.engine:
        able = ENGINES[engine]
        wanted = [able[stage] for stage in spec.stages if stage in able]
        if not wanted:
            return f"the engine {engine} does none of them; what it does: {', '.join(able)}"
        missing = [(stage.name, need) for stage in wanted for need in stage.needs if need not in spec.stages]
        if missing:
            return "{} needs {}, which is not among the stages".format(*missing[0])
    return None


def weightless_problem(spec: JobSpec, model: Model) -> str | None:
    """Why a model without weights can't run the stages that were asked for."""
    wanting = [stage for stage in spec.stages if STAGES[stage].needs_weights]
    if model.has_weights or not wanting:
        return None
    able = ", ".join(name for name, stage in STAGES.items() if not stage.needs_weights)
    return f"a shape has no weights, which {', '.join(wanting)} need; a shape's stages are {able}"
