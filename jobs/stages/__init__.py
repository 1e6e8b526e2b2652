"""Every stage there is, in the order of the matrix's columns."""

from jobs.stages.base import Stage
from jobs.stages.benchmark import BENCHMARK
from jobs.stages.compile import COMPILE
from jobs.stages.export import EXPORT
from jobs.stages.invoke import INVOKE
from jobs.stages.numerics import NUMERICS

STAGES: dict[str, Stage] = {
    "export": EXPORT,
    "compile": COMPILE,
    "invoke": INVOKE,
    "numerics": NUMERICS,
    "benchmark": BENCHMARK,
}
