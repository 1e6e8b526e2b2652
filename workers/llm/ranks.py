"""Start a node's ranks of a sharded model, bring all ranks together, and tell why one of them failed.

The nodes are told of each other as torchrun tells them: PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR, PET_MASTER_PORT.
Without these there is one node, on loopback and a free port. Not torchrun itself: it starts an interpreter for each
rank, all of which import transformers (16 s more for 8 ranks on 2 cores); its store listens on every address of the
machine, and what it finds there it unpickles. Here ranks are forked from a process that has imported everything and
touched no device, and the store listens where the other nodes reach it and nowhere else.
"""

import multiprocessing
import os
import signal
import socket
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.context import ForkProcess
from typing import NoReturn

from workers.llm.attention import KERNELS
from workers.llm.compiled import MODES
from workers.llm.hollow import DTYPES
from workers.llm.interfaces import interface_towards
from workers.llm.program import EXIT_FAILED, EXIT_PEERS_LOST, BadInput, Failed, add_model_arguments, positive
from workers.llm.rank_process import BACKENDS, Rank, Work, host_main, rank_main, watch_main
from workers.llm.rendezvous import COLLECTIVE_TIMEOUT, Rendezvous, Why

LOOPBACK = "127.0.0.1"
FLASH = "flash_attention_2"  #: transformers' name of it
SETTLE_TIMEOUT = timedelta(seconds=10)  #: for the store, and for other nodes to read there why it all ended


@dataclass(frozen=True)
class Node:
    """This node among those that a program runs on."""

    rank: int = 0
    size: int = 1
    address: str = LOOPBACK  #: of the node with rank 0
    port: int = 0  #: there; 0: any that is free, which only a single node can do


def this_node(environ: Mapping[str, str] = os.environ) -> Node:
    """What the environment says of it. Raises BadInput when it says half of it."""
    if "PET_NNODES" not in environ:
        return Node()
    try:
        rank, size, port = (int(environ[f"PET_{name}"]) for name in ("NODE_RANK", "NNODES", "MASTER_PORT"))
        return Node(rank, size, environ["PET_MASTER_ADDR"], port)
    except (KeyError, ValueError) as problem:
        raise BadInput(f"the environment tells of other nodes, but not all there is to tell: {problem}") from None


def add_rank_arguments(parser: ArgumentParser) -> None:
    """The arguments of every program that runs ranks: the model, its split and its workloads."""
    add_model_arguments(parser)
    parser.add_argument("--precision", choices=DTYPES, required=True)
    parser.add_argument("--attention", choices=(*KERNELS, FLASH), default=KERNELS[0])
    parser.add_argument("--compile", choices=MODES, help="torch.compile's mode; without it nothing is compiled")
    parser.add_argument("--inductor", nargs="*", action="extend", default=[], metavar="KEY=VALUE")
    parser.add_argument("--tp", type=positive, required=True, help="ranks, of all nodes together")
    parser.add_argument("--device", choices=BACKENDS, default="cpu", help="torch's name for the kind of device")
    parser.add_argument("--batch", type=positive, nargs="+", default=[1])
    parser.add_argument("--prompt-tokens", type=positive, nargs="+", default=[64])


def run_ranks(
    work: Work,
    arguments: Namespace,
    before: Callable[[], None] | None = None,
    collective_timeout: timedelta = COLLECTIVE_TIMEOUT,
) -> None:
    """Run `work(rank, session, arguments)` in `arguments.tp` processes, spread evenly over all nodes.

    None loads the model before `before` has run, in a process of its own on the first node; none begins to work before
    all have loaded. Raises BadInput or Failed with what the rank that failed first said, on every node.
    """
    import workers.llm.torch_session  # noqa: F401 - once, for all ranks

    node = this_node()
    ranks = ranks_of(node, arguments.tp, arguments.device)
    if interface := interface_towards(node.address):
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # left alone, gloo asks what the host's name means
            os.environ.setdefault(name, interface)
    listener = _listener(node) if node.rank == 0 else None
    place = (node.address, listener.getsockname()[1] if listener else node.port)
    size, context = arguments.tp, multiprocessing.get_context("fork")
    given = (work, arguments, place, node.size, collective_timeout, listener)
    processes = [
        *(context.Process(target=rank_main, args=(rank, *given), name=str(rank)) for rank in ranks),
        context.Process(target=watch_main, args=(place, size, node.size, listener), name="the watch over the ranks"),
    ]
    if listener:
        processes.append(context.Process(target=host_main, args=(listener, size, before), name="the ranks' store"))
    try:
        for process in processes:
            process.start()
        if listener:
            listener.close()
        _wait(processes)
        if any(process.exitcode != 0 for process in processes):
            _settle(node, processes, place, size)
    finally:
        _end(process for process in processes if process.pid is not None)


def ranks_of(node: Node, count: int, device: str) -> list[Rank]:
    """A node's part of `count` ranks. Raises BadInput when that would be more than another's."""
    here, left_over = divmod(count, node.size)
    if left_over or not 0 <= node.rank < node.size:
        raise BadInput(f"node {node.rank} of {node.size} can't have an even part of {count} ranks")
    return [Rank(node.rank * here + local, count, local, here, device) for local in range(here)]


def _listener(node: Node) -> socket.socket:
    """Where the store will listen."""
    try:
        return socket.create_server((node.address, node.port))
    except OSError as problem:
        where = f"{node.address} port {node.port}"
        raise Failed(f"the ranks cannot meet at {where}: {problem.strerror}", EXIT_PEERS_LOST) from None


def _wait(processes: Sequence[ForkProcess]) -> None:
    """Return when all have ended well, or one has not."""
    while running := [process for process in processes if process.exitcode is None]:
        if any(process.exitcode for process in processes):
            return
        wait([process.sentinel for process in running])


def _settle(node: Node, processes: Sequence[ForkProcess], place: tuple[str, int], size: int) -> NoReturn:
    """Raise what went wrong, on whatever node it was."""
    killed = [
        f"{process.name} was ended by {_signal(-code)}" for process in processes if (code := process.exitcode or 0) < 0
    ]
    why, message = (Why.KILLED, killed[0]) if killed else (Why.LOST, "the node of the first rank is gone")
    with suppress(RuntimeError):  # the store is gone
        meeting = Rendezvous.at(*place, size, SETTLE_TIMEOUT)
        if killed:
            meeting.fail(Why.KILLED, killed[0])
        why, message = meeting.settle(node.size) or (why, message)
    said, _, trace = message.partition("\n")
    sys.stderr.write(trace)
    if why is Why.BAD_INPUT:
        raise BadInput(said)
    raise Failed(said, EXIT_PEERS_LOST if why is Why.LOST else EXIT_FAILED)


def _signal(number: int) -> str:
    cause = ", as the kernel does when it is out of memory" if number == signal.SIGKILL else ""
    return f"{signal.Signals(number).name}{cause}"


def _end(processes: Iterable[ForkProcess]) -> None:
    """Leave none of them; they have nothing to put away, and one that hangs hears nothing else."""
    left = list(processes)
    for process in left:
        process.kill()
    for process in left:
        process.join()
