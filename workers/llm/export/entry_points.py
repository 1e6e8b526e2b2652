"""The functions of a program as torch modules: prefill and decode over a transformers model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from workers.llm.export.bounds import Bounds
from workers.llm.export.kv_cache import CacheLayout, SlotCache


@dataclass(frozen=True)
class EntryPoint:
    """One function of the program, for one batch size: the prefill of a prompt bucket, or a decode step."""

    kind: str  #: "prefill" or "decode"
    batch: int
    tokens: int  #: that one call takes for each row: the bucket, or 1

    @property
    def name(self) -> str:
        """Name of the function in the module."""
        bucket = f"_t{self.tokens}" if self.kind == "prefill" else ""
        return f"{self.kind}_bs{self.batch}{bucket}"

    @property
    def second_argument(self) -> str:
        """Name of the second argument: `lengths` of the prompts in a prefill, `positions` of the decoded tokens."""
        return "lengths" if self.kind == "prefill" else "positions"

    def arguments(self, layout: CacheLayout) -> dict[str, tuple[int, ...]]:
        """Return the arguments' shapes by name, in order; all are int64.

        `block_table` lists the blocks of each row, first to last. A prefill writes its whole bucket, so every block of
        the bucket must belong to the row.
        """
        table = {} if layout.block_tokens is None else {"block_table": (self.batch, layout.blocks)}
        return {"tokens": (self.batch, self.tokens), self.second_argument: (self.batch,), **table}


def entry_points(batch_sizes: Sequence[int], prompt_tokens: Sequence[int]) -> list[EntryPoint]:
    """Return all functions of a program, prefills first."""
    prefills = [EntryPoint("prefill", batch, tokens) for batch in batch_sizes for tokens in prompt_tokens]
    return [*prefills, *(EntryPoint("decode", batch, 1) for batch in batch_sizes)]


class EntryPointModule(nn.Module):
    """The whole model as the function of one entry point: tokens and lengths or positions in, logits out."""

    def __init__(self, model: nn.Module, entry: EntryPoint, layout: CacheLayout, slots: int) -> None:
        super().__init__()
        self.model = model
        self.entry = entry
        self.layout = layout
        config: Any = model.config
        bucket = entry.tokens if entry.kind == "prefill" else None
        self.bounds = Bounds(layout, config.vocab_size, bucket, slots // (layout.block_tokens or 1))

    def forward(self, tokens: torch.Tensor, second: torch.Tensor, table: torch.Tensor | None = None) -> torch.Tensor:
        """Return the logits `[batch, 1, vocab]` of each row's last token; NaN for a row that is out of bounds."""
        tokens, second, table, is_valid = self.bounds.apply(tokens, second, table)
        if self.entry.kind == "decode":
            logits = self._logits(tokens, second[:, None], None, table)
        else:
            logits = self._logits(tokens, torch.arange(self.entry.tokens)[None], second - 1, table)
        return torch.where(is_valid[:, None, None], logits, float("nan"))

    def _logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, last: torch.Tensor | None, table: torch.Tensor | None
    ) -> torch.Tensor:
        decoder = self.model.get_submodule(self.model.base_model_prefix)  # type: ignore[arg-type]
        batch, layout = self.entry.batch, self.layout
        rows = layout.places(positions, batch, table)
        is_decode = self.entry.kind == "decode"
        gathers = is_decode and table is not None
        all_rows = layout.places(torch.arange(layout.capacity)[None], batch, table) if gathers else None
        cache = SlotCache(rows, batch, layout, is_decode, all_rows, positions=positions)
        hook = decoder.register_forward_hook(lambda _module, _arguments, output: _select_last(output, last))
        try:
            return self.model(  # type: ignore[no-any-return]
                input_ids=tokens,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).logits
        finally:
            hook.remove()


def _select_last(output: Any, last: torch.Tensor | None) -> Any:
    """Keep the hidden state of each row's last position alone: no other needs logits."""
    if last is not None:
        hidden = output.last_hidden_state
        output.last_hidden_state = hidden[torch.arange(hidden.shape[0]), last][:, None]
    return output
