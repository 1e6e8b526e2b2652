"""Start a node's ranks of a sharded model, bring all ranks together, and tell why one of them failed.

The nodes are told of each other as torchrun tells them: PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT.
Without these there is one node, on loopback and a free port. Not torchrun itself: it starts an interpreter for each
rank, all of which import transformers (16 s more for 8 ranks on 2 cores); its store listens on every address of the
machine, and what it finds there it unpickles. Here ranks are forked from one server process that has imported
everything and touches no device, and the store listens where the other nodes reach it and nowhere else.
"""

import multiprocessing
import os
import signal
import socket
import sys
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from workers.llm.interfaces import interface_towards
from workers.llm.program import EXIT_FAILED, EXIT_PEERS_LOST, BadInput, Failed, add_model_arguments, positive
from workers.llm.rendezvous import COLLECTIVE_TIMEOUT, LostPeers, Place, Rendezvous, Why

LOOPBACK = "127.0.0.1"
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}  #: by torch's device; nccl is RCCL on ROCm
#: What ranks have imported when they are forked; it takes seconds, and the process that starts them does without.
PRELOADED = ("workers.llm.torch_session",)
END_S = 5.0  #: for a rank that was asked to end


@dataclass(frozen=True)
class Node:
    """This node among those that a program runs on."""

    rank: int = 0
    size: int = 1
    address: str = LOOPBACK  #: of the node with rank 0
    port: int = 0  #: there; 0: any that is free, which only a single node can do


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


def add_rank_arguments(parser: ArgumentParser) -> None:
    """The arguments of every program that runs ranks: the model, its split and its workloads."""
    add_model_arguments(parser)
    parser.add_argument("--precision", choices=("f32", "f16", "bf16"), required=True)
    parser.add_argument("--attention", choices=("sdpa", "eager"), default="sdpa")
    parser.add_argument("--tp", type=positive, required=True, help="ranks, of all nodes together")
    parser.add_argument("--device", choices=BACKENDS, default="cpu", help="torch's name for the kind of device")
    parser.add_argument("--batch", type=positive, nargs="+", default=[1])
    parser.add_argument("--prompt-tokens", type=positive, nargs="+", default=[64])


def this_node(environ: Mapping[str, str] = os.environ) -> Node:
    """What the environment says of it. Raises BadInput when it says half of it."""
    if "PET_NNODES" not in environ:
        return Node()
    try:
        rank, size, port = (int(environ[f"PET_{name}"]) for name in ("NODE_RANK", "NNODES", "MASTER_PORT"))
        return Node(rank, size, environ["PET_MASTER_ADDR"], port)
    except (KeyError, ValueError) as problem:
        raise BadInput(f"the environment tells of other nodes, but not all there is to tell: {problem}") from None


def run_ranks(work: Work, arguments: Namespace, before: Callable[[], None] | None = None) -> None:
    """Run `work(rank, session, arguments)` in `arguments.tp` processes, spread evenly over all nodes.

    None begins before all have loaded the model. `before` runs on the first node alone, while the others wait. Raises
    BadInput or Failed with what the rank that failed first said, on every node.
    """
    node = this_node()
    here, left_over = divmod(arguments.tp, node.size)
    if left_over or not 0 <= node.rank < node.size:
        raise BadInput(f"node {node.rank} of {node.size} can't have an even part of {arguments.tp} ranks")
    ranks = [Rank(node.rank * here + local, arguments.tp, local, here, arguments.device) for local in range(here)]
    if interface := interface_towards(node.address):
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # left alone, gloo asks what the host's name means
            os.environ.setdefault(name, interface)
    multiprocessing.set_forkserver_preload(list(PRELOADED))
    forkserver.ensure_running()  # imports meanwhile
    with _meeting_place(node) as (host, port):
        if before and node.rank == 0:
            before()
        codes = _run_processes(ranks, (work, arguments, host, port))
        _settle(node, codes, host, port)


@contextmanager
def _meeting_place(node: Node) -> Iterator[tuple[str, int]]:
    """Host and port of the store, which the first node keeps while this is entered."""
    if node.rank > 0:
        yield node.address, node.port
        return
    try:
        listener = socket.create_server((node.address, node.port))
    except OSError as problem:
        where = f"{node.address} port {node.port}"
        raise Failed(f"the ranks cannot meet at {where}: {problem.strerror}", EXIT_PEERS_LOST) from None
    port = listener.getsockname()[1]
    store = TCPStore(node.address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    yield node.address, port
    del store


def _run_processes(ranks: list[Rank], given: tuple[Any, ...]) -> dict[Rank, int]:
    """Exit codes (negative: signals) of the ranks that ended by themselves: all of them, unless one failed."""
    context = multiprocessing.get_context("forkserver")
    processes = {rank: context.Process(target=_rank_main, args=(rank, *given)) for rank in ranks}
    try:
        for process in processes.values():
            process.start()
        _wait(list(processes.values()))
        return {rank: process.exitcode for rank, process in processes.items() if process.exitcode is not None}
    finally:
        _end(process for process in processes.values() if process.pid is not None)


def _wait(processes: list[ForkServerProcess]) -> None:
    """Return when all have ended well, or one has not."""
    while running := [process for process in processes if process.exitcode is None]:
        if any(process.exitcode for process in processes):
            return
        wait([process.sentinel for process in running])


def _end(processes: Iterator[ForkServerProcess]) -> None:
    left = list(processes)
    for process in left:
        process.terminate()
    for process in left:
        process.join(END_S)
        process.kill()
        process.join()


def _settle(node: Node, codes: dict[Rank, int], host: str, port: int) -> None:
    """Raise what went wrong, on whatever node it was."""
    is_well, size = not any(codes.values()), next(iter(codes)).size
    if is_well and node.rank > 0:
        return
    killed = [f"{rank} was ended by {_signal(-code)}" for rank, code in codes.items() if code < 0]
    failure = (Why.KILLED, killed[0]) if killed else (Why.LOST, "the node of the first rank is gone")
    with suppress(RuntimeError, LostPeers):  # of a store that is gone, and of ranks that were called off
        meeting = Rendezvous(host, port, size, COLLECTIVE_TIMEOUT)
        try:
            for message in killed:
                meeting.fail(Why.KILLED, message)
            if is_well:
                meeting.wait(Place.LEFT, COLLECTIVE_TIMEOUT)  # the others need the store until they have left
                return
        finally:
            failure = meeting.failure() or failure
    why, (message, _, trace) = failure[0], failure[1].partition("\n")
    sys.stderr.write(trace)
    if why is Why.BAD_INPUT:
        raise BadInput(message)
    raise Failed(message, EXIT_PEERS_LOST if why is Why.LOST else EXIT_FAILED)


def _signal(number: int) -> str:
    oom = ", as the kernel does when it is out of memory" if number == signal.SIGKILL else ""
    return f"{signal.Signals(number).name}{oom}"


def _rank_main(rank: Rank, work: Work, arguments: Namespace, host: str, port: int) -> None:
    from workers.llm.torch_session import open_session

    meeting = Rendezvous(host, port, rank.size)
    try:
        with _first_alone_prints(rank), _joined(rank, meeting):
            session = open_session(rank, arguments)
            _limit_collectives()
            meeting.meet(Place.LOADED)
            work(rank, session, arguments)
            meeting.meet(Place.DONE)
        meeting.arrive(Place.LEFT)
    except Exception as problem:
        why = _cause(problem)
        where = "" if why is Why.BAD_INPUT else f"{rank}: {type(problem).__name__}: "
        trace = traceback.format_exc() if why is Why.FAILED else ""
        meeting.fail(why, f"{where}{' '.join(str(problem).split())}\n{trace}")
        _end_at_once(EXIT_FAILED)


def _end_at_once(exit_code: int) -> NoReturn:
    """Without taking leave of a process group that may hang."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)


@contextmanager
def _joined(rank: Rank, meeting: Rendezvous) -> Iterator[None]:
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
        timeout=COLLECTIVE_TIMEOUT,
        device_id=rank.torch_device if is_gpu else None,
    )
    yield
    dist.destroy_process_group()


def _first_alone_prints(rank: Rank) -> redirect_stdout[StringIO] | nullcontext[None]:
    """They all have the same to say; errors of every rank are seen."""
    return redirect_stdout(StringIO()) if rank.number else nullcontext()


def _limit_collectives() -> None:
    """Give every group the limit of the first one: the subgroups of a device mesh are made with 30 minutes."""
    for group in list(dist.distributed_c10d._world.pg_map):
        dist.distributed_c10d._set_pg_timeout(COLLECTIVE_TIMEOUT, group)


def _cause(problem: Exception) -> Why:
    """Whom an exception blames; gloo has none of its own to be told by."""
    if isinstance(problem, LostPeers | dist.DistError) or "gloo/transport" in str(problem):
        return Why.LOST
    return Why.BAD_INPUT if isinstance(problem, BadInput) else Why.FAILED
