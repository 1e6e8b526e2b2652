"""The job file: its keys, their types and defaults. Unknown keys are refused."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from jobs import quantizers
from jobs.benchmarks import Order
from jobs.choices import Variants
from jobs.fields import (
    NOT_EMPTY,
    SECTION,
    Count,
    GatedMetric,
    Measure,
    ModelName,
    Override,
    Priority,
    Seconds,
    StageName,
    distinct,
    listed,
)
from jobs.metrics import METRICS
from jobs.variants import On, Quantizer


class _Section(BaseModel):
    model_config = SECTION


class Workload(_Section):
    """What the programs are made for and timed with: every batch size with every prompt length."""

    batch: Annotated[list[Count], BeforeValidator(listed), NOT_EMPTY] = [1]
    prompt_tokens: Annotated[list[Count], BeforeValidator(listed), NOT_EMPTY] = [64]
    new_tokens: Count = 32
    kv_block_tokens: Literal[16, 32] = 16  #: of a block, where the KV cache is paged

    @model_validator(mode="after")
    def _each_once(self) -> "Workload":
        for key in ("batch", "prompt_tokens"):
            distinct(getattr(self, key))
        return self

    @property
    def cache_tokens(self) -> int:
        """Positions that the KV cache needs for one row."""
        return max(self.prompt_tokens) + self.new_tokens


class Quantize(_Section):
    """How precisions that need it are made: of which text, with which scales, with which options of each maker."""

    windows: Count = 32
    tokens: Count = 128  #: of each window
    text: str | None = None  #: a file to take the windows from; by default the shipped calibration text
    granularity: Literal["tensor", "channel"] | None = None  #: of fp8 and int8 weights' scales; by default the maker's
    inputs: Literal["static", "dynamic"] | None = None  #: scales of inputs in fp8 and int8
    group_size: Annotated[int, Field(ge=16, le=128, multiple_of=8)] | None = None  #: of int4; by default the largest
    options: dict[Quantizer, dict[str, str | bool | int | float]] = {}  #: for each maker its own

    @model_validator(mode="after")
    def _options_are_known(self) -> "Quantize":
        for maker, options in self.options.items():
            for found in quantizers.option_problems(maker, options):
                raise ValueError(found)
        return self


class Numerics(_Section):
    """How the compiled program is compared with the reference."""

    windows: Count = 16
    max_perplexity_increase_percent: Annotated[float, Field(gt=0)] | None = None  #: by default the precision's
    max_kl_mean: Annotated[float, Field(gt=0)] | None = None  #: nats; by default the precision's
    text: str | None = None  #: a file to take the windows from; by default the shipped held-out text


class Benchmark(_Section):
    """How often each entry point is timed (each repetition is one sample), in which order, where, and beside what."""

    warmup: Annotated[int, Field(ge=0)] = 1  #: of each process
    repetitions: Count = 5  #: of each process
    processes: Count = 1  #: fresh ones for each workload; how many samples each gave is kept with them
    order: Order = Order.SEQUENTIAL  #: of those processes
    generations: Annotated[int, Field(ge=0)] = 3  #: whole ones that each process times; none: single steps alone
    max_disturbed_reruns: Annotated[int, Field(ge=0, le=10)] = 2  #: of a run that something else disturbed
    quiet: bool | None = None  #: nothing else may run on its nodes meanwhile; by default as the target has it
    on: On = On.ANY


class CompileMode(StrEnum):
    """What torch.compile is to spend its time on, in its own words."""

    DEFAULT = "default"
    REDUCE_OVERHEAD = "reduce-overhead"
    MAX_AUTOTUNE = "max-autotune"
    MAX_AUTOTUNE_NO_CUDAGRAPHS = "max-autotune-no-cudagraphs"


class Torch(_Section):
    """Options of the torch engines."""

    compile_mode: CompileMode = CompileMode.DEFAULT
    #: knobs of torch._inductor.config, such as `freezing: true`; compiling is what torch-compile does alone
    inductor: dict[Annotated[str, Field(pattern=r"^[a-z]\w*(\.\w+)*$")], bool | int | float | str] = {}
    tunable_op: bool = False  #: the fastest of all kernels of a matmul is looked for in the warm-up; on GPUs
    tunable_op_ms: Annotated[int, Field(ge=1)] | None = None  #: for each of those kernels; by default torch's


class Compile(_Section):
    """What is added to the flags of the target."""

    flags: list[Annotated[str, Field(pattern=r"^--[\w-]+(=.*)?$")]] = []


class Gate(_Section):
    """When a cell fails because it is slower than it was, or than a target: beyond the noise of its device alone."""

    against: Measure = "last-good"
    metrics: Annotated[list[GatedMetric], BeforeValidator(listed), NOT_EMPTY] = ["ttft_ms", "itl_ms"]
    slowdown_percent: Annotated[float, Field(ge=0.5, le=100)] = 5.0  #: what is found 95 times in 100
    runs: Annotated[int, Field(ge=1, le=9)] = 9  #: at most so many measurements, each anew, until it is decided

    @property
    def toolchain(self) -> str | None:
        """The name of the one that it is against; none: it is against something else."""
        kind, _, name = self.against.partition(":")
        return name if kind == "toolchain" else None

    @model_validator(mode="after")
    def _each_once(self) -> "Gate":
        distinct(self.metrics)
        return self


class JobSpec(_Section):
    """One job file."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    model: Annotated[list[ModelName], BeforeValidator(listed), NOT_EMPTY]
    revision: str | None = None
    overrides: dict[str, Override] = {}
    variants: Variants = Variants()
    stages: Annotated[list[StageName], NOT_EMPTY] = [
        "quantize",
        "export",
        "compile",
        "invoke",
        "numerics",
        "benchmark",
    ]
    workload: Workload = Workload()
    quantize: Quantize = Quantize()
    compile: Compile = Compile()
    torch: Torch = Torch()
    numerics: Numerics = Numerics()
    benchmark: Benchmark = Benchmark()
    gate: Gate | None = None  #: none: whatever the timings are, the cell passes
    timeout: Seconds = 1800.0  #: of one attempt
    job_timeout: Seconds | None = None  #: of the whole job, from its submission; none: as long as it takes
    priority: Priority = 0  #: higher goes first

    @model_validator(mode="after")
    def _stages_fit(self) -> "JobSpec":
        distinct(self.stages)
        distinct(self.model)
        if self.revision is not None and len(self.model) > 1:
            raise ValueError("revision: is of one model, and there are several")
        for metric in self.gate.metrics if self.gate else ():
            if METRICS[metric].stage not in self.stages:
                raise ValueError(f"gate: {metric} needs the stage {METRICS[metric].stage}")
        return self
