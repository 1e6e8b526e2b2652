"""The type of stages: pure functions from settings to commands, and from an output folder to an outcome."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jobs.environment_variables import VARIABLES, Effect
from jobs.input_files import path_of
from jobs.number_format import format_number
from jobs.state import Failure, FailureKind
from jobs.targets import TARGETS
from jobs.task import GIB, Command, Measurement, Outcome, Process, Resources
from jobs.toolchains import DEFAULT, Toolchain
from jobs.variants import UNTUNED, Axes, KvCache, Variant

if TYPE_CHECKING:  # commands that only read need no pydantic
    from jobs.sections import (
        BenchmarkSection,
        CompileSection,
        EvaluateSection,
        FinetuneOptions,
        FinetuneSection,
        NumericsSection,
        ProgramSection,
        QuantizeSection,
        ServeSection,
        SharktankSection,
        TorchSection,
        WorkloadSection,
    )

Settings = Mapping[str, Any]
Observed = Sequence[tuple[Process, str]]  #: each process of an attempt with the text that it printed
Medians = Mapping[str, float]  #: by metric, of the smallest batch with the shortest prompt

OUTPUTS = "outputs"  #: the folder that an attempt's commands write to, in its working folder
INPUTS = "inputs"  #: the folder with the outputs of other stages: inputs/<stage>/<file>
TUNED_MODEL = f"./{INPUTS}/finetune"  #: the checkpoint that stages after finetune read instead of the job's model


@dataclass(frozen=True)
class Model:
    """The facts about a job's model that planning needs."""

    text: str  #: as the job file names it; a folder's path is absolute
    name: str
    digest: str  #: of everything in it that results depend on
    parameters: int
    has_weights: bool = True
    is_quantized: bool = False  #: its files hold low-precision weights
    is_program: bool = False  #: it is a program that haloctl did not make
    revision: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  #: sha256 of each file that it consists of, by name
    more: tuple["Model", ...] = ()  #: the job's other models

    @staticmethod
    def of(facts: Mapping[str, Any]) -> "Model":
        """Return the model that `asdict` made `facts` of."""
        return Model(**{**facts, "more": tuple(Model.of(other) for other in facts.get("more", ()))})

    @property
    def all(self) -> tuple["Model", ...]:
        """All of the job's models."""
        return (self, *self.more)

    @property
    def aliases(self) -> tuple[str, ...]:
        """The names that a job file can call it by."""
        return self.text, self.name

    def named(self, name: str) -> "Model":
        """Return one of the job's models, without the others."""
        return replace(next(model for model in self.all if model.name == name), more=())


class NamedSets(Protocol):
    """The sets of options that a job file names (`jobs.job_file.variants_section.VariantsSection`)."""

    @property
    def flags(self) -> Mapping[str, Sequence[str]]: ...  # noqa: D102
    @property
    def env(self) -> Mapping[str, Mapping[str, str]]: ...  # noqa: D102
    @property
    def finetune(self) -> Mapping[str, "FinetuneOptions"]: ...  # noqa: D102


class StageOptions(Protocol):
    """The part of a job file that stages read (`jobs.job_file.spec.JobSpec`)."""

    @property
    def stages(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def variants(self) -> "NamedSets": ...  # noqa: D102
    @property
    def env(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def workload(self) -> "WorkloadSection": ...  # noqa: D102
    @property
    def quantize(self) -> "QuantizeSection": ...  # noqa: D102
    @property
    def finetune(self) -> "FinetuneSection": ...  # noqa: D102
    @property
    def compile(self) -> "CompileSection": ...  # noqa: D102
    @property
    def sharktank(self) -> "SharktankSection": ...  # noqa: D102
    @property
    def torch(self) -> "TorchSection": ...  # noqa: D102
    @property
    def numerics(self) -> "NumericsSection": ...  # noqa: D102
    @property
    def evaluate(self) -> "EvaluateSection": ...  # noqa: D102
    @property
    def benchmark(self) -> "BenchmarkSection": ...  # noqa: D102
    @property
    def program(self) -> "ProgramSection": ...  # noqa: D102
    @property
    def serve(self) -> "ServeSection": ...  # noqa: D102


@dataclass(frozen=True)
class Cell:
    """One variant of a job with its model: the input of a stage's planning."""

    spec: StageOptions
    variant: Variant
    model: Model
    torch_options: frozenset[str] = frozenset()  #: keys of the section `torch` that the variant's engine reads

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of the variant's named set, for the compiler and for the runtime."""
        return tuple(self.spec.variants.flags.get(self.variant.flags, ()))

    def variables(self, *, is_measured: bool) -> dict[str, str]:
        """Return the environment variables for a stage; where only outputs count, those that may change these."""
        named = {**self.spec.env, **self.spec.variants.env.get(self.variant.env, {})}
        return {
            name: value
            for name, value in sorted(named.items())
            if is_measured or name not in VARIABLES or VARIABLES[name].effect is Effect.RESULT
        }


SERVING_STAGES = frozenset({"serve", "server", "evaluate"})  #: they call what a server calls


def is_served(cell: Cell) -> bool:
    """Return whether a server, or what computes as one does, will run the variant's program."""
    return bool(SERVING_STAGES & set(cell.spec.stages)) and cell.variant.kv_cache is KvCache.PAGED


def _one_command(settings: Settings) -> int:
    return 1


def _always(cell: Cell) -> bool:
    return True


def _every_variant(axes: Axes) -> bool:
    return True


def _default_toolchain(settings: Settings) -> str:
    return DEFAULT


def _observe_nothing(settings: Settings, observed: Observed) -> Iterator[Measurement]:
    yield from ()


def _no_figure(medians: Medians, target: str) -> str:
    return ""


@dataclass(frozen=True)
class Archive:
    """Files that commands leave in a folder beside outputs/, kept together as one artifact, a .tar.gz."""

    folder: str
    patterns: tuple[str, ...]  #: of the names of its files; no folders within
    kind: str
    max_bytes: int  #: of all its files; what is larger is not kept, which is no failure


@dataclass(frozen=True)
class Stage:
    """One kind of work."""

    name: str
    title: str  #: of its column in the matrix
    needs: tuple[str, ...]  #: stages whose outputs it reads
    settings: Callable[[Cell], dict[str, Any]]
    commands: Callable[[Settings, Toolchain], list[Command]]
    resources: Callable[[Cell], Resources]
    parse: Callable[[Settings, Path], Outcome]  #: reads outputs/ of a working folder after its commands succeeded
    artifacts: Mapping[str, str] = field(default_factory=dict)  #: suffix of an output's name -> kind of artifact
    archives: Mapping[str, Archive] = field(default_factory=dict)  #: by the names that they are kept under
    version: int = 1  #: raised when the same settings no longer mean the same outputs
    is_default: bool = True  #: part of a job whose file names no stages
    is_measured: bool = False  #: it measures a machine, so its results are taken from the cache only on request
    is_portable: bool = False  #: its outputs serve every host and compiler, so an engine's toolchain is not for it
    needs_weights: bool = False
    optional_needs: tuple[str, ...] = ()  #: stages whose outputs it reads if they are planned
    applies_to: Callable[[Axes], bool] = _every_variant  #: variants that it means something for
    is_needed: Callable[[Cell], bool] = _always  #: whether it is planned for a variant that it applies to
    own_toolchain: Callable[[Settings], str] = _default_toolchain  #: used when the variant's toolchain is not for it
    adds_toolchain: bool = False  #: it needs its own toolchain beside the variant's, which its program needs
    is_service: bool = (
        False  #: it runs until it is cancelled: no column of the matrix, never cached, ended with patience
    )
    has_program: bool = True  #: it runs a program of workers.llm, whose source is part of its identity
    observe: Callable[[Settings, Observed], Iterator[Measurement]] = _observe_nothing  #: measures its processes
    count_commands: Callable[[Settings], int] = _one_command  #: how many `commands` returns, without making them
    figure: Callable[[Medians, str], str] = _no_figure  #: what a passed cell shows, given the target; or empty


def model_flags(settings: Settings) -> list[str]:
    """Return the flags that name a model to a stage program."""
    model = settings["model"]
    return [
        f"--model={model['text']}",
        *([f"--revision={model['revision']}"] if model["revision"] else []),
        *(f"--override={key}={json.dumps(value)}" for key, value in sorted(model["overrides"].items())),
    ]


def text_flags(settings: Settings) -> list[str]:
    """Return the flag that gives a stage program another text than the one that ships with haloctl."""
    return [f"--text={path_of(settings['text'])}"] if settings["text"] else []


def workload_flags(settings: Settings) -> list[str]:
    """Return the flags that give a stage program all batch sizes and prompt lengths."""
    return [
        *("--batch", *map(str, settings["batch"])),
        *("--prompt-tokens", *map(str, settings["prompt_tokens"])),
    ]


def is_finetuned(cell: Cell) -> bool:
    """Return whether a variant's model is trained first."""
    return cell.variant.finetune != UNTUNED


def model_settings(cell: Cell) -> dict[str, Any]:
    """Return what a stage's settings say of the model that it reads; a tuned one is identified as an input."""
    if is_finetuned(cell):
        return {"text": TUNED_MODEL, "digest": "", "revision": None, "overrides": {}}
    return base_model_settings(cell.model)


def base_model_settings(model: Model) -> dict[str, Any]:
    """Return what settings say of a job's model."""
    return {
        "text": model.text,
        "digest": model.digest,
        "revision": model.revision,
        "overrides": dict(model.overrides),
    }


def program(name: str, *flags: str) -> Command:
    """Return the command of a stage program, run by the toolchain's interpreter."""
    return Command(("python", "-m", f"workers.llm.programs.{name}", *flags))


def memory_for(cell: Cell, bytes_per_parameter: float) -> int:
    """Return the memory of a process that holds the model, with the 1.5 GiB that torch and its tools always take."""
    return int(1.5 * GIB + bytes_per_parameter * cell.model.parameters)


def parallelism_settings(variant: Variant) -> dict[str, int]:
    """Return how a program is split over devices, as a stage's settings say it."""
    return {"tp": variant.tp, **({"pp": variant.pp} if variant.pp > 1 else {})}


def device_count(settings: Settings) -> int:
    """Return the number of devices that a program with such settings runs on."""
    return int(settings["tp"]) * int(settings.get("pp", 1))


def device_resources(cell: Cell, *, cpus: int = 1, memory_bytes: int = GIB, is_exclusive: bool = False) -> Resources:
    """Return a variant's devices with what its process takes of the node."""
    return Resources(
        cpus,
        memory_bytes,
        devices=cell.variant.device_count,
        device_kind=cell.variant.target,
        is_exclusive=is_exclusive,
    )


def needs_exclusive_node(cell: Cell) -> bool:
    """Return whether a measurement needs its node for itself: as the job says, or as its target requires."""
    exclusive = cell.spec.benchmark.exclusive
    return TARGETS[cell.variant.target].is_exclusive if exclusive is None else exclusive


def read_report(folder: Path, name: str) -> dict[str, Any]:
    """Return the report that a stage program wrote."""
    report: dict[str, Any] = json.loads((folder / OUTPUTS / name).read_text())
    return report


def wrong_numbers(message: str) -> Failure:
    """Return a failure that blames what was computed."""
    return Failure(FailureKind.WRONG_NUMBERS, message)


def cost_figure(medians: Medians, times_s: Sequence[str], memory_bytes: str) -> str:
    """Return a total time and a peak memory, `2.0 s, 0.5 GiB`; empty if one of the metrics is missing."""
    if not {*times_s, memory_bytes} <= medians.keys():
        return ""
    total_s = sum(medians[metric] for metric in times_s)
    return f"{format_number(total_s)} s, {medians[memory_bytes] / GIB:.1f} GiB"


def latency_figure(medians: Medians, target: str) -> str:
    """Return TTFT and ITL; empty if one of them is missing."""
    ttft_ms, itl_ms = medians.get("ttft_ms"), medians.get("itl_ms")
    return (
        "" if ttft_ms is None or itl_ms is None else f"TTFT {format_number(ttft_ms)} ms, ITL {format_number(itl_ms)} ms"
    )
