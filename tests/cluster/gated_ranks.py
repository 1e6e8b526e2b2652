"""The torch engine's benchmark behind a gate: its ranks compute together until a test lets them go on.

After `register`, a benchmark with a `gate` in its settings runs this program in place of its own:
`python -m tests.cluster.gated_ranks FOLDER ...`, with all arguments of the real one.
"""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.engines import ENGINES
from jobs.stages.base import Settings, Stage
from jobs.stages.torch_benchmark import TORCH_BENCHMARK
from jobs.task import Command
from jobs.toolchains import Toolchain

if TYPE_CHECKING:
    from workers.llm.torch_ranks.rank import TorchRank
    from workers.llm.torch_ranks.torch_session import TorchSession

PATIENCE = timedelta(seconds=10)  #: with a peer in a collective
TOKENS = 16


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """The stage's own benchmark, started behind the gate."""
    (real,) = TORCH_BENCHMARK.commands(settings, toolchain)
    python, m, _, *flags = real.argv
    return [replace(real, argv=(python, m, __spec__.name, settings["gate"], *flags))] if "gate" in settings else [real]


def register() -> None:
    """Have benchmarks in this process that name a gate wait for it."""
    _use(replace(TORCH_BENCHMARK, commands=commands))


def _use(benchmark: Stage) -> None:
    torch = ENGINES["torch"]
    ENGINES["torch"] = replace(torch, stages={**torch.stages, "benchmark": benchmark})


@contextmanager
def known_here() -> Iterator[None]:
    """Register the gated benchmark while the context lasts."""
    register()
    try:
        yield
    finally:
        _use(TORCH_BENCHMARK)


def wait_at_gate(rank: "TorchRank", session: "TorchSession", args: Namespace) -> None:
    """Compute with all ranks until the first one finds the gate open; then run the stage's program."""
    import torch
    import torch.distributed as dist

    from workers.llm.programs import torch_benchmark

    tokens, length, is_open = torch.full((1, TOKENS), 5), torch.tensor([TOKENS]), torch.zeros(1)
    while not is_open:
        session.prefill(tokens, length)
        is_open[0] = (args.gate / "gate").exists()
        dist.broadcast(is_open, 0)
        (args.gate / "running" / str(os.getpid())).touch()
    torch_benchmark.measure(rank, session, args)


def main() -> None:
    """Run a node's ranks."""
    from workers.llm.programs import torch_benchmark
    from workers.llm.torch_ranks.ranks import run_ranks

    gate = Path(sys.argv.pop(1))
    args = torch_benchmark.parse_arguments()
    args.gate = gate
    run_ranks(wait_at_gate, args, None, PATIENCE)


if __name__ == "__main__":
    from workers.llm.command_line import run

    run(main, has_children=True)
