"""Comparing a program in low precision with the same quantized weights in float32: does it compute what they say?"""

from collections.abc import Iterator
from typing import Any

import torch

from workers.llm.models.model_source import LocalModel
from workers.llm.models.quantized_layout import QuantizedLayout
from workers.llm.numerics.comparison import ReferenceResults, RunnerResults
from workers.llm.numerics.distances import compare_logits, concatenate, finite_or_none
from workers.llm.numerics.quantized_reference import QuantizedReference
from workers.llm.numerics.scale_errors import ScoredRow, worst_scale

GRADIENT_ROWS = 32  #: the most rows of which gradients are computed


def compare_quantized(
    model: LocalModel, layout: QuantizedLayout, results: ReferenceResults, measured: RunnerResults
) -> dict[str, Any]:
    """Return the entries of the report; `model` holds the weights, and `layout` is the program's."""
    reference = QuantizedReference(model, layout)
    rows = list(scored_rows(results, measured))
    print(f"quantized reference: {len(rows)} rows", flush=True)
    distances = []
    differences: list[torch.Tensor] = []
    for row in rows:
        with torch.no_grad():
            logits = reference.logits(row.prompt, row.continuation)
        distances.append(compare_logits(logits, row.logits))
        differences = [*differences, row.logits - logits][-GRADIENT_ROWS:]
    print("quantized reference: scales", flush=True)
    worst = worst_scale(reference, rows[-GRADIENT_ROWS:], torch.cat(differences))
    return {
        "quantized_kl_mean": finite_or_none(concatenate(distances).kl.mean()),
        "scale_error_percent": worst.percent,
        "scale_error_module": worst.module,
    }


def scored_rows(results: ReferenceResults, measured: RunnerResults) -> Iterator[ScoredRow]:
    """Yield each row of the trials, then the windows whose logits were kept."""
    for trial, logits in zip(results.trials, measured.trials, strict=True):
        for row, length in enumerate(trial.lengths.tolist()):
            yield ScoredRow(trial.prompts[row, :length], trial.greedy[row], logits[row])
    first = results.windows.shape[1] - results.losses.shape[1]
    for window, window_logits in zip(results.windows, measured.windows, strict=False):
        yield ScoredRow(window[:first], window[first:-1], window_logits)
