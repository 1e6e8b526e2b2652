"""The sections of a job file that stages read, with the types, defaults and meanings of their keys."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, AliasChoices, Field

from jobs import limits
from jobs.field_types import (
    Baseline,
    Batch,
    Count,
    FileName,
    FolderName,
    GatedMetric,
    ModuleName,
    OneOrMore,
    ProgramInput,
    QuantizerName,
    Section,
    TargetName,
    TaskName,
    Text,
    Tokens,
    ToolFlags,
    Windows,
    distinct,
)
from jobs.input_files import InputFile
from jobs.metrics import EXACT, stage_of_metric
from jobs.process_order import ProcessOrder
from jobs.variants import BenchmarkPlacement


class WorkloadSection(Section):
    """The inputs that programs are made for and timed with: every batch size with every prompt length."""

    batch: OneOrMore[Batch] = [1]
    """Sequences in a batch."""
    prompt_tokens: OneOrMore[Tokens] = [64]
    """Tokens of each prompt."""
    new_tokens: Tokens = 32
    """Tokens that a whole generation adds to each prompt."""
    kv_block_tokens: Literal[16, 32] = 16
    """Tokens in a block of a paged KV cache."""

    @property
    def cache_tokens(self) -> int:
        """Positions that the KV cache needs for one sequence."""
        return max(self.prompt_tokens) + self.new_tokens


class QuantizeSection(Section):
    """How quantizers make low-precision weights and scales."""

    windows: Windows = 32
    """Windows of calibration text."""
    tokens: Tokens = 128
    """Tokens in each window."""
    text: FileName | None = None
    """File with the calibration text, relative to the job file; by default the text that ships with haloctl."""
    granularity: Literal["tensor", "channel"] | None = None
    """What shares one scale of fp8 and int8 weights; by default the quantizer's first choice."""
    inputs: Literal["static", "dynamic"] | None = None
    """Scales of the inputs of fp8 and int8 layers: calibrated, or computed in each call; by default the quantizer's."""
    group_size: Annotated[int, Field(ge=16, le=128, multiple_of=8)] | None = None
    """Weights in a group of int4; by default the largest that fits."""
    options: dict[QuantizerName, dict[str, Text | bool | int | float | InputFile]] = {}
    """Options of each quantizer, such as `{llm-compressor: {smoothquant: 0.5}}`."""


class FinetuneOptions(Section):
    """How a model is trained; what is not set comes from the section `finetune`, or has the default that is said."""

    method: Literal["lora", "dora", "full"] | None = None
    """What is trained: an adapter (`dora` is one with magnitudes of its own), or all weights; by default `lora`."""
    rank: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Rank of an adapter's matrices; by default 16."""
    alpha: Annotated[int, Field(ge=1, le=1 << 16)] | None = None
    """Scale of an adapter, times its rank; by default twice the rank."""
    modules: Annotated[list[ModuleName], Field(max_length=limits.MAX_VALUES)] | None = None
    """Linear modules that get an adapter, such as `[q_proj, v_proj]`; by default all but the head."""
    steps: Annotated[int, Field(ge=1, le=limits.MAX_STEPS)] | None = None
    """Steps, instead of epochs."""
    epochs: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Passes through the data; by default 1."""
    batch: Batch | None = None
    """Sequences in a step; by default 8."""
    sequence_tokens: Annotated[int, Field(ge=2, le=limits.MAX_TOKENS)] | None = None
    """Tokens of a sequence: a text is cut into sequences, a longer example is cut off; by default 512."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """Highest learning rate; by default 2e-4 for adapters and 2e-5 for all weights."""
    warmup: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of the steps in which the learning rate rises to its highest, to fall as a cosine then; by default 0.03."""
    seed: Annotated[int, Field(ge=0, lt=1 << 32)] | None = None
    """Seed of the order of sequences and of an adapter's first weights; by default 0."""
    precision: Literal["f32", "bf16"] | None = None
    """Number format of the computation; weights are trained in f32. By default `f32`."""
    gradient_checkpointing: bool | None = None
    """Whether activations are computed again for the gradients, which takes less memory and more time."""


class FinetuneSection(FinetuneOptions):
    """How models are fine-tuned before the other stages; `variants.finetune` names several ways."""

    data: FileName | None = None
    """File to train on, relative to the job file: a text, or a .jsonl with a JSON object in each line that has a `text`
    or `messages`, a conversation with `role` and `content`."""
    held_out: FileName | None = None
    """File of the same kind whose perplexity is told before and after; by default the last tenth of the data."""
    target: TargetName | None = None
    """Device that trains; by default that of the variant."""


class NumericsSection(Section):
    """How programs are compared with the reference, which is the model in torch in f32."""

    windows: Windows = 16
    """Windows of held-out text."""
    max_perplexity_increase_percent: Annotated[float, Field(gt=0)] | None = None
    """Limit of the perplexity above the reference's, in percent; by default the precision's."""
    max_kl_mean: Annotated[float, Field(gt=0)] | None = None
    """Limit of the mean KL divergence, in nats; by default the precision's."""
    max_quantized_kl_mean: Annotated[float, Field(gt=0)] | None = None
    """Limit of the mean KL divergence from the same quantized weights in f32, in nats; by default the precision's."""
    max_scale_error_percent: Annotated[float, Field(gt=0)] | None = None
    """Limit of the error that a linear module in low precision has in its scale; by default the precision's."""
    text: FileName | None = None
    """File with the held-out text, relative to the job file; by default the text that ships with haloctl."""
    where: Literal["failed", "layers", "dispatches"] | None = None
    """Whether to look for the first decoder layer that is off, and the module in it: when numbers are beyond their
    limits (`failed`), or always (`layers`). The program is exported and compiled once more for it. `dispatches` also
    records what each dispatch computes, for `haloctl numerics A B --dispatches`; that takes long for a large model."""


class EvaluateSection(Section):
    """Which tasks of lm-evaluation-harness programs and the reference answer, and how much worse a program may be."""

    tasks: FolderName | None = None
    """Folder with tasks: YAML files of lm-evaluation-harness and their data as JSON, CSV, Parquet or text, relative to
    the job file; by default two small tasks that ship with haloctl. Code in tasks is refused."""
    names: Annotated[list[TaskName], Field(max_length=limits.MAX_VALUES), AfterValidator(distinct)] = []
    """Tasks, groups or tags of the folder; by default all of its tasks."""
    few_shot: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Examples that are shown before each question; by default as many as a task says."""
    items: Windows | None = None
    """Items of each task, from its first on; by default all."""
    chat: bool = False
    """Whether questions are asked in the form of the model's chat template."""
    max_drop_percent: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Largest drop of a score below the reference's on the same items, in percent of it. A program fails when its drop
    is certainly larger, and passes with a warning when the items can't tell."""


class BenchmarkSection(Section):
    """How often, in which order and where programs are timed."""

    warmup: Annotated[int, Field(ge=0, le=limits.MAX_REPETITIONS)] = 1
    """Repetitions of each process that are not counted."""
    repetitions: Count = 5
    """Repetitions of each process, each of which is one sample."""
    processes: Count = 1
    """Fresh processes for each workload."""
    order: ProcessOrder = ProcessOrder.SEQUENTIAL
    """Order of the processes; `interleaved` and `shuffled` spread drift over all workloads."""
    generations: Annotated[int, Field(ge=0, le=limits.MAX_REPETITIONS)] = 3
    """Whole generations that each process times; 0 times single steps only."""
    max_disturbed_reruns: Annotated[int, Field(ge=0, le=10)] = 2
    """Repetitions of a run that other load on the machine disturbed."""
    exclusive: bool | None = Field(default=None, validation_alias=AliasChoices("exclusive", "quiet"))
    """Whether the node runs nothing else meanwhile; by default only on the target `cpu`. Its old name is `quiet`."""
    flags: ToolFlags = []
    """Flags of IREE's runtime that change how fast programs run, such as `--hip_use_streams=false` or
    `--task_topology_group_count=8`; for the engine `iree`."""
    on: BenchmarkPlacement = BenchmarkPlacement.ANY
    """Where each variant is timed: once on any node with room, all in one place, or on each node or device."""


class SloSection(Section):
    """What a request must keep to count as good service."""

    ttft_ms: Annotated[float, Field(gt=0)] | None = None
    """Longest time to the first token, in milliseconds."""
    tpot_ms: Annotated[float, Field(gt=0)] | None = None
    """Longest mean time for each further token, in milliseconds."""


class ServeSection(Section):
    """How compiled programs are served, and under which load."""

    concurrency: OneOrMore[Annotated[int, Field(ge=1, le=limits.MAX_CONCURRENCY)]] = [1, 2, 4, 8, 16]
    """Requests in flight, one level of load after another."""
    rates: Annotated[list[Annotated[float, Field(gt=0, le=limits.MAX_RATE)]], Field(max_length=limits.MAX_VALUES)] = []
    """Further levels: requests per second, which come at random times whatever has become of the earlier ones."""
    offline: bool = False
    """Whether all requests of a level are also sent at once."""
    requests: Count = 8
    """Requests of each level, times its concurrency."""
    rounds: Annotated[int, Field(ge=1, le=100)] = 2
    """How often all levels are measured."""
    slo: SloSection | None = None
    """Limits for goodput, the requests per second that keep them, and for the highest rate that does."""
    sequences: Windows = 48
    """Sequences that are served and held against the reference, at more of them in flight than fit into a batch."""
    decode_batch: OneOrMore[Batch] = [1, 4, 16]
    """Batch sizes that the program decodes."""
    prefill_batch: OneOrMore[Batch] = [1, 4]
    """Batch sizes in which it takes prompts."""
    chunk_tokens: Tokens = 128
    """Tokens that it takes at once of a prompt that goes on from its middle."""
    host: Text = "127.0.0.1"
    """Address that the stage `server` listens on; others than loopback need HALOCTL_SERVE_KEY on the node."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    """Port that the stage `server` listens on; 0 takes any that is free."""
    replicas: Annotated[int, Field(ge=1, le=64)] = 1
    """Copies of the program that the stage `server` runs, each on devices of its own."""
    kv_pool_blocks: Annotated[int, Field(ge=2, le=limits.MAX_TOKENS)] | None = None
    """Blocks of the KV cache, one of which is nobody's; by default enough for the largest batch at full length."""


class ProgramSection(Section):
    """How a program that haloctl did not make is called: `model: ./program.mlir`, or an ONNX file, or a .vmfb."""

    function: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.$-]{0,199}$")] = "main"
    """Function that is called."""
    inputs: Annotated[list[ProgramInput], Field(max_length=limits.MAX_VALUES)] = []
    """Its arguments in order: .npy files, relative to the job file, or shapes with a value, such as `4x64xf32=0.5`."""
    expected: Annotated[list[FileName], Field(max_length=limits.MAX_VALUES)] = []
    """The .npy files with what it should return, in order; without them results only have to be there."""
    tolerance: Annotated[float, Field(ge=0)] = 1e-3
    """Largest difference from what is expected, relative to the largest expected value."""


class CompileMode(StrEnum):
    """What torch.compile optimizes for, in its own words."""

    DEFAULT = "default"
    REDUCE_OVERHEAD = "reduce-overhead"
    MAX_AUTOTUNE = "max-autotune"
    MAX_AUTOTUNE_NO_CUDAGRAPHS = "max-autotune-no-cudagraphs"


class TorchSection(Section):
    """Options of the engines `torch` and `torch-compile`."""

    compile_mode: CompileMode = CompileMode.DEFAULT
    """Mode of `torch.compile`, for the engine `torch-compile`."""
    inductor: dict[Annotated[str, Field(pattern=r"^[a-z]\w*(\.\w+)*$")], bool | int | float | str] = {}
    """Settings of `torch._inductor.config`, such as `{freezing: true}`, for the engine `torch-compile`."""
    tunable_op: bool = False
    """Whether the warm-up looks for the fastest kernel of each matmul (TunableOp), on GPUs."""
    tunable_op_ms: Annotated[int, Field(ge=1, le=3_600_000)] | None = None
    """Time for each of those kernels, in milliseconds; by default torch's."""


class CompileSection(Section):
    """How iree-compile is called."""

    flags: ToolFlags = []
    """Flags of iree-compile that change how code is generated, added to those of the target."""


SharkDtype = Literal["float32", "float16", "bfloat16"]


class SharktankSection(Section):
    """Options of the exporter `sharktank`, under its own names."""

    activation_dtype: SharkDtype | None = None
    """Number format of activations; by default the variant's."""
    attention_dtype: SharkDtype | None = None
    """Number format inside of attention; by default that of the variant's activations."""
    kv_cache_dtype: SharkDtype | None = None
    """Number format of keys and values; by default that of the variant's activations."""
    attention_kernel: Literal["torch", "decomposed", "sharktank"] | None = None
    """Attention kernel; by default `torch` for `attention: sdpa` and `decomposed` for `attention: eager`."""
    bs_prefill: OneOrMore[Batch] | None = None
    """Batch sizes of prefill; by default those of the workload."""
    bs_decode: OneOrMore[Batch] | None = None
    """Batch sizes of decode; by default those of the workload. Numerics and whole generations are of the sizes that
    prefill and decode both have."""

    @property
    def values(self) -> dict[str, str]:
        """The options that are set, but for the batch sizes."""
        options = self.model_dump(exclude={"bs_prefill", "bs_decode"}, exclude_none=True)
        return {name: str(value) for name, value in options.items()}

    def batches(self, workload: WorkloadSection) -> dict[str, list[int]]:
        """Return the batch sizes of prefill and decode where they are set apart from the workload's."""
        sizes = {"bs_prefill": self.bs_prefill, "bs_decode": self.bs_decode}
        return {name: sorted(size or workload.batch) for name, size in sizes.items()} if any(sizes.values()) else {}


class GateSection(Section):
    """When a cell fails: it is slower, or takes more energy, than a baseline, beyond the noise of its device, or it has
    worse kernels."""

    against: Baseline = "last-good"
    """Baseline: earlier good runs, a reference target, or another toolchain, such as `toolchain:iree-3.12`."""
    metrics: OneOrMore[GatedMetric] = ["ttft_ms", "itl_ms"]
    """Metrics that are compared: times, rates, energy and power, such as `decode_tokens_per_j`; one that a device does
    not tell passes with a warning. And what follows from the program alone (`spills`, `mfma`, `bytes`, ... of the stage
    analyse), which may not be worse at all and needs no device."""
    slowdown_percent: Annotated[float, Field(ge=0.5, le=100)] = 5.0
    """Slowdown, or loss in another metric, that is found 95 times in 100."""
    runs: Annotated[int, Field(ge=1, le=9)] = 9
    """Most measurements that are made until the gate can decide."""

    @property
    def timings(self) -> tuple[str, ...]:
        """The metrics that vary from run to run."""
        return tuple(name for name in self.metrics if name not in EXACT)

    @property
    def exact(self) -> tuple[str, ...]:
        """The metrics that follow from the program alone."""
        return tuple(metric for name in self.metrics for metric in EXACT.get(name, ()))

    @property
    def stages(self) -> set[str]:
        """The stages that measure its metrics."""
        return set(map(stage_of_metric, self.metrics))

    @property
    def toolchain(self) -> str | None:
        """The toolchain that is the baseline; None if the baseline is something else."""
        kind, _, name = self.against.partition(":")
        return name if kind == "toolchain" else None
