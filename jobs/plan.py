"""The expansion of a job into tasks: a pure function in which equal work is planned once."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from jobs.digest import identity_settings
from jobs.engines import ENGINES
from jobs.exporters import normalize_axes, stages_of
from jobs.hashing import digest_of
from jobs.job_file.spec import JobSpec
from jobs.stages import STAGES
from jobs.stages.base import Cell, Model, Stage
from jobs.task import Node, Pin, Resources
from jobs.toolchain_table import JOIN, TOOLCHAINS, toolchain_for
from jobs.toolchains import DEFAULT, ToolchainSpec
from jobs.variants import Variant, model_name, pin_variants, variant_of


@dataclass(frozen=True)
class PlannedTask:
    """One stage, for every variant that it is the same work for."""

    key: str  #: equal for equal work
    stage: str
    settings: Mapping[str, Any]
    needs: tuple[str, ...]  #: keys of the tasks whose outputs it reads
    resources: Resources
    variants: tuple[Variant, ...]
    pin: Pin | None = None  #: the only place where it may run
    toolchain: str = DEFAULT  #: the name of what it runs under
    is_default: bool = True  #: neither it nor anything that it needs runs under the variant's own toolchain
    is_fresh: bool = False  #: it runs even if its outputs are in the cache
    after: str | None = None  #: the key of its baseline, which runs first and whose outputs it does not read

    @property
    def subject(self) -> str:
        """What it is done for: a variant's name, with the target unless it serves several.

        The name leaves out a toolchain that has no part in the task, unless the task is pinned.
        """
        targets = {variant.target for variant in self.variants}
        first = self.variants[0]
        unpinned = first.plain_name if self.is_default else first.unpinned_name
        name = first.name if self.pin else unpinned
        return f"{name} {targets.pop()}" if "target" in self.settings else name


@dataclass(frozen=True)
class Plan:
    """All of a job's work, each task after the tasks that it needs."""

    variants: tuple[Variant, ...]
    tasks: tuple[PlannedTask, ...]


def plan(
    spec: JobSpec,
    model: Model,
    nodes: Sequence[Node] = (),
    toolchains: Mapping[str, ToolchainSpec] = TOOLCHAINS,
) -> Plan:
    """Expand a job into tasks, in the order of the stages and within a stage in that of the variants.

    Variants under the toolchain that a gate is against come first, because the others are compared with them. `nodes`
    are the known nodes, for a job that is measured on each of them; what is not measured is done once, anywhere.
    """
    variants = [
        variant
        for one_model in model.all
        for variant in pin_variants(unpinned_variants(spec, one_model), spec.benchmark.on, nodes)
    ]
    baselines = _baselines(spec, variants)
    gated_stages = spec.gate.stages if spec.gate else set()
    tasks: dict[str, PlannedTask] = {}
    keys: dict[tuple[Variant, str], str] = {}
    for name, variant in product(STAGES, sorted(variants, key=baselines.__contains__)):
        stage = stages_of(variant).get(name)
        cell = Cell(spec, variant, model.named(variant.model), ENGINES[variant.engine].torch_options)
        if stage is None or name not in spec.stages or not stage.applies_to(variant) or not stage.is_needed(cell):
            continue
        made = ("finetune",) if "model" in stage.settings(cell) else ()  # the model may be one that the job trains
        optional = [need for need in (*made, *stage.optional_needs) if (variant, need) in keys]
        needs = [tasks[keys[variant, need]] for need in (*stage.needs, *optional)]
        task = _task(name, stage, cell, needs, toolchains)
        if variant in baselines and name in gated_stages:
            task = replace(task, after=keys.get((baselines[variant], name)))
        if same_work := tasks.get(task.key):
            task = replace(task, variants=(*same_work.variants, variant), after=same_work.after)
        keys[variant, name], tasks[task.key] = task.key, task
    return Plan(tuple(variants), tuple(tasks.values()))


def unpinned_variants(spec: JobSpec, model: Model) -> list[Variant]:
    """Return the variants of one model; a model without weights or with quantized ones has no quantizer."""
    name, has_quantizer = model_name(model.name, model.overrides), model.has_weights and not model.is_quantized
    variants = (
        variant_of(
            name,
            variant.target,
            normalize_axes(variant, has_quantizer=has_quantizer, is_program=model.is_program),
        )
        for variant in spec.variants.of(name, model.aliases)
    )
    return [replace(variant, model=model.name) for variant in dict.fromkeys(variants)]


def _task(
    name: str, stage: Stage, cell: Cell, needs: Sequence[PlannedTask], toolchains: Mapping[str, ToolchainSpec]
) -> PlannedTask:
    """Return the task of one stage for one variant."""
    variant, settings = cell.variant, stage.settings(cell)
    if variables := cell.variables(is_measured=stage.is_measured):
        settings = {**settings, "env": variables}
    pin = variant.pin if stage.is_measured else None
    toolchain = toolchain_for(variant.toolchain, name, variant.engine, toolchains)
    is_default, of_stage = toolchain == DEFAULT, stage.own_toolchain(settings)
    if is_default:
        toolchain = of_stage
    elif stage.adds_toolchain and toolchain != of_stage:
        toolchain = f"{toolchain}{JOIN}{of_stage}"
    pinned = [asdict(pin)] if pin else []
    under = [] if toolchain == DEFAULT else [toolchain]
    return PlannedTask(
        digest_of([name, identity_settings(settings), [need.key for need in needs], *pinned, *under]),
        name,
        settings,
        tuple(need.key for need in needs),
        stage.resources(cell),
        (variant,),
        pin=pin,
        toolchain=toolchain,
        is_default=is_default and all(need.is_default for need in needs),
    )


def _baselines(spec: JobSpec, variants: Sequence[Variant]) -> dict[Variant, Variant]:
    """Return, by variant, the one under the toolchain that the gate is against, for variants that have one."""
    toolchain = spec.gate.toolchain if spec.gate else None
    if toolchain is None:
        return {}
    baselines = {_without_toolchain(variant): variant for variant in variants if variant.toolchain == toolchain}
    others = ((variant, _without_toolchain(variant)) for variant in variants if variant.toolchain != toolchain)
    return {variant: baselines[same] for variant, same in others if same in baselines}


def _without_toolchain(variant: Variant) -> Variant:
    return replace(variant, toolchain=DEFAULT, name=f"{variant.model} {variant.plain_name}")
