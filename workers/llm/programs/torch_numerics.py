r"""Measure how far a model on several ranks is from the same model in one process.

    python -m workers.llm.programs.torch_numerics --model tiny-llama --precision f16 --tp 8 --windows 16 --new-tokens 32

Writes the report of `workers.llm.numerics.comparison` to outputs/numerics.json on the first node.
"""

import argparse
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from workers.llm.command_line import parse_overrides, run
from workers.llm.models.model_source import load_model
from workers.llm.numerics import comparison
from workers.llm.numerics.comparison import (
    ReferenceResults,
    ReferenceTrial,
    add_comparison_arguments,
    compute_reference,
    measure,
    write_report,
)
from workers.llm.torch_ranks.rank import TorchRank
from workers.llm.torch_ranks.ranks import add_rank_arguments, run_ranks
from workers.llm.torch_ranks.torch_session import TorchSession, entry_points

REPORT = Path("outputs/numerics.json")
REFERENCE = Path("reference.pt")  #: in the working folder, read by rank 0


def main() -> None:
    """Compute the reference, then compare the ranks with it."""
    args = parse_arguments()
    run_ranks(compare, args, before=lambda: save_reference(args))


def parse_arguments() -> Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(
        prog="python -m workers.llm.programs.torch_numerics", description=__doc__.split("\n")[0]
    )
    add_rank_arguments(parser)
    add_comparison_arguments(parser)
    return parser.parse_args()


def save_reference(args: Namespace) -> None:
    """Save the reference's results in a file; its memory is freed before the ranks load their shards."""
    model = load_model(args.model, args.revision, parse_overrides(args.override))
    torch.save(asdict(compute_reference(model, entry_points(args), args)), REFERENCE)


def read_reference() -> ReferenceResults:
    """Read the results that `save_reference` saved."""
    results = torch.load(REFERENCE, weights_only=True)
    return ReferenceResults(**{**results, "trials": [ReferenceTrial(**trial) for trial in results["trials"]]})


def compare(rank: TorchRank, session: TorchSession, args: Namespace) -> None:
    """Compare this rank with the reference: every rank computes the same, the first one writes the report."""
    results: list[Any] = [read_reference() if rank.number == 0 else None]
    dist.broadcast_object_list(results)
    measured = measure(session, results[0], args)
    if rank.number == 0:
        write_report(comparison.compare(results[0], measured, args), REPORT)


if __name__ == "__main__":
    run(main, has_children=True)
