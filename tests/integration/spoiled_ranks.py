"""Ranks with faults of a test's own.

As a program: `python -m tests.integration.spoiled_ranks swap ...` is torch_numerics with two shards swapped; `all ...`
goes through FAULTS, each with a port of its own out of PORTS, and prints what each of them was said to be: a JSON
object a line.
"""

import json
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

from workers.llm import torch_numerics
from workers.llm.program import EXIT_BAD_INPUT, BadInput, Failed, run
from workers.llm.rank_process import Rank
from workers.llm.ranks import run_ranks
from workers.llm.rendezvous import COLLECTIVE_TIMEOUT
from workers.llm.torch_session import TorchSession

SPOILED_RANK = 1
SHORT = timedelta(seconds=6)  #: for a peer in a collective, where one hangs
PORTS = "SPOILED_RANKS_PORTS"  #: a variable
PROMPT, LENGTH = torch.full((1, 16), 5), torch.tensor([16])


@torch.no_grad()
def swap(rank: Rank, session: TorchSession, args: Namespace) -> None:
    """Ranks 0 and 1 have each other's shards of the first layer's values."""
    shard = session._model.model.layers[0].self_attn.v_proj.weight.to_local()
    every = [torch.empty_like(shard) for _ in range(rank.size)]
    dist.all_gather(every, shard)
    if rank.number in (0, 1):
        shard.copy_(every[1 - rank.number])
    torch_numerics.compare(rank, session, args)


def fail(rank: Rank, session: TorchSession, args: Namespace) -> None:
    """One rank has a bug; the others wait for it in a collective."""
    if rank.number == SPOILED_RANK:
        raise ArithmeticError("no such number")
    session.prefill(PROMPT, LENGTH)


def kill(rank: Rank, session: TorchSession, args: Namespace) -> None:
    """One rank is killed."""
    if rank.number == SPOILED_RANK:
        os.kill(os.getpid(), signal.SIGKILL)
    session.prefill(PROMPT, LENGTH)


def hang(rank: Rank, session: TorchSession, args: Namespace) -> None:
    """One rank hangs, and even its end has to be forced."""
    if rank.number == SPOILED_RANK:
        os.kill(os.getpid(), signal.SIGSTOP)
    session.prefill(PROMPT, LENGTH)


def refuse(rank: Rank, session: TorchSession, args: Namespace) -> None:
    """Every rank finds what it was given useless."""
    raise BadInput("no use")


FAULTS: dict[str, Callable[[Rank, TorchSession, Namespace], None]] = {
    "fail": fail,
    "kill": kill,
    "hang": hang,
    "refuse": refuse,
}


def main() -> None:
    """Run ranks with the faults that the command line names."""
    which = sys.argv.pop(1)
    args = torch_numerics.parse_arguments()
    if which == "swap":
        run_ranks(swap, args, lambda: torch_numerics.keep_reference(args))
        return
    for (fault, work), port in zip(FAULTS.items(), os.environ[PORTS].split(), strict=True):
        os.environ["PET_MASTER_PORT"] = port
        timeout = SHORT if work is hang else COLLECTIVE_TIMEOUT
        sys.stdout.write(json.dumps({"fault": fault, **told(work, args, timeout)}) + "\n")


def told(
    work: Callable[[Rank, TorchSession, Namespace], None], args: Namespace, timeout: timedelta
) -> dict[str, object]:
    """What is said of a fault, and what the program's exit code would be."""
    try:
        run_ranks(work, args, None, timeout)
    except BadInput as problem:
        return {"code": EXIT_BAD_INPUT, "message": str(problem)}
    except Failed as problem:
        return {"code": problem.exit_code, "message": problem.message}
    return {"code": 0, "message": ""}


if __name__ == "__main__":
    run(main)
