"""The torch engine's benchmark behind a gate: its ranks compute together until a test lets them go on.

Where `register` was called a benchmark whose settings name a `gate` runs this program in the place of its own:
`python -m tests.cluster.gated_ranks FOLDER ...`, with all that the real one is given.
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

from jobs.stages import ENGINES
from jobs.stages.base import Settings
from jobs.stages.torch_benchmark import TORCH_BENCHMARK
from jobs.task import Command
from jobs.toolchains import Toolchain
from jobs.variants import Engine

if TYPE_CHECKING:
    from workers.llm.rank_process import Rank
    from workers.llm.torch_session import TorchSession

PATIENCE = timedelta(seconds=10)  #: with a peer in a collective
TOKENS = 16


def commands(settings: Settings, toolchain: Toolchain) -> list[Command]:
    """The stage's own, behind the gate."""
    (real,) = TORCH_BENCHMARK.commands(settings, toolchain)
    python, m, _, *flags = real.argv
    return [replace(real, argv=(python, m, __spec__.name, settings["gate"], *flags))] if "gate" in settings else [real]


def register() -> None:
    """Have benchmarks in this process that name a gate wait for it."""
    ENGINES[Engine.TORCH]["benchmark"] = replace(TORCH_BENCHMARK, commands=commands)


@contextmanager
def known_here() -> Iterator[None]:
    """The same while it lasts."""
    register()
    try:
        yield
    finally:
        ENGINES[Engine.TORCH]["benchmark"] = TORCH_BENCHMARK


def wait_at_gate(rank: "Rank", session: "TorchSession", args: Namespace) -> None:
    """Compute with all ranks until the first one finds the gate open; then do what the stage does."""
    import torch
    import torch.distributed as dist

    from workers.llm import torch_benchmark

    tokens, length, is_open = torch.full((1, TOKENS), 5), torch.tensor([TOKENS]), torch.zeros(1)
    while not is_open:
        session.prefill(tokens, length)
        is_open[0] = (args.gate / "gate").exists()
        dist.broadcast(is_open, 0)
        (args.gate / "running" / str(os.getpid())).touch()
    torch_benchmark.measure(rank, session, args)


def main() -> None:
    """Run a node's ranks."""
    from workers.llm import torch_benchmark
    from workers.llm.ranks import run_ranks

    gate = Path(sys.argv.pop(1))
    args = torch_benchmark.parse_arguments()
    args.gate = gate
    run_ranks(wait_at_gate, args, None, PATIENCE)


if __name__ == "__main__":
    from workers.llm.program import run

    run(main)
