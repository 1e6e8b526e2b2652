"""What a program's entry points cost on the device at hand, and the limits of its cache."""

import time
from typing import Any

from workers.llm.serving.batching import CallCosts, CallShape
from workers.llm.serving.paged_program import PagedProgram
from workers.llm.serving.schedule import Capacity
from workers.llm.serving.step_inputs import idle_inputs

TIMED_CALLS = 3  #: of each entry point, after one that is not counted


def measure_costs(program: PagedProgram) -> dict[CallShape, float]:
    """Return what each entry point takes, in seconds: the least of some calls, since other load only ever adds.

    Where a program can sample at all, batch sizes at which it can't are left out.
    """
    sampled = {shape.batch for shape in program.shapes if shape.kind == "sample"}
    costs = {}
    for shape in program.shapes:
        if shape.kind != "sample" and (not sampled or shape.batch in sampled):
            inputs = idle_inputs(shape, program.table_blocks(shape))
            costs[shape] = min([_time(program, shape, inputs) for _ in range(TIMED_CALLS + 1)][1:])
    return costs


def _time(program: PagedProgram, shape: CallShape, inputs: dict[str, Any]) -> float:
    began = time.perf_counter()
    results = program.run(shape, **inputs)
    results.read("best_tokens" if shape.kind == "score" else "next_tokens")
    return time.perf_counter() - began


def capacity_of(program: PagedProgram, costs: CallCosts) -> Capacity:
    """Return the limits of a program's cache and calls."""
    return Capacity(
        block_tokens=program.program["block_tokens"],
        pool_blocks=program.pool_blocks - 1,
        max_rows=max(shape.batch for shape in costs.shapes("decode")),
        length=program.program["cache_length"],
        can_sample=any(shape.kind == "sample" for shape in program.shapes),
        step_tokens=max(shape.batch * shape.tokens for shape in costs.shapes("prefill")),
    )
