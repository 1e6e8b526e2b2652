"""What runs in one process of a sharded model: a rank, the store where ranks meet, a watch for failures elsewhere."""

import os
import signal
import socket
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from workers.llm.program import EXIT_FAILED, BadInput
from workers.llm.rendezvous import COLLECTIVE_TIMEOUT, LostPeers, Place, Rendezvous, Why

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}  #: by torch's device; nccl is RCCL on ROCm


@dataclass(frozen=True)
class Rank:
    """One process of a sharded program, on a device of its own."""

    number: int  #: of all
    size: int
    local: int  #: on its node
    local_size: int
    device: str  #: torch's type of it

    @property
    def torch_device(self) -> torch.device:
        """Its device among those that its node lends the program."""
        return torch.device("cpu") if self.device == "cpu" else torch.device(self.device, self.local)

    def __str__(self) -> str:
        return f"rank {self.number} of {self.size}"


#: What a rank does with its session (`workers.llm.torch_session`) of the model.
Work = Callable[[Rank, Any, Namespace], None]


def host_main(listener: socket.socket, size: int, before: Callable[[], None] | None) -> None:
    """Keep the store until all ranks have left it, or this is ended because one of them failed."""
    meeting = Rendezvous.host(listener, size)
    try:
        if before:
            before()
        meeting.say(Place.READY)
        meeting.wait(Place.DONE)
        meeting.wait(Place.LEFT, COLLECTIVE_TIMEOUT)
    except Exception as problem:
        meeting.fail(*_told("", problem))
        while True:
            signal.pause()  # somebody will ask why


def watch_main(place: tuple[str, int], size: int, nodes: int, listener: socket.socket | None) -> None:
    """End badly when a rank of any node failed, or the first node is gone: ranks of this one may never notice."""
    if listener:
        listener.close()
    meeting = Rendezvous.at(*place, size)
    try:
        meeting.wait(Place.DONE)
        meeting.arrive(Place.LEFT, nodes)
    except (LostPeers, RuntimeError):
        _end_at_once(EXIT_FAILED)


def rank_main(
    rank: Rank,
    work: Work,
    arguments: Namespace,
    place: tuple[str, int],
    nodes: int,
    collective_timeout: timedelta,
    listener: socket.socket | None,
) -> None:
    """Load a shard of the model and work with it, in step with all other ranks."""
    from workers.llm.torch_session import open_session

    if listener:
        listener.close()
    meeting = Rendezvous.at(*place, rank.size)
    try:
        meeting.wait(Place.READY)
        with _first_alone_prints(rank), _joined(rank, meeting, collective_timeout):
            session = open_session(rank, arguments)
            _limit_collectives(collective_timeout)
            meeting.meet(Place.LOADED)
            work(rank, session, arguments)
            meeting.meet(Place.DONE)
        meeting.arrive(Place.LEFT, nodes)
    except Exception as problem:
        with suppress(RuntimeError):  # the first node is gone with its store
            meeting.fail(*_told(f"{rank}: ", problem))
        _end_at_once(EXIT_FAILED)


def _end_at_once(exit_code: int) -> NoReturn:
    """Without taking leave of a process group that may hang."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


def _told(who: str, problem: Exception) -> tuple[Why, str]:
    """Whom an exception blames, and what to say of it: a line, for a bug with its traceback below."""
    why, said = _cause(problem), " ".join(str(problem).split())
    if why is Why.BAD_INPUT:
        return why, said
    trace = traceback.format_exc() if why is Why.FAILED else ""
    return why, f"{who}{type(problem).__name__}: {said}\n{trace}"


def _cause(problem: Exception) -> Why:
    """Whom an exception blames; gloo has none of its own to be told by."""
    if isinstance(problem, LostPeers | dist.DistError) or "gloo/transport" in str(problem):
        return Why.LOST
    return Why.BAD_INPUT if isinstance(problem, BadInput) else Why.FAILED


@contextmanager
def _joined(rank: Rank, meeting: Rendezvous, timeout: timedelta) -> Iterator[None]:
    """All ranks in one process group, and this one's share of the attempt's threads."""
    torch.set_num_threads(max(1, int(os.environ.get("OMP_NUM_THREADS", "1")) // rank.local_size))
    os.environ.update(
        {"RANK": str(rank.number), "WORLD_SIZE": str(rank.size), "LOCAL_RANK": str(rank.local)}
    )  # transformers reads them
    is_gpu = rank.device != "cpu"
    if is_gpu:
        torch.cuda.set_device(rank.torch_device)
    meeting.meet(Place.JOINED)
    dist.init_process_group(
        BACKENDS[rank.device],
        store=PrefixStore("group", meeting.store),
        rank=rank.number,
        world_size=rank.size,
        timeout=timeout,
        device_id=rank.torch_device if is_gpu else None,
    )
    yield
    dist.destroy_process_group()


def _first_alone_prints(rank: Rank) -> redirect_stdout[StringIO] | nullcontext[None]:
    """They all have the same to say; errors of every rank are seen."""
    return redirect_stdout(StringIO()) if rank.number else nullcontext()


def _limit_collectives(timeout: timedelta) -> None:
    """Give every group the limit of the first one: the subgroups of a device mesh are made with 30 minutes."""
    for group in list(dist.distributed_c10d._world.pg_map):
        dist.distributed_c10d._set_pg_timeout(timeout, group)
