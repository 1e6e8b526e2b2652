"""Connects to Ray: to a local one that ends with this process, or to a cluster. The only module that imports ray."""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from jobs.errors import ClusterUnreachable
from jobs.task import Node
from orchestrator import interrupts
from orchestrator.executor import LOCAL_NODE
from orchestrator.ray_cluster.private_folder import new_ray_folder
from orchestrator.ray_cluster.ray_address import expect_answer
from orchestrator.ray_cluster.ray_commands import CPU_DEVICE, FIXED, LOOPBACK, NODE_LABEL, OBJECT_STORE_BYTES
from orchestrator.ray_cluster.ray_token import use_own_token
from orchestrator.ray_cluster.reaper import Reaper
from orchestrator.ray_executor.control_thread import ANSWER_S, ControlThread
from workers.agent.protocol import AgentConfig
from workers.machine.device_masks import merge_amd_masks

T = TypeVar("T")

NAMESPACE = "haloctl"
CONTROL_STORE_S = 3.0
LOCAL_CONTROL_STORE_S = 15.0  #: one that ended is noticed by its endpoints; only a busy machine makes it take longer
CLEAN_UP_S = 2.0
JOIN_S = 45.0  #: a busy machine takes ten
AGENT_THREADS = 8  #: a cancel is answered while polls are under way
GROUP_PREFIX = "haloctl:"
GROUP_WAIT_S = 1  #: Ray 2.60 takes whole seconds

#: Environment of this process, for Ray.
DRIVER = {
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a late call must not start another Ray
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^",  # its messages about dead processes would go to stdout
}

#: The bundles of a placement group: for each of its nodes, Ray's id of it and the resources held there.
Bundles = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]


class RayForgot(ClusterUnreachable):
    """Ray does not know this process any more, which has to disconnect and connect again."""


@dataclass(frozen=True)
class RayNode:
    """A member of Ray's cluster on which attempts can run."""

    id: str  #: Ray's
    address: str
    started_ms: int


class Connection:
    """A connection; one at a time in a process, because Ray keeps it in global variables."""

    def __init__(
        self,
        data: Path,
        address: str | None,
        describe: Callable[[], Node],
        on_hang: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_hang` is called, from a thread, when joining a cluster takes too long: Ray itself may wait for ever."""
        self.address = address
        self._on_hang = on_hang
        self._data, self._describe = data, describe
        self._where = f"Ray at {address}" if address else "the local Ray"
        self._ray: Any = None
        self._reaper: Reaper | None = None  #: of the local Ray
        self._endpoints: list[str] = []  #: HOST:PORT of each process that Ray can't do without
        self._store: Any = None  #: a client of the control store, for calls with time limits
        self._own_node = ""
        self._control: ControlThread | None = None

    @property
    def is_open(self) -> bool:
        """Whether Ray is connected, as far as is known."""
        return self._ray is not None

    def open(self) -> None:
        """Start or join Ray, unless that is done. Raises ClusterUnreachable."""
        if self._ray is not None:
            return
        os.environ.update({**FIXED, **DRIVER, **os.environ})
        merge_amd_masks(os.environ)
        if self.address:
            expect_answer(self.address)
        if self.address is None or self.address.startswith("127."):
            os.environ.update(LOOPBACK)
        if self.address is None:
            use_own_token(self._data)
        import ray

        _skip_monitors()
        _pass_on_errors()
        try:
            with interrupts.restore_handlers():
                if self.address:
                    self._expect_members(self.address)
                options = self._options()
                with self._time_limit():
                    ray.init(**options, log_to_driver=False, configure_logging=False, namespace=NAMESPACE)
        except Exception as error:  # Ray raises bare Exception when a raylet is too slow to come up
            self._reap()
            raise ClusterUnreachable(self._where, reason_of(error)) from error
        self._ray, self._control = ray, ControlThread(self._where)
        context = ray.get_runtime_context()
        self._own_node, self._endpoints = context.get_node_id(), [context.gcs_address]
        self._store = _control_store(context.gcs_address)
        if not self.address:
            self._endpoints += [f"{node.address}:{port}" for node, port in self._raylets()]

    def nodes(self) -> Mapping[str, RayNode]:
        """Return the live members that have processors, by our names. Raises ClusterUnreachable.

        Of two with one name the newer counts: a restarted raylet is listed before the old one is known to be gone.
        Raises RayForgot when the connection has to be closed before it is of use again.
        """
        self.open()
        for endpoint in self._endpoints:
            expect_answer(endpoint)
        nodes: dict[str, RayNode] = {}
        is_member = False
        for id_, info in self._members().items():
            is_member |= id_ == self._own_node
            node = RayNode(id_, info.node_manager_address, info.start_time_ms)
            name = info.labels.get(NODE_LABEL) or info.node_manager_hostname if self.address else LOCAL_NODE
            if info.resources_total.get("CPU") and (name not in nodes or nodes[name].started_ms < node.started_ms):
                nodes[name] = node
        if not is_member and nodes:
            raise RayForgot(self._where, "its raylet on this machine is gone; joining again")
        return nodes

    def agent(self, config: AgentConfig) -> Any:
        """Return the agent of a node, which is started if it does not run."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from workers.agent.agent import Agent

        make = self._ray.remote(Agent).options(
            name=f"agent:{config.node}",
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_concurrency=AGENT_THREADS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(config.raylet, soft=False),
        )
        return self.ask(lambda: make.remote(config))

    def kill(self, agent: Any) -> None:
        """Kill an agent's process."""
        ray = self._ray
        self.later(lambda: ray.kill(agent))

    def is_dead(self, error: BaseException) -> bool:
        """Whether an agent whose call raised this error is gone for good."""
        exceptions = self._ray.exceptions
        is_from_actor = isinstance(error, exceptions.RayActorError | exceptions.ActorUnschedulableError)
        return is_from_actor and not isinstance(error, exceptions.ActorUnavailableError)

    def make_group(self, name: str, bundles: Bundles) -> Any:
        """Ask for a placement group; `wait_for_group` waits until it is ready."""
        from ray.util.placement_group import placement_group

        return placement_group(
            [dict(bundle) for _, bundle in bundles],
            strategy="PACK",
            name=name,
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": node} for node, _ in bundles],
        )

    def wait_for_group(self, group: Any) -> bool:
        """Wait up to `GROUP_WAIT_S` for a group; return whether it is ready."""
        return bool(group.wait(GROUP_WAIT_S))

    def remove_group(self, name_or_group: Any) -> None:
        """Remove a group, and free what it holds; not waited for."""
        from ray.util.placement_group import get_placement_group, remove_placement_group

        def remove() -> None:
            is_name = isinstance(name_or_group, str)
            remove_placement_group(get_placement_group(name_or_group) if is_name else name_or_group)

        self.later(remove)

    def groups(self) -> Sequence[str]:
        """Return the names of our placement groups."""
        from ray.util.placement_group import placement_group_table

        table = self.ask(placement_group_table)
        return [
            group["name"]
            for group in table.values()
            if group["name"].startswith(GROUP_PREFIX) and group["state"] != "REMOVED"
        ]

    def ask(self, call: Callable[[], T], timeout_s: float = ANSWER_S) -> T:
        """Return what a call that needs the control store returns. Raises ClusterUnreachable."""
        assert self._control
        try:
            return self._control.ask(call, timeout_s)
        except (self._ray.exceptions.RayError, RuntimeError, ValueError, OSError, TimeoutError) as error:
            raise ClusterUnreachable(self._where, reason_of(error)) from error

    def close(self) -> None:
        """Disconnect from a cluster; end a local Ray and what is left of it."""
        ray, self._ray = self._ray, None
        if ray is None:
            return
        assert self._control
        if self.address:
            with suppress(ClusterUnreachable):
                self._control.ask(lambda: None, CLEAN_UP_S)  # the removals that were asked for
        self._control.close()
        self._store = self._control = None
        ray.shutdown()
        self._reap()

    def later(self, call: Callable[[], None]) -> None:
        """Make a call after those asked for before it, without waiting for it."""
        assert self._control
        self._control.submit(call)

    def _options(self) -> dict[str, Any]:
        """Return the options of `ray.init`: where to connect to, or what to start."""
        if self.address:
            return {"address": self.address}
        self._reaper = Reaper(new_ray_folder())
        return _local_options(self._describe(), self._reaper.folder)

    @contextmanager
    def _time_limit(self) -> Iterator[None]:
        timer = threading.Timer(JOIN_S, self._on_hang)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _reap(self) -> None:
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None

    def _expect_members(self, address: str) -> None:
        """Raise ConnectionError when no raylet runs on this machine yet: Ray itself would wait for long."""
        import psutil

        local = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
        members = _alive(_control_store(address).get_all_node_info(timeout=CONTROL_STORE_S))
        if not any(info.node_manager_address in local for info in members.values()):
            raise ConnectionError("it has no raylet on this machine: run `haloctl head` or `ray start` here")

    def _members(self) -> Mapping[str, Any]:
        """Return all live raylets by Ray's ids. Not with ray.nodes(), which ends this process when Ray's state was
        wiped."""
        try:
            timeout_s = CONTROL_STORE_S if self.address else LOCAL_CONTROL_STORE_S
            return _alive(self._store.get_all_node_info(timeout=timeout_s))
        except self._ray.exceptions.AuthenticationError as error:
            raise RayForgot(self._where, "its state was wiped; joining again") from error
        except (self._ray.exceptions.RayError, RuntimeError, OSError) as error:
            raise ClusterUnreachable(self._where, reason_of(error)) from error

    def _raylets(self) -> list[tuple[Any, int]]:
        infos = self._members().values()
        return [(RayNode("", info.node_manager_address, 0), info.node_manager_port) for info in infos]


def reason_of(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return f"{error}".strip().partition("\n")[0] or type(error).__name__


def _control_store(address: str) -> Any:
    from ray._private.services import GcsClient

    return GcsClient(address=address)


def _alive(infos: Mapping[Any, Any]) -> dict[str, Any]:
    return {id_.hex(): info for id_, info in infos.items() if info.state == info.ALIVE}


def _pass_on_errors() -> None:
    """Have Ray's own errors logged like all others of this process, and nothing else of it."""
    logger = logging.getLogger("ray")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.ERROR)


def _skip_monitors() -> None:
    """Have a local Ray start without its autoscaler and its log monitor, as options of `ray start` do.

    `ray.init` has no option for it; they take a second of processor time, and as long until Ray is up.
    """
    from ray._private import parameter

    if not isinstance(parameter.RayParams, partial):
        parameter.RayParams = partial(parameter.RayParams, include_log_monitor=False, no_monitor=True)


def _local_options(node: Node, folder: Path) -> dict[str, Any]:
    """Return the options for a Ray on loopback for this user alone, without a dashboard."""
    cpu_devices = node.count("cpu")
    return {
        "address": "local",
        "num_cpus": node.cpus,
        "num_gpus": len(node.devices) - cpu_devices,
        "resources": {CPU_DEVICE: cpu_devices},
        "include_dashboard": False,
        "_node_ip_address": "127.0.0.1",
        "_temp_dir": str(folder),
        "object_store_memory": OBJECT_STORE_BYTES,
    }
