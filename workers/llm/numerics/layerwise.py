"""Comparing a tapped program with the reference layer by layer, and within a layer module by module."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from workers.llm.export.taps import INPUT, TapOutput, recording, tapped_modules
from workers.llm.numerics.layer_errors import ModuleErrors, PhaseError, relative_rms, split_phases
from workers.llm.numerics.tapped_run import TappedRun
from workers.llm.sharding.plan import Sharding
from workers.llm.sharding.shard_regions import shard_region_of
from workers.llm.sharding.split_styles import SplitRule
from workers.llm.weights.archive_layout import LAYER

Rows = list[torch.Tensor]  #: [length + steps, width] of each row


class LayerwiseReference:
    """The reference with its layers fed with what a program fed them: a transformers model in float32, eager."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model.eval()
        names = (match["layer"] for name, _ in model.named_parameters() if (match := LAYER.match(name)))
        self.layers = list(dict.fromkeys(names))
        self.embeddings = self._name_of(model.get_input_embeddings())  # type: ignore[operator]
        self.head = self._name_of(model.get_output_embeddings())  # type: ignore[operator]

    def _name_of(self, module: nn.Module) -> str:
        return str(next(name for name, part in self._model.named_modules() if part is module))

    @torch.inference_mode()
    def compare_layers(self, run: TappedRun) -> list[ModuleErrors]:
        """Return the errors of the embeddings, of each layer, and of what makes logits of the last hidden state."""
        parts = {name: self._model.get_submodule(name) for name in self.layers}
        first = {INPUT: parts[self.layers[0]]}
        fed: dict[str, Rows] = {}
        alone: dict[str, Rows] = {}
        for row, tokens in enumerate(run.tokens):
            with recording(parts, first) as values:
                self._logits(tokens)
            _append(alone, values)
            with self._fed(run, row) as values:
                logits = self._logits(tokens)
            _append(fed, {**values, self.head: logits[run.lengths[row] - 1 :]})
        return [*self._boundaries(run, fed, alone), self._head(run, fed[self.head])]

    @torch.inference_mode()
    def compare_modules(self, layer: str, run: TappedRun, states: TappedRun, sharding: Sharding) -> list[ModuleErrors]:
        """Return the errors of a layer's modules in the order in which they run, each rank's by itself.

        `run` has the outputs of the modules, `states` the hidden states around the layers.
        """
        parts = {
            f"{layer}.{name}": part
            for name, part in tapped_modules(self._model.get_submodule(layer), lambda _: False).items()
        }
        outputs: dict[str, Rows] = {}
        for row, tokens in enumerate(run.tokens):
            with self._fed(states, row), recording(parts) as values:
                self._logits(tokens)
            _append(outputs, values)
        return [
            errors
            for name, expected in outputs.items()
            for errors in _module_errors(name, expected, run, sharding, self._weight(name))
        ]

    def _weight(self, module: str) -> tuple[str, tuple[int, ...]] | None:
        """Return the name and the shape of the matrix of a linear module; None for other modules."""
        weight = getattr(self._model.get_submodule(module), "weight", None)
        return (f"{module}.weight", tuple(weight.shape)) if weight is not None and weight.dim() == 2 else None

    def _logits(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._model(input_ids=tokens[None], use_cache=False).logits[0]
        return logits

    @contextmanager
    def _fed(self, run: TappedRun, row: int) -> Iterator[dict[str, torch.Tensor]]:
        """Feed each layer with the program's hidden state, and record what comes out of it."""
        expected: dict[str, torch.Tensor] = {}
        states = {tap.module: rows[row][None] for tap, rows in run.values.items()}

        def feed(_module: nn.Module, args: Any, kwargs: Any) -> Any:
            expected[INPUT] = args[0] if args else kwargs["hidden_states"]
            if args:
                return (states[INPUT], *args[1:]), kwargs
            return args, {**kwargs, "hidden_states": states[INPUT]}

        def replace_output(name: str) -> Callable[..., Any]:
            def hook(_module: nn.Module, _inputs: Any, output: Any) -> Any:
                expected[name] = output[0] if isinstance(output, tuple) else output
                return (states[name], *output[1:]) if isinstance(output, tuple) else states[name]

            return hook

        layers = [self._model.get_submodule(name) for name in self.layers]
        hooks = [layers[0].register_forward_pre_hook(feed, with_kwargs=True)]
        hooks += [
            layer.register_forward_hook(replace_output(name)) for name, layer in zip(self.layers, layers, strict=True)
        ]
        try:
            yield expected
        finally:
            for hook in hooks:
                hook.remove()

    def _boundaries(self, run: TappedRun, fed: Mapping[str, Rows], alone: Mapping[str, Rows]) -> Iterator[ModuleErrors]:
        before: dict[str, torch.Tensor] | None = None
        for name in (INPUT, *self.layers):
            measured, expected, drifted = (
                split_phases(rows, run.lengths) for rows in (run.values[TapOutput(name)], fed[name], alone[name])
            )
            phases = {}
            for phase in measured:
                added = expected[phase] - before[phase] if before else expected[phase]
                phases[phase] = PhaseError(
                    relative_rms(measured[phase] - expected[phase], added),
                    relative_rms(measured[phase] - drifted[phase], drifted[phase]),
                )
            yield ModuleErrors(self.embeddings if name == INPUT else name, phases)
            before = measured

    def _head(self, run: TappedRun, expected: Rows) -> ModuleErrors:
        """Return the error of the logits, of which a constant means nothing, at the last token of each call."""
        parts = {"prefill": slice(0, 1), **({"decode": slice(1, None)} if len(run.logits[0]) > 1 else {})}
        phases = {}
        for phase, at in parts.items():
            measured, wanted = (
                torch.cat([row[at] - row[at].mean(-1, keepdim=True) for row in rows]) for rows in (run.logits, expected)
            )
            phases[phase] = PhaseError(relative_rms(measured - wanted, wanted))
        return ModuleErrors(self.head, phases)


def _append(rows: dict[str, Rows], values: Mapping[str, torch.Tensor]) -> None:
    for name, value in values.items():
        whole = value if value.dim() == 2 else value[0] if value.shape[0] == 1 else value
        rows.setdefault(name, []).append(whole.flatten(1))


def _module_errors(
    name: str, expected: Rows, run: TappedRun, sharding: Sharding, weight: tuple[str, tuple[int, ...]] | None
) -> Iterator[ModuleErrors]:
    taps = sorted((tap for tap in run.values if tap.module == name), key=lambda tap: tap.rank or 0)
    if not taps:
        return
    parts = [split_phases(run.values[tap], run.lengths) for tap in taps]
    wanted = split_phases(expected, run.lengths)
    rule = sharding.rules.get(weight[0]) if weight else None
    if rule is SplitRule.COLUMNS:  # each rank has an addend
        sums = {phase: sum_of([part[phase] for part in parts]) for phase in wanted}
        yield ModuleErrors(name, {phase: _error(sums[phase], wanted[phase]) for phase in wanted})
        return
    for tap, part in zip(taps, parts, strict=True):
        columns = _columns(sharding, weight, tap.rank or 0) if rule and len(taps) > 1 else None
        mine = {phase: wanted[phase] if columns is None else wanted[phase][:, columns] for phase in wanted}
        if all(mine[phase].shape == part[phase].shape for phase in wanted):
            phases = {phase: _error(part[phase], mine[phase]) for phase in wanted}
            yield ModuleErrors(name, phases, tap.rank if len(taps) > 1 else None)


def sum_of(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the sum of the ranks' parts."""
    return torch.stack(list(parts)).sum(0)


def _columns(sharding: Sharding, weight: tuple[str, tuple[int, ...]] | None, rank: int) -> torch.Tensor | None:
    """Return the columns of a linear module's output that a rank computes: the rows that it has of the weight."""
    region = shard_region_of(sharding, *weight, rank) if weight else None
    return None if region is None else torch.cat([torch.arange(*segment) for segment in region.segments])


def _error(measured: torch.Tensor, expected: torch.Tensor) -> PhaseError:
    return PhaseError(relative_rms(measured - expected, expected))
