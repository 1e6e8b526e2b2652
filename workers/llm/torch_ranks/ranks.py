"""Starting a node's ranks of a sharded model, and reporting why one of them failed.

The nodes of a gang get their environment from PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, as under
torchrun; without these there is one node, on loopback and a free port. torchrun itself is not used: it starts an
interpreter for each rank, all of which import transformers (16 s more for 8 ranks on 2 cores), and its store listens on
every address of the machine and unpickles what it receives. Here ranks are forked from a process that has imported
everything and touched no device, and the store listens on the one address that the other nodes use.
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

from workers.llm.command_line import (
    EXIT_FAILED,
    EXIT_PEERS_LOST,
    BadInput,
    ProgramFailed,
    add_model_arguments,
    positive_int,
)
from workers.llm.models.attention import KERNELS
from workers.llm.torch_ranks.network_interfaces import interface_towards
from workers.llm.torch_ranks.rank import BACKENDS, TorchRank
from workers.llm.torch_ranks.rank_process import RankWork, monitor_main, rank_main, store_main
from workers.llm.torch_ranks.rendezvous import COLLECTIVE_TIMEOUT, RankFailureCause, Rendezvous
from workers.llm.torch_ranks.torch_compile import MODES
from workers.llm.weights.meta_model import DTYPES

LOOPBACK = "127.0.0.1"
FLASH = "flash_attention_2"  #: transformers' name of FlashAttention-2
SETTLE_TIMEOUT = timedelta(seconds=10)  #: for connecting to the store, and for other nodes to read the cause there


@dataclass(frozen=True)
class GangNode:
    """This node among the nodes that a program runs on."""

    rank: int = 0
    size: int = 1
    address: str = LOOPBACK  #: of the node with rank 0
    port: int = 0  #: on that node; 0: any free port, for a single node only


def this_node(environ: Mapping[str, str] = os.environ) -> GangNode:
    """Read this node from the environment. Raises BadInput when some of its variables are missing or malformed."""
    if "PET_NNODES" not in environ:
        return GangNode()
    try:
        rank, size, port = (int(environ[f"PET_{name}"]) for name in ("NODE_RANK", "NNODES", "MASTER_PORT"))
        return GangNode(rank, size, environ["PET_MASTER_ADDR"], port)
    except (KeyError, ValueError) as problem:
        raise BadInput(
            f"the environment describes only a part of a gang ({problem}): "
            "set PET_NNODES, PET_NODE_RANK, PET_MASTER_ADDR and PET_MASTER_PORT, or none of them"
        ) from None


def add_rank_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of every program that runs ranks: the model, its split and its workloads."""
    add_model_arguments(parser)
    parser.add_argument("--precision", choices=DTYPES, required=True)
    parser.add_argument("--attention", choices=(*KERNELS, FLASH), default=KERNELS[0])
    parser.add_argument("--compile", choices=MODES, help="torch.compile's mode; without it nothing is compiled")
    parser.add_argument("--inductor", nargs="*", action="extend", default=[], metavar="KEY=VALUE")
    parser.add_argument("--tp", type=positive_int, required=True, help="ranks on all nodes together")
    parser.add_argument("--device", choices=BACKENDS, default="cpu", help="torch's device type")
    parser.add_argument("--batch", type=positive_int, nargs="+", default=[1])
    parser.add_argument("--prompt-tokens", type=positive_int, nargs="+", default=[64])


def run_ranks(
    work: RankWork,
    arguments: Namespace,
    before: Callable[[], None] | None = None,
    collective_timeout: timedelta = COLLECTIVE_TIMEOUT,
) -> None:
    """Run `work(rank, session, arguments)` in `arguments.tp` processes, spread evenly over all nodes.

    No rank loads the model before `before` has returned, which runs in a process of its own on the first node, and
    none begins to work before all have loaded. Raises BadInput or ProgramFailed on every node, with the message of the
    rank that failed first.
    """
    import workers.llm.torch_ranks.torch_session  # noqa: F401 - once, for all ranks

    node = this_node()
    ranks = ranks_of(node, arguments.tp, arguments.device)
    _select_interface(node.address)
    listener = _listen(node) if node.rank == 0 else None
    address = (node.address, listener.getsockname()[1] if listener else node.port)
    rank_arguments = (work, arguments, address, node.size, collective_timeout, listener)
    fork, size = multiprocessing.get_context("fork"), arguments.tp
    processes = [
        *(fork.Process(target=rank_main, args=(rank, *rank_arguments), name=str(rank)) for rank in ranks),
        fork.Process(target=monitor_main, args=(address, size, node.size, listener), name="the ranks' monitor"),
    ]
    if listener:
        processes.append(fork.Process(target=store_main, args=(listener, size, before), name="the ranks' store"))
    try:
        for process in processes:
            process.start()
        if listener:
            listener.close()
        _wait(processes)
        if any(process.exitcode != 0 for process in processes):
            _raise_failure(node, processes, address, size)
    finally:
        _kill(process for process in processes if process.pid is not None)


def _select_interface(address: str) -> None:
    """Make collectives use the interface towards `address`; by default gloo resolves the host's name."""
    if interface := interface_towards(address):
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(name, interface)


def ranks_of(node: GangNode, count: int, device: str) -> list[TorchRank]:
    """Return a node's part of `count` ranks. Raises BadInput when nodes would have different numbers of them."""
    local_size, remainder = divmod(count, node.size)
    if remainder or not 0 <= node.rank < node.size:
        raise BadInput(f"node {node.rank} of {node.size} can't have an even part of {count} ranks")
    return [TorchRank(node.rank * local_size + local, count, local, local_size, device) for local in range(local_size)]


def _listen(node: GangNode) -> socket.socket:
    """Bind the store's socket."""
    try:
        return socket.create_server((node.address, node.port))
    except OSError as problem:
        where = f"{node.address} port {node.port}"
        raise ProgramFailed(f"the ranks cannot meet at {where}: {problem.strerror}", EXIT_PEERS_LOST) from None


def _wait(processes: Sequence[ForkProcess]) -> None:
    """Return when all processes have succeeded or one has failed."""
    while running := [process for process in processes if process.exitcode is None]:
        if any(process.exitcode for process in processes):
            return
        wait([process.sentinel for process in running])


def _raise_failure(node: GangNode, processes: Sequence[ForkProcess], address: tuple[str, int], size: int) -> NoReturn:
    """Raise the first failure of any node, after all nodes have reported theirs."""
    killed = [
        f"{process.name} was ended by {_describe_signal(-code)}"
        for process in processes
        if (code := process.exitcode or 0) < 0
    ]
    cause, message = RankFailureCause.LOST, "the node of the first rank is gone"
    if killed:
        cause, message = RankFailureCause.KILLED, killed[0]
    with suppress(RuntimeError):  # the store is gone
        rendezvous = Rendezvous.connect(*address, size, SETTLE_TIMEOUT)
        if killed:
            rendezvous.fail(cause, message)
        cause, message = rendezvous.settle(node.size) or (cause, message)
    text, _, trace = message.partition("\n")
    sys.stderr.write(trace)
    if cause is RankFailureCause.BAD_INPUT:
        raise BadInput(text)
    raise ProgramFailed(text, EXIT_PEERS_LOST if cause is RankFailureCause.LOST else EXIT_FAILED)


def _describe_signal(number: int) -> str:
    cause = ", as the kernel does when it is out of memory" if number == signal.SIGKILL else ""
    return f"{signal.Signals(number).name}{cause}"


def _kill(processes: Iterable[ForkProcess]) -> None:
    """Kill the processes that are left: they have nothing to clean up, and one that hangs reacts to nothing else."""
    started = list(processes)
    for process in started:
        process.kill()
    for process in started:
        process.join()
