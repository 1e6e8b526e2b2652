"""Every stage there is, in the order of the matrix's columns, and what each engine does of them."""

from jobs.stages.base import Settings, Stage
from jobs.stages.benchmark import BENCHMARK
from jobs.stages.compile import COMPILE
from jobs.stages.export import EXPORT
from jobs.stages.invoke import INVOKE
from jobs.stages.numerics import NUMERICS
from jobs.stages.torch_benchmark import TORCH_BENCHMARK
from jobs.stages.torch_numerics import TORCH_NUMERICS
from jobs.variants import Engine

STAGES: dict[str, Stage] = {
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
}


def stage_of(name: str, settings: Settings) -> Stage:
    """The stage as the engine of a task does it; settings that name no engine are IREE's."""
    return ENGINES[Engine(settings.get("engine", Engine.IREE))][name]
