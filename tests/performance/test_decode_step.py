"""A decode step with a long KV cache: against the same without writing to it, where a copy of the cache would be seen,
and in a short context, which costs what it costs in a short cache.

`make bench` prints. The stream IR is looked at in tests/integration/llm/test_export.py.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.llm.test_export import compile_for_cpu, run
from tests.integration.models import make_checkpoint
from workers.llm.runtime.iree_session import IreeSession

pytestmark = pytest.mark.benchmark

POSITIONS = 8192
STEPS = 20
SHORT, LONG = 64, 2048  #: a context, and the capacity of a row
SIZES: dict[str, Any] = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
#: export, with a cache that is read and never written
READ_ONLY = """
from workers.llm.export import kv_cache
from workers.llm.programs import export

def update(cache, key, value, *_, **__):
    if cache.context is None:
        return key, value
    return cache._all_slots(cache.key), cache._all_slots(cache.value)

kv_cache.SlotCache.update = update
export.check_equivalence = lambda *_: None  # what writes nothing is another model
export.main()
"""


def build(
    folder: Path, model: Path, program: list[str], tp: int, *more: str, positions: int = POSITIONS, batch: int = 1
) -> IreeSession:
    folder.mkdir()
    argv = [sys.executable, *program, "--model", str(model), "--precision", "f32", "--tp", str(tp)]
    argv += ["--cache-length", str(positions), "--batch", str(batch), "--prompt-tokens", "16", *more]
    done = run(argv, folder)
    assert done.returncode == 0, done.stderr
    return IreeSession(folder / "outputs/config.json", compile_for_cpu(folder, tp), ["local-task"] * tp)


def step_ms(session: IreeSession, position: int = POSITIONS - 1, batch: int = 1) -> float:
    tokens, positions = torch.full((batch, 1), 5), torch.full((batch,), position)
    begin = time.perf_counter()
    session.decode(tokens, positions)
    return 1e3 * (time.perf_counter() - begin)


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_a_step_with_a_long_cache_against_one_that_does_not_write(tmp_path: Path, tp: int) -> None:
    model = make_checkpoint(tmp_path / "model", "llama", max_position_embeddings=POSITIONS, **SIZES)
    sessions = {
        "reads alone": build(tmp_path / "reads", model, ["-c", READ_ONLY], tp),
        "contiguous": build(tmp_path / "contiguous", model, ["-m", "workers.llm.programs.export"], tp),
        "paged": build(tmp_path / "paged", model, ["-m", "workers.llm.programs.export"], tp, "--block-tokens", "16"),
    }
    for session in sessions.values():
        session.prefill(torch.full((1, 16), 7), torch.tensor([16]))
        step_ms(session)
    samples = [{name: step_ms(session) for name, session in sessions.items()} for _ in range(STEPS)]
    medians = {name: statistics.median(sample[name] for sample in samples) for name in sessions}
    bare = medians["reads alone"]
    figures = ", ".join(f"{name} {median:.1f} ms ({median / bare:.2f})" for name, median in medians.items())
    print(f"\na decode step at {POSITIONS} positions, tp {tp}: {figures}")


@pytest.mark.parametrize("flags", [[], ["--block-tokens", "16"]], ids=["contiguous", "paged"])
def test_a_short_context_costs_the_same_in_a_long_cache(tmp_path: Path, flags: list[str]) -> None:
    model = make_checkpoint(tmp_path / "model", "llama", max_position_embeddings=LONG, **SIZES)
    sessions = {
        capacity: build(
            tmp_path / str(capacity),
            model,
            ["-m", "workers.llm.programs.export"],
            1,
            *(str(capacity - SHORT + 16), *flags),  # a prompt whose generation ends at the capacity
            positions=capacity,
            batch=4,
        )
        for capacity in (2 * SHORT, LONG)
    }
    for session in sessions.values():
        session.prefill(torch.full((4, 16), 7), torch.full((4,), 16))
        step_ms(session, 40, batch=4)
    samples = [{name: step_ms(session, 40, batch=4) for name, session in sessions.items()} for _ in range(10 * STEPS)]
    short, long = (statistics.median(sample[name] for sample in samples) for name in sessions)
    print(f"\na decode step of context {SHORT}: capacity {2 * SHORT} {short:.2f} ms, {LONG} {long:.2f} ms")
    assert long < 1.2 * short
