"""One run of a tapped program over a few rows of text: a prefill, and decode steps with the text's own tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from workers.llm.export.taps import TapOutput
from workers.llm.runtime.iree_session import IreeSession, to_host


@dataclass(frozen=True)
class TappedRun:
    """What a program computed for each row, position by position."""

    tokens: list[torch.Tensor]  #: [length + steps] of each row
    lengths: list[int]  #: of the rows' prompts
    logits: list[torch.Tensor]  #: [1 + steps, V] of each row: after its prompt and after each further token
    values: Mapping[TapOutput, list[torch.Tensor]]  #: [length + steps, width] of each row


def run_tapped(session: IreeSession, taps: Sequence[TapOutput], windows: torch.Tensor, steps: int) -> TappedRun:
    """Run rows [B, T + steps] through a program with one prefill, each row a little shorter than the last."""
    batch, size = windows.shape[0], windows.shape[1] - steps
    lengths = size - torch.arange(batch) * size // (2 * batch)
    calls = [session.call(session.prefill_name(windows[:, :size]), windows[:, :size], lengths)]
    for step in range(steps):
        positions = lengths + step
        name = session.decode_name(positions)
        calls.append(session.call(name, windows.gather(1, positions[:, None]), positions))
    ends = lengths.tolist()
    return TappedRun(
        [windows[row, : end + steps] for row, end in enumerate(ends)],
        ends,
        _by_row([to_host(call["logits"]) for call in calls], [1] * batch),
        {tap: _by_row([_by_position(to_host(call[tap.name]), batch) for call in calls], ends) for tap in taps},
    )


def _by_row(values: Sequence[torch.Tensor], ends: Sequence[int]) -> list[torch.Tensor]:
    """Return for each row its positions in the first of the values [B, T, width], up to its end, and in all others."""
    first, *others = values
    return [torch.cat([first[row, :end], *(value[row] for value in others)]) for row, end in enumerate(ends)]


def _by_position(value: torch.Tensor, batch: int) -> torch.Tensor:
    """Return a tapped value [B, T, ...] or [B * T, ...] as [B, T, width]."""
    rows = value if value.shape[0] == batch else value.reshape(batch, -1, *value.shape[1:])
    return rows.flatten(2) if rows.dim() > 2 else rows[:, None]
