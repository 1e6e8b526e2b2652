"""The arrays that a call of an entry point takes, from the sequences that are its rows."""

from typing import Any

import numpy as np

from workers.llm.serving.batching import CallShape
from workers.llm.serving.blocks import NOBODYS_BLOCK
from workers.llm.serving.schedule import Call
from workers.llm.serving.sequences import TokenSequence


def inputs_of(call: Call, table_blocks: int) -> dict[str, Any]:
    """Return an entry point's inputs by name; rows that pad the batch compute one token of nobody's."""
    shape = call.shape
    starts = np.zeros(shape.batch, np.int64)
    lengths = np.ones(shape.batch, np.int64)
    tokens = np.zeros((shape.batch, shape.tokens), np.int64)
    targets = np.zeros((shape.batch, shape.tokens), np.int64)
    table = np.full((shape.batch, table_blocks), NOBODYS_BLOCK, np.int64)
    for row, (sequence, count) in enumerate(zip(call.rows, call.counts, strict=True)):
        start = sequence.cached
        starts[row], lengths[row] = start, count
        tokens[row, :count] = sequence.tokens[start : start + count]
        blocks = sequence.blocks[:table_blocks]
        table[row, : len(blocks)] = blocks
        if shape.kind == "score":
            targets[row, :count] = sequence.tokens[start + 1 : start + count + 1]
    return {
        "tokens": tokens,
        "lengths": lengths,
        "starts": starts,
        "positions": starts,
        "targets": targets,
        "block_table": table,
    }


def sampling_inputs(rows: tuple[TokenSequence, ...], batch: int) -> dict[str, Any]:
    """Return the inputs that say how each row's next token is chosen; rows that pad the batch get the likeliest."""
    temperature, top_p = np.zeros(batch, np.float32), np.ones(batch, np.float32)
    top_k, seeds = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
    for row, sequence in enumerate(rows):
        options = sequence.options
        temperature[row], top_k[row], top_p[row] = options.temperature, options.top_k, options.top_p
        seeds[row] = sequence.step_seed
    return {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seeds": seeds}


def idle_inputs(shape: CallShape, table_blocks: int) -> dict[str, Any]:
    """Return inputs with which a call works as hard as it can, on nobody's block."""
    full = np.full(shape.batch, shape.tokens, np.int64)
    last = np.full(shape.batch, max(shape.context - shape.tokens, 0), np.int64)
    return inputs_of(Call(shape, (), ()), table_blocks) | {"lengths": full, "starts": last, "positions": last}
