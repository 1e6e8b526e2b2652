r"""Measure how far a model on several ranks is from the same model in one process.

    python -m workers.llm.torch_numerics --model tiny-llama --precision f16 --tp 8 --windows 16 --new-tokens 32

Writes outputs/numerics.json, on the first node: what `workers.llm.comparison` finds.
"""

import argparse
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from workers.llm.comparison import Expected, Trial, add_comparison_arguments, expect, measure, write
from workers.llm.model_source import load_model
from workers.llm.program import parse_overrides, run
from workers.llm.rank_process import Rank
from workers.llm.ranks import add_rank_arguments, run_ranks
from workers.llm.torch_session import TorchSession, entry_points

REPORT = Path("outputs/numerics.json")
REFERENCE = Path("reference.pt")  #: in the working folder, for rank 0 of its node


def main() -> None:
    """Compute the reference, then compare the ranks with it."""
    args = parse_arguments()
    run_ranks(compare, args, before=lambda: keep_reference(args))


def parse_arguments() -> Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.torch_numerics", description=__doc__.split("\n")[0])
    add_rank_arguments(parser)
    add_comparison_arguments(parser)
    return parser.parse_args()


def keep_reference(args: Namespace) -> None:
    """Leave the reference's side of the comparison in a file; the model is gone when the ranks load theirs."""
    model = load_model(args.model, args.revision, parse_overrides(args.override))
    torch.save(asdict(expect(model, entry_points(args), args)), REFERENCE)


def read_reference() -> Expected:
    """What `keep_reference` left."""
    found = torch.load(REFERENCE, weights_only=True)
    return Expected(**{**found, "trials": [Trial(**trial) for trial in found["trials"]]})


def compare(rank: Rank, session: TorchSession, args: Namespace) -> None:
    """Every rank computes the same; the first one writes the report."""
    given: list[Any] = [read_reference() if rank.number == 0 else None]
    dist.broadcast_object_list(given)
    report = measure(session, given[0], args)
    if rank.number == 0:
        write(report, REPORT)


if __name__ == "__main__":
    run(main)
