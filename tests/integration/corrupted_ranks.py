"""Ranks with planted faults, as a program.

`python -m tests.integration.corrupted_ranks swap ...` runs torch_numerics with two shards swapped. `all ...` runs every
fault of FAULTS, each on a separate port from PORTS, and prints one JSON object per line: the fault, the program's
exit code and its message.
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

from workers.llm.command_line import EXIT_BAD_INPUT, BadInput, ProgramFailed, run
from workers.llm.programs import torch_numerics
from workers.llm.torch_ranks.rank import TorchRank
from workers.llm.torch_ranks.ranks import run_ranks
from workers.llm.torch_ranks.rendezvous import COLLECTIVE_TIMEOUT
from workers.llm.torch_ranks.torch_session import TorchSession

CORRUPTED_RANK = 1
SHORT = timedelta(seconds=6)  #: timeout of a collective where a peer hangs
PORTS = "CORRUPTED_RANKS_PORTS"  #: an environment variable
PROMPT, LENGTH = torch.full((1, 16), 5), torch.tensor([16])


@torch.no_grad()
def swap(rank: TorchRank, session: TorchSession, args: Namespace) -> None:
    """Swap the shards of the first layer's values between ranks 0 and 1."""
    shard = session._model.model.layers[0].self_attn.v_proj.weight.to_local()
    every = [torch.empty_like(shard) for _ in range(rank.size)]
    dist.all_gather(every, shard)
    if rank.number in (0, 1):
        shard.copy_(every[1 - rank.number])
    torch_numerics.compare(rank, session, args)


def fail(rank: TorchRank, session: TorchSession, args: Namespace) -> None:
    """Raise on one rank; the others wait for it in a collective."""
    if rank.number == CORRUPTED_RANK:
        raise ArithmeticError("no such number")
    session.prefill(PROMPT, LENGTH)


def kill(rank: TorchRank, session: TorchSession, args: Namespace) -> None:
    """Kill one rank."""
    if rank.number == CORRUPTED_RANK:
        os.kill(os.getpid(), signal.SIGKILL)
    session.prefill(PROMPT, LENGTH)


def hang(rank: TorchRank, session: TorchSession, args: Namespace) -> None:
    """Stop one rank, so that only SIGKILL ends it."""
    if rank.number == CORRUPTED_RANK:
        os.kill(os.getpid(), signal.SIGSTOP)
    session.prefill(PROMPT, LENGTH)


def refuse(rank: TorchRank, session: TorchSession, args: Namespace) -> None:
    """Refuse the input on every rank."""
    raise BadInput("unusable input")


FAULTS: dict[str, Callable[[TorchRank, TorchSession, Namespace], None]] = {
    "fail": fail,
    "kill": kill,
    "hang": hang,
    "refuse": refuse,
}


def main() -> None:
    """Run ranks with the faults that the command line names."""
    name = sys.argv.pop(1)
    args = torch_numerics.parse_arguments()
    if name == "swap":
        run_ranks(swap, args, lambda: torch_numerics.save_reference(args))
        return
    for (fault, work), port in zip(FAULTS.items(), os.environ[PORTS].split(), strict=True):
        os.environ["PET_MASTER_PORT"] = port
        timeout = SHORT if work is hang else COLLECTIVE_TIMEOUT
        sys.stdout.write(json.dumps({"fault": fault, **outcome_of(work, args, timeout)}) + "\n")


def outcome_of(
    work: Callable[[TorchRank, TorchSession, Namespace], None], args: Namespace, timeout: timedelta
) -> dict[str, object]:
    """Return the exit code and message of a program with this fault."""
    try:
        run_ranks(work, args, None, timeout)
    except BadInput as problem:
        return {"code": EXIT_BAD_INPUT, "message": str(problem)}
    except ProgramFailed as problem:
        return {"code": problem.exit_code, "message": problem.message}
    return {"code": 0, "message": ""}


if __name__ == "__main__":
    run(main, has_children=True)
