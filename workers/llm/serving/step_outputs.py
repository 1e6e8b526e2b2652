"""Calling an entry point for some sequences, and what it says of each of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.llm.serving.batching import CallShape
from workers.llm.serving.paged_program import PagedProgram, Results
from workers.llm.serving.schedule import Call
from workers.llm.serving.sequences import Output, TokenLogprob
from workers.llm.serving.step_inputs import inputs_of, sampling_inputs


def compute(program: PagedProgram, call: Call) -> list[Output]:
    """Call the program; return the next token of each row, or the log probabilities of scored ones."""
    results = program.run(call.shape, **inputs_of(call, program.table_blocks(call.shape)))
    return _scored(call, results) if call.shape.kind == "score" else _chosen(program, call, results)


def _chosen(program: PagedProgram, call: Call, results: Results) -> list[Output]:
    options = [sequence.options for sequence in call.rows]
    if any(option.temperature > 0 for option in options):
        shape = CallShape("sample", call.shape.batch, 1, 0)
        inputs = sampling_inputs(call.rows, call.shape.batch)
        chosen = program.run(shape, logits=results.buffer("logits"), **inputs)
    else:
        chosen = results
    tokens = [int(token) for token in chosen.read("next_tokens")[: len(options)]]
    if all(option.logprobs is None for option in options):
        return [Output(token) for token in tokens]
    logits = results.read("logits")
    return [
        Output(token, logprob=None if option.logprobs is None else logprob_of(row.reshape(-1), token, option.logprobs))
        for token, option, row in zip(tokens, options, logits, strict=False)
    ]


def logprob_of(logits: NDArray[Any], token: int, count: int) -> TokenLogprob:
    """Return a token's log probability, with those of the likeliest tokens."""
    wide = logits.astype(np.float64)
    logprobs = wide - wide.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    best = np.argpartition(-logprobs, min(count, len(logprobs) - 1))[:count] if count else np.empty(0, np.int64)
    best = best[np.argsort(-logprobs[best], kind="stable")]
    return TokenLogprob(float(logprobs[token]), tuple((int(index), float(logprobs[index])) for index in best))


def _scored(call: Call, results: Results) -> list[Output]:
    logprobs, tokens, best = (results.read(name) for name in ("logprobs", "best_tokens", "best_logprobs"))
    return [
        Output(
            None,
            prompt_logprobs=tuple(
                TokenLogprob(float(logprobs[row, at]), ((int(tokens[row, at]), float(best[row, at])),))
                for at in range(count)
            ),
        )
        for row, count in enumerate(call.counts)
    ]
