"""The table of stages, in the order of the matrix's columns."""

from jobs.stages.analyse import ANALYSE
from jobs.stages.base import Stage
from jobs.stages.benchmark import BENCHMARK
from jobs.stages.compile import COMPILE
from jobs.stages.evaluate import EVALUATE
from jobs.stages.export import EXPORT
from jobs.stages.finetune import FINETUNE
from jobs.stages.invoke import INVOKE
from jobs.stages.numerics import NUMERICS
from jobs.stages.profile import PROFILE
from jobs.stages.quantize import QUANTIZE
from jobs.stages.reference import REFERENCE
from jobs.stages.serve import SERVE
from jobs.stages.server import SERVER

#: The stages as IREE, the default engine, does them; `jobs.engines.ENGINES` has those of other engines.
STAGES: dict[str, Stage] = {
    "finetune": FINETUNE,
    "quantize": QUANTIZE,
    "export": EXPORT,
    "compile": COMPILE,
    "analyse": ANALYSE,
    "invoke": INVOKE,
    "numerics": NUMERICS,
    "reference": REFERENCE,
    "evaluate": EVALUATE,
    "benchmark": BENCHMARK,
    "profile": PROFILE,
    "serve": SERVE,
    "server": SERVER,
}
