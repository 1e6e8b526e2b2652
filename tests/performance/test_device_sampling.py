"""What choosing tokens costs in a program, at a real vocabulary, against numpy on the host. `make bench` prints."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import iree.runtime
import numpy as np
import pytest
import torch
from iree.compiler import ir

from tests.integration.llm.test_export import compile_for_cpu
from workers.llm.export.fx_graphs import trace_graph
from workers.llm.export.heads import next_tokens
from workers.llm.export.lowering import lower
from workers.llm.export.sampling import sample
from workers.llm.export.tracing import ModuleImporter

pytestmark = pytest.mark.benchmark

VOCAB_SIZE, REPETITIONS = 128_256, 10


def build(folder: Path, batch: int) -> Any:
    """A module with the two ways of choosing, for logits in f16."""
    logits, real, whole = torch.zeros(batch, 1, VOCAB_SIZE).half(), torch.ones(batch), torch.ones(batch).long()
    importer = ModuleImporter()
    importer.add("greedy", trace_graph(lambda given: (next_tokens(given[0], given[1] > 0),), [logits, whole]))
    importer.add("sampled", trace_graph(lambda given: (sample(*given),), [logits, real, whole, real, whole]))
    lower(importer.module)
    for function in importer.module.body.operations:
        function.operation.attributes["sym_visibility"] = ir.StringAttr.get("public", importer.context)
    (folder / "outputs").mkdir()
    (folder / "outputs/model.mlir").write_text(str(importer.module))
    return iree.runtime.load_vm_flatbuffer_file(str(compile_for_cpu(folder, 1)), driver="local-task")


def median_ms(call: Callable[[], object]) -> float:
    times = []
    for _ in range(REPETITIONS + 1):
        began = time.perf_counter()
        call()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[1:])


@pytest.mark.parametrize("batch", [1, 16])
def test_choosing_tokens_on_the_device_against_the_host(tmp_path: Path, batch: int) -> None:
    module = build(tmp_path, batch)
    logits = np.random.default_rng(0).standard_normal((batch, 1, VOCAB_SIZE)).astype(np.float16)
    temperature, top_p = np.full(batch, 0.8, np.float32), np.full(batch, 0.9, np.float32)
    top_k, seeds = np.full(batch, 50), np.arange(batch)
    figures = {
        "greedy": median_ms(lambda: module.greedy(logits, seeds + 1).to_host()),
        "top_k 50, top_p 0.9": median_ms(lambda: module.sampled(logits, temperature, top_k, top_p, seeds).to_host()),
        "argmax in numpy": median_ms(lambda: logits.argmax(-1)),
        "sorted in numpy": median_ms(lambda: np.argsort(logits, axis=-1)),
    }
    costs = ", ".join(f"{name} {figure:.1f} ms" for name, figure in figures.items())
    print(f"\n{batch} rows of {VOCAB_SIZE} logits in f16, copied to the device: {costs}")
    assert module.greedy(logits, seeds + 1).to_host().tolist() == logits[:, 0].argmax(-1).tolist()
