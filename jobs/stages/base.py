"""What a stage is: pure functions from settings to commands, and from an output folder to an outcome."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.state import Failure, FailureKind
from jobs.targets import TARGETS
from jobs.task import GIB, Command, Outcome, Resources
from jobs.toolchains import DEFAULT, Toolchain
from jobs.variants import Variant

if TYPE_CHECKING:
    from jobs.spec import JobSpec

Settings = Mapping[str, Any]

OUTPUTS = "outputs"  #: where an attempt's commands write, below its working folder
INPUTS = "inputs"  #: where the outputs of what it needs lie: inputs/<stage>/<file>


@dataclass(frozen=True)
class Model:
    """What was found out about a job's model before planning."""

    text: str  #: as the job file names it; a folder made absolute
    name: str
    digest: str  #: of everything in it that results depend on
    parameters: int
    has_weights: bool = True
    is_quantized: bool = False  #: its weights are in low precision as they lie there
    revision: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    more: tuple["Model", ...] = ()  #: the job's other models

    @staticmethod
    def of(facts: Mapping[str, Any]) -> "Model":
        """From what `asdict` made of it."""
        return Model(**{**facts, "more": tuple(Model.of(one) for one in facts.get("more", ()))})

    @property
    def all(self) -> tuple["Model", ...]:
        """Each of the job's models."""
        return (self, *self.more)

    @property
    def called(self) -> tuple[str, ...]:
        """What a job file may call it."""
        return self.text, self.name

    def named(self, name: str) -> "Model":
        """One of the job's models, by its name; by itself."""
        return replace(next(one for one in self.all if one.name == name), more=())


@dataclass(frozen=True)
class Cell:
    """One variant of a job, as a stage sees it."""

    spec: "JobSpec"
    variant: Variant
    model: Model


def _always(cell: Cell) -> bool:
    return True


def _default_toolchain(settings: Settings) -> str:
    return DEFAULT


@dataclass(frozen=True)
class Stage:
    """One kind of work."""

    name: str
    title: str  #: the column's head in the matrix
    needs: tuple[str, ...]  #: stages whose outputs it reads
    settings: Callable[[Cell], dict[str, Any]]
    commands: Callable[[Settings, Toolchain], list[Command]]
    resources: Callable[[Cell], Resources]
    parse: Callable[[Settings, Path], Outcome]  #: reads outputs/ of a working folder after its commands succeeded
    artifacts: Mapping[str, str] = field(default_factory=dict)  #: suffix of an output's name -> kind of artifact
    version: int = 1  #: raised when the same settings no longer mean the same outputs
    is_measured: bool = False  #: what it makes are measurements of a machine: never taken from the cache by itself
    needs_weights: bool = False
    may_need: tuple[str, ...] = ()  #: stages whose outputs it reads where they are planned
    is_for: Callable[[Cell], bool] = _always  #: which of the variants it is planned for
    #: what it runs under when the variant's toolchain is not for it
    own_toolchain: Callable[[Settings], str] = _default_toolchain
    has_program: bool = True  #: it runs a program of workers.llm, whose source is part of its identity


def model_flags(settings: Settings) -> list[str]:
    """The flags that name a model to a stage program."""
    model = settings["model"]
    return [
        f"--model={model['text']}",
        *([f"--revision={model['revision']}"] if model["revision"] else []),
        *(f"--override={key}={json.dumps(value)}" for key, value in sorted(model["overrides"].items())),
    ]


def workload_flags(settings: Settings) -> list[str]:
    """The flags that give a stage program all batch sizes and prompt lengths."""
    return [
        *("--batch", *map(str, settings["batch"])),
        *("--prompt-tokens", *map(str, settings["prompt_tokens"])),
    ]


def model_settings(model: Model) -> dict[str, Any]:
    """What a stage's settings keep of a model."""
    return {
        "text": model.text,
        "digest": model.digest,
        "revision": model.revision,
        "overrides": dict(model.overrides),
    }


def program(name: str, *flags: str) -> Command:
    """A stage program, run by the toolchain's interpreter."""
    return Command(("python", "-m", f"workers.llm.{name}", *flags))


def memory_for(cell: Cell, bytes_per_parameter: float) -> int:
    """Memory of a process that holds so much of the model, with the 1.5 GiB that torch and its tools take anyhow."""
    return int(1.5 * GIB + bytes_per_parameter * cell.model.parameters)


def parallelism(variant: Variant) -> dict[str, int]:
    """What a stage's settings keep of how a program is split over devices."""
    return {"tp": variant.tp, **({"pp": variant.pp} if variant.pp > 1 else {})}


def devices_of(settings: Settings) -> int:
    """How many devices a program of such settings runs on."""
    return int(settings["tp"]) * int(settings.get("pp", 1))


def on_devices(cell: Cell, *, cpus: int = 1, memory_bytes: int = GIB, is_quiet: bool = False) -> Resources:
    """A variant's devices, and what its process takes of the node."""
    variant = cell.variant
    return Resources(cpus, memory_bytes, devices=variant.device_count, device_kind=variant.target, is_quiet=is_quiet)


def wants_quiet(cell: Cell) -> bool:
    """Whether a measurement has its node to itself: as the job says, else as its target needs it."""
    asked = cell.spec.benchmark.quiet
    return TARGETS[cell.variant.target].is_quiet if asked is None else asked


def report(folder: Path, name: str) -> dict[str, Any]:
    """The report that a stage program wrote."""
    found: dict[str, Any] = json.loads((folder / OUTPUTS / name).read_text())
    return found


def wrong_numbers(message: str) -> Failure:
    """A failure that blames what was computed."""
    return Failure(FailureKind.WRONG_NUMBERS, message)
