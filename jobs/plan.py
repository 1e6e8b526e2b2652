"""From a job to its tasks: a pure expansion in which equal work is planned once."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from jobs.digest import digest_of, what_matters
from jobs.spec import JobSpec
from jobs.stages import ENGINES, STAGES
from jobs.stages.base import Cell, Model
from jobs.task import Node, Pin, Resources
from jobs.variants import On, Variant, model_name, spread


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
        name = self.variants[0].name if self.pin else self.variants[0].unpinned_name
        return f"{name} {targets.pop()}" if "target" in self.settings else name


@dataclass(frozen=True)
class Plan:
    """All of a job's work, each task after what it needs."""

    variants: tuple[Variant, ...]
    tasks: tuple[PlannedTask, ...]


def variants_of(spec: JobSpec, model: Model, nodes: Sequence[Node] = ()) -> list[Variant]:
    """The rows of a job's matrix."""
    return spread(spec.variants.of(model_name(model.name, model.overrides)), spec.benchmark.on, nodes)


def plan(spec: JobSpec, model: Model, nodes: Sequence[Node] = ()) -> Plan:
    """Expand a job. The order is that of the stages, within them that of the variants.

    `nodes` are those that are known, for a job that is to be measured on each. What is not measured is done once for
    all of them, anywhere.
    """
    variants = variants_of(spec, model, nodes)
    tasks: dict[str, PlannedTask] = {}
    keys: dict[tuple[Variant, str], str] = {}
    for name, variant in product(STAGES, variants):
        stage = ENGINES[variant.engine].get(name)
        if stage and name in spec.stages:
            cell = Cell(spec, variant, model)
            settings = stage.settings(cell)
            needs = tuple(keys[variant, need] for need in stage.needs)
            pin = variant.pin if stage.is_measured else None
            key = digest_of([name, what_matters(settings), needs, *([asdict(pin)] if pin else [])])
            keys[variant, name] = key
            earlier = tasks[key].variants if key in tasks else ()
            tasks[key] = PlannedTask(key, name, settings, needs, stage.resources(cell), (*earlier, variant), pin)
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


def each_problem(spec: JobSpec) -> str | None:
    """Why a job can't be measured on each node or device."""
    on, variants = spec.benchmark.on, spec.variants.of("")
    if on is On.ANY:
        return None
    if "benchmark" not in spec.stages:
        return f"{on} needs the stage benchmark, which is not among the stages"
    spanning = next((variant for variant in variants if variant.nodes > 1), None)
    if spanning:
        return f"{on} is for variants on one node; nodes {spanning.nodes} spans several"
    wide = next((variant for variant in variants if variant.tp > 1), None)
    if on is On.EACH_DEVICE and wide:
        return (
            f"{on} is for variants on one device; tp {wide.tp} takes {wide.tp} of them, and each_node has room for it"
        )
    return None


def places_problem(spec: JobSpec, nodes: Sequence[Node]) -> str | None:
    """Which target a job can't be measured for on each of the known nodes, because none has the devices."""
    on, wanted = spec.benchmark.on, spec.variants.of("")
    lacking = [variant for variant in wanted if not spread([variant], on, nodes)]
    if on is On.ANY or not lacking:
        return None
    return f"no node that is up has {lacking[0].tp} x {lacking[0].target}; `haloctl nodes` lists what they have"
