"""The processes of a sharded model: its ranks, the host of the store where they meet, and a node's failure monitor."""

import os
import signal
import socket
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from datetime import timedelta
from io import StringIO
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from workers.llm.command_line import EXIT_FAILED, BadInput
from workers.llm.torch_ranks.rank import BACKENDS, TorchRank
from workers.llm.torch_ranks.rendezvous import (
    COLLECTIVE_TIMEOUT,
    PeerRankFailed,
    RankBarrier,
    RankFailureCause,
    Rendezvous,
)

#: What a rank runs with its session (`workers.llm.torch_ranks.torch_session`) of the model.
RankWork = Callable[[TorchRank, Any, Namespace], None]


def store_main(listener: socket.socket, size: int, before: Callable[[], None] | None) -> None:
    """Run `before`, and host the store until all ranks have left it, or the parent ends it after a failure."""
    rendezvous = Rendezvous.host(listener, size)
    try:
        if before:
            before()
        rendezvous.open(RankBarrier.READY)
        rendezvous.wait(RankBarrier.DONE)
        rendezvous.wait(RankBarrier.LEFT, COLLECTIVE_TIMEOUT)
    except Exception as problem:
        rendezvous.fail(*_describe(problem, ""))
        while True:
            signal.pause()  # the nodes have yet to read the cause


def monitor_main(address: tuple[str, int], size: int, nodes: int, listener: socket.socket | None) -> None:
    """Exit with a failure when a rank of any node failed or the first node is gone: ranks may never notice that."""
    if listener:
        listener.close()
    rendezvous = Rendezvous.connect(*address, size)
    try:
        rendezvous.wait(RankBarrier.DONE)
        rendezvous.arrive(RankBarrier.LEFT, nodes)
    except (PeerRankFailed, RuntimeError):
        _exit_at_once(EXIT_FAILED)


def rank_main(
    rank: TorchRank,
    work: RankWork,
    arguments: Namespace,
    address: tuple[str, int],
    nodes: int,
    collective_timeout: timedelta,
    listener: socket.socket | None,
) -> None:
    """Load a shard of the model and run `work` with it, in step with all other ranks."""
    from workers.llm.torch_ranks.torch_session import open_session

    if listener:
        listener.close()
    rendezvous = Rendezvous.connect(*address, rank.size)
    output = redirect_stdout(StringIO()) if rank.number else nullcontext()  # all ranks print the same
    try:
        rendezvous.wait(RankBarrier.READY)
        with output, _process_group(rank, rendezvous, collective_timeout):
            session = open_session(rank, arguments)
            _limit_collectives(collective_timeout)
            rendezvous.meet(RankBarrier.LOADED)
            work(rank, session, arguments)
            rendezvous.meet(RankBarrier.DONE)
        rendezvous.arrive(RankBarrier.LEFT, nodes)
    except Exception as problem:
        with suppress(RuntimeError):  # the first node is gone with its store
            rendezvous.fail(*_describe(problem, f"{rank}: "))
        _exit_at_once(EXIT_FAILED)


def _exit_at_once(exit_code: int) -> NoReturn:
    """Exit without leaving the process group, which may hang."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _describe(problem: Exception, prefix: str) -> tuple[RankFailureCause, str]:
    """Return the cause of an exception and its message: one line, with the traceback of a bug below."""
    cause, text = _cause(problem), " ".join(str(problem).split())
    if cause is RankFailureCause.BAD_INPUT:
        return cause, text
    trace = traceback.format_exc() if cause is RankFailureCause.FAILED else ""
    return cause, f"{prefix}{type(problem).__name__}: {text}\n{trace}"


def _cause(problem: Exception) -> RankFailureCause:
    """Return the cause of an exception; gloo has no exception types of its own, only its messages tell."""
    if isinstance(problem, PeerRankFailed | dist.DistError) or "gloo/transport" in str(problem):
        return RankFailureCause.LOST
    return RankFailureCause.BAD_INPUT if isinstance(problem, BadInput) else RankFailureCause.FAILED


@contextmanager
def _process_group(rank: TorchRank, rendezvous: Rendezvous, timeout: timedelta) -> Iterator[None]:
    """Join all ranks in one process group, with this rank's share of the attempt's threads."""
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1")) // rank.local_size))
    os.environ.update(
        {"RANK": str(rank.number), "WORLD_SIZE": str(rank.size), "LOCAL_RANK": str(rank.local)}
    )  # transformers reads them
    is_gpu = rank.device != "cpu"
    if is_gpu:
        torch.cuda.set_device(rank.torch_device)
    rendezvous.meet(RankBarrier.JOINED)
    dist.init_process_group(
        BACKENDS[rank.device],
        store=PrefixStore("group", rendezvous.store),
        rank=rank.number,
        world_size=rank.size,
        timeout=timeout,
        device_id=rank.torch_device if is_gpu else None,
    )
    yield
    dist.destroy_process_group()


def _limit_collectives(timeout: timedelta) -> None:
    """Give every process group this timeout: the subgroups of a device mesh are created with 30 minutes."""
    for group in list(dist.distributed_c10d._world.pg_map):
        dist.distributed_c10d._set_pg_timeout(timeout, group)
