"""Every stage there is, in the order of the matrix's columns, and what each engine does of them."""

from jobs.stages.base import Settings, Stage
from jobs.stages.benchmark import BENCHMARK
from jobs.stages.compile import COMPILE
from jobs.stages.export import EXPORT
from jobs.stages.invoke import INVOKE
from jobs.stages.numerics import NUMERICS
from jobs.stages.quantize import QUANTIZE
from jobs.stages.shark_benchmark import SHARK_BENCHMARK
from jobs.stages.shark_export import SHARK_EXPORT
from jobs.stages.torch_benchmark import TORCH_BENCHMARK
from jobs.stages.torch_numerics import TORCH_NUMERICS
from jobs.stages.vllm_benchmark import VLLM_BENCHMARK
from jobs.variants import Axes, Engine, Exporter

STAGES: dict[str, Stage] = {
    "quantize": QUANTIZE,
    "export": EXPORT,
    "compile": COMPILE,
    "invoke": INVOKE,
    "numerics": NUMERICS,
    "benchmark": BENCHMARK,
}

#: How an engine does a stage; what it does not do is not planned for it.
ENGINES: dict[Engine, dict[str, Stage]] = {
    Engine.IREE: STAGES,
    Engine.TORCH: {"numerics": TORCH_NUMERICS, "benchmark": TORCH_BENCHMARK},
    Engine.TORCH_COMPILE: {"numerics": TORCH_NUMERICS, "benchmark": TORCH_BENCHMARK},
    Engine.VLLM: {"benchmark": VLLM_BENCHMARK},
}


#: How programs are made, called and timed, by what exports them.
EXPORTERS: dict[Exporter, dict[str, Stage]] = {
    Exporter.HALOCTL: ENGINES[Engine.IREE],
    Exporter.SHARKTANK: {**ENGINES[Engine.IREE], "export": SHARK_EXPORT, "benchmark": SHARK_BENCHMARK},
}


def stages_of(axes: Axes) -> dict[str, Stage]:
    """How a variant's engine and exporter do each stage."""
    return EXPORTERS[axes.exporter] if axes.engine is Engine.IREE else ENGINES[axes.engine]


def stage_of(name: str, settings: Settings) -> Stage:
    """The stage as the engine of a task does it; settings that name no engine are IREE's."""
    if "exporter" in settings:
        return EXPORTERS[Exporter(settings["exporter"])][name]
    return ENGINES[Engine(settings.get("engine", Engine.IREE))][name]
