"""How far each decoder layer and module of a program is from the reference, given the program's own input. Pure.

The error of a layer is the distance between what the reference makes of the layer's input in the program and what the
program makes of it, relative to what the layer adds; so an error has no part in the layers behind it. The drift is the
distance from the reference's own hidden state, which grows from layer to layer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from workers.llm.numerics.distances import finite_or_none

#: The largest error of a layer or module of a right program, by precision: at least three times what layers of the
#: shipped model have at tp 1 and 2 (6e-7, 1.4e-3, 1.7e-2, 3.1e-2, 5.7e-2, 2.3e-3). Low-bit weights are the reference's,
#: too; how their inputs are rounded is part of the error.
LIMITS = {"f32": 1e-4, "f16": 3e-2, "bf16": 1e-1, "fp8": 0.15, "int8": 0.2, "int4": 3e-2}


@dataclass(frozen=True)
class PhaseError:
    """The error and the drift in one phase; None: not finite."""

    error: float | None
    drift: float | None = None


@dataclass(frozen=True)
class ModuleErrors:
    """The errors of a layer, or of a module as one rank has it."""

    module: str  #: full name
    phases: Mapping[str, PhaseError]
    rank: int | None = None  #: None: of all ranks together

    def worst(self) -> tuple[str, float]:
        """Return the phase with the largest error, and that error; infinite where it is not finite."""
        errors = {phase: values.error for phase, values in self.phases.items()}
        return max(
            ((phase, float("inf") if error is None else error) for phase, error in errors.items()),
            key=lambda pair: pair[1],
        )

    def to_json(self) -> dict[str, Any]:
        """Return it for the report."""
        phases = {phase: asdict(values) for phase, values in self.phases.items()}
        return {"module": self.module, **({} if self.rank is None else {"rank": self.rank}), **phases}


def relative_rms(difference: torch.Tensor, scale: torch.Tensor) -> float | None:
    """Return the root of the mean squares of one tensor relative to that of another; None when it is not finite."""
    return finite_or_none(difference.double().square().mean().sqrt() / scale.double().square().mean().sqrt())


def first_beyond(errors: Iterable[ModuleErrors], limit: float) -> ModuleErrors | None:
    """Return the first whose error is beyond a limit in any phase."""
    return next((candidate for candidate in errors if candidate.worst()[1] > limit), None)


def split_phases(rows: Sequence[torch.Tensor], lengths: Sequence[int]) -> dict[str, torch.Tensor]:
    """Return the positions of all rows' prompts, and those of all decoded tokens, if any: [positions, width]."""
    prompts = [row[:length] for row, length in zip(rows, lengths, strict=True)]
    decoded = [row[length:] for row, length in zip(rows, lengths, strict=True)]
    return {"prefill": torch.cat(prompts), **({"decode": torch.cat(decoded)} if len(decoded[0]) else {})}
