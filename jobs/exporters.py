"""The table of exporters: what makes a program of a model, and how the stages of engines then work."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from jobs.engines import ENGINES
from jobs.errors import TooManyCommands
from jobs.limits import MAX_COMMANDS
from jobs.problems import Problem
from jobs.stages import given_program
from jobs.stages.base import Settings, Stage
from jobs.stages.given_program import GIVEN
from jobs.stages.shark_benchmark import SHARK_BENCHMARK
from jobs.stages.shark_export import SHARK_EXPORT
from jobs.task import Command
from jobs.toolchains import Toolchain
from jobs.variants import (
    AXIS_DEFAULTS,
    HALOCTL,
    IREE,
    QUANTIZED,
    Attention,
    Axes,
    KvCache,
    KvPrecision,
    Variant,
    is_quantized,
)


def _haloctl_problem(variant: Variant) -> Problem | None:
    if variant.pp == 1:
        return None
    what = "the exporter haloctl" if variant.engine == IREE else f"the engine {variant.engine}"
    message = (
        f"{what} makes no pipeline: it splits every layer over all devices (tp); the exporter sharktank gives each "
        "device layers of its own (pp)"
    )
    return Problem.of_variant(variant, "pp", "exporter", "engine", message=message)


def _sharktank_problem(variant: Variant) -> Problem | None:
    if variant.tp > 1:
        message = (
            "the exporter sharktank splits no layer over devices, because its release 3.8 asserts a tensor parallelism "
            "of 1; use a pipeline (pp)"
        )
        return Problem.of_variant(variant, "tp", "exporter", message=message)
    if variant.kv_precision is not KvPrecision.SAME:
        message = "the exporter sharktank takes no scales for a KV cache: Brevitas 0.13 can't export them"
        return Problem.of_variant(variant, "kv_precision", "exporter", message=message)
    if variant.precision in QUANTIZED and variant.quantizer != "brevitas":
        message = f"the exporter sharktank takes {variant.precision} only from the quantizer brevitas"
        return Problem.of_variant(variant, "quantizer", "precision", "exporter", message=message)
    return None


def _no_problem(variant: Variant) -> Problem | None:
    return None


@dataclass(frozen=True)
class Exporter:
    """What makes a program of a model."""

    title: str
    problem: Callable[[Variant], Problem | None]  #: why it can't export a variant
    stages: Mapping[str, Stage] = field(default_factory=dict)  #: stages that it does otherwise than the engine
    kv_cache: KvCache | None = None  #: the only layout that it makes; None: every layout
    without: frozenset[str] = frozenset()  #: stages that mean nothing for its programs


EXPORTERS: dict[str, Exporter] = {
    HALOCTL: Exporter("haloctl's own", _haloctl_problem),
    # the SHARK route: a Hugging Face model becomes a model of shark-ai
    "sharktank": Exporter(
        "shark-ai's sharktank",
        _sharktank_problem,
        {"export": SHARK_EXPORT, "benchmark": SHARK_BENCHMARK},
        KvCache.PAGED,
        without=frozenset({"profile"}),
    ),
    # no exporter: the model is a program already; job files can't choose it
    GIVEN: Exporter(
        "none: the model is a program",
        _no_problem,
        given_program.STAGES,
        without=frozenset({"finetune", "quantize", "numerics", "profile", "reference", "evaluate", "serve", "server"}),
    ),
}


def stages_of(axes: Axes) -> dict[str, Stage]:
    """Return how a variant's engine and exporter do each stage."""
    exporter = EXPORTERS[axes.exporter]
    stages = {**ENGINES[axes.engine].stages, **exporter.stages}
    return {name: stage for name, stage in stages.items() if name not in exporter.without}


def stage_of(name: str, settings: Settings) -> Stage:
    """Return a stage as the engine and exporter in a task's settings do it; settings without an engine are IREE's."""
    exporter, engine = settings.get("exporter", HALOCTL), settings.get("engine", IREE)
    return EXPORTERS[exporter].stages.get(name) or ENGINES[engine].stages[name]


def commands_of(name: str, settings: Settings, toolchain: Toolchain) -> list[Command]:
    """Return the commands of a stage, which are counted before they are made, with the environment variables of its
    settings. Raises TooManyCommands."""
    stage = stage_of(name, settings)
    count = stage.count_commands(settings)
    if count > MAX_COMMANDS:
        raise TooManyCommands(name, count, MAX_COMMANDS)
    commands = stage.commands(settings, toolchain)
    variables = settings.get("env")
    return [replace(command, env={**variables, **command.env}) for command in commands] if variables else list(commands)


def normalize_axes(axes: Axes, *, has_quantizer: bool = True, is_program: bool = False) -> Axes:
    """Return the axes with those at their default that mean nothing for the variant.

    Only some engines have exported programs, and nothing quantizes f16. A model that is a program already has devices,
    flags and a toolchain, and nothing else to choose.
    """
    if is_program:
        chosen = {name: getattr(axes, name) for name in ("precision", "tp", "flags", "env", "toolchain")}
        return replace(axes, **{**AXIS_DEFAULTS, **chosen, "attention": Attention.SDPA, "exporter": GIVEN})
    ignored = {"exporter", "flags", "kv_cache"} - ENGINES[axes.engine].axes
    axes = replace(axes, **{axis: AXIS_DEFAULTS[axis] for axis in ignored})
    axes = replace(axes, kv_cache=EXPORTERS[axes.exporter].kv_cache or axes.kv_cache)
    return axes if has_quantizer and is_quantized(axes) else replace(axes, quantizer=HALOCTL)
