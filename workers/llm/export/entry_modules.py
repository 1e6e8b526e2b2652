"""The functions of a program as torch modules over a transformers model."""

from typing import Any

import torch
from torch import nn

from workers.llm.export.bounds import BoundedRows, Bounds
from workers.llm.export.entry_points import EntryPoint
from workers.llm.export.heads import next_tokens, score
from workers.llm.export.kv_cache import CacheLayout, SlotCache
from workers.llm.export.sampling import sample


class EntryPointModule(nn.Module):
    """The whole model as the function of one entry point, with its arguments and results."""

    def __init__(self, model: nn.Module, entry: EntryPoint, layout: CacheLayout) -> None:
        super().__init__()
        self.model = model
        self.entry = entry
        self.layout = layout
        config: Any = model.config
        self.bounds = Bounds(layout, config.vocab_size, entry.tokens, entry.context)

    def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the results of the entry point; a row that is out of bounds has none (`heads`)."""
        given = dict(zip(self.entry.argument_names(self.layout), arguments, strict=True))
        starts = given.get("starts", given.get("positions"))
        rows = self.bounds.apply(given["tokens"], given.get("lengths"), starts, given.get("block_table"))
        logits = self._logits(rows)
        if self.entry.kind == "score":
            return score(logits, given["targets"], rows.is_token, rows.is_valid)
        logits = torch.where(rows.is_valid[:, None, None], logits, float("nan"))
        return logits, next_tokens(logits, rows.is_valid)

    def _logits(self, rows: BoundedRows) -> torch.Tensor:
        decoder = self.model.get_submodule(self.model.base_model_prefix)  # type: ignore[arg-type]
        wants_all = self.entry.kind in ("decode", "score")
        last = None if wants_all else rows.counts - 1
        hook = decoder.register_forward_hook(lambda _module, _arguments, output: _select_last(output, last))
        try:
            return self.model(  # type: ignore[no-any-return]
                input_ids=rows.tokens,
                position_ids=rows.positions,
                past_key_values=self._cache(rows),
                use_cache=True,
            ).logits
        finally:
            hook.remove()

    def _cache(self, rows: BoundedRows) -> SlotCache:
        batch, layout, context = self.entry.batch, self.layout, self.entry.context
        written = layout.places(rows.positions, batch, rows.table, rows.is_token)
        attended = None
        if rows.table is not None and context is not None:
            attended = layout.places(torch.arange(context)[None], batch, rows.table)
        return SlotCache(written, batch, layout, context, attended, positions=rows.positions)


class SamplerModule(nn.Module):
    """Choosing tokens from the logits of an earlier call."""

    def forward(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the next tokens."""
        return (sample(*arguments),)


def entry_module(model: nn.Module, entry: EntryPoint, layout: CacheLayout) -> nn.Module:
    """Return the function of an entry point as a module, whose submodule `model` is the model if it runs it."""
    return EntryPointModule(model, entry, layout) if entry.has_model else SamplerModule()


def _select_last(output: Any, last: torch.Tensor | None) -> Any:
    """Keep the hidden state of each row's last position alone: no other needs logits."""
    if last is not None:
        hidden = output.last_hidden_state
        output.last_hidden_state = hidden[torch.arange(hidden.shape[0]), last][:, None]
    return output
