"""To Ray: a local one that lives and dies with this process, or a cluster. The only module that imports ray."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from jobs.errors import ClusterUnreachable
from jobs.task import Node
from orchestrator.cluster.ray_address import expect_answer
from orchestrator.cluster.ray_commands import CPU_DEVICE, FIXED, LOOPBACK, NODE_LABEL, OBJECT_STORE_BYTES
from orchestrator.cluster.ray_token import use_own_token
from orchestrator.cluster.reaper import Reaper
from orchestrator.ray_executor.control import ANSWER_S, Control
from orchestrator.submitting import interrupts
from workers.device_masks import use_one_mask
from workers.orders import Post

T = TypeVar("T")
LOCAL = "local"
NAMESPACE = "haloctl"
CONTROL_STORE_S = 3.0
LOCAL_CONTROL_STORE_S = 15.0  #: one that ended is known by its doors; what else keeps it is how busy the machine is
ASIDE_S = 2.0  #: for what is only tidied up
AGENT_THREADS = 8  #: a cancel is answered while polls are under way
GROUP_PREFIX = "haloctl:"
GROUP_WAIT_S = 1  #: Ray 2.60 takes whole seconds

#: Of this process, for Ray.
DRIVER = {
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a late call starts no other Ray
    "RAY_DEDUP_LOGS_SKIP_REGEX": "^",  # what it thinks of dead processes would go to stdout
}

#: Of a group, for each of its nodes: Ray's name of it, and what is held there.
Shape = tuple[tuple[str, tuple[tuple[str, float], ...]], ...]


class RayForgot(ClusterUnreachable):
    """Ray does not know this process any more, which has to leave it and to join anew."""


@dataclass(frozen=True)
class RayNode:
    """A member of Ray's cluster that attempts can run on."""

    id: str  #: Ray's
    address: str
    started_ms: int


class Connection:
    """One at a time in a process: Ray keeps it in global variables."""

    def __init__(self, data: Path, address: str | None, describe: Callable[[], Node]) -> None:
        self.address = address
        self._data, self._describe = data, describe
        self._where = f"Ray at {address}" if address else "the local Ray"
        self._ray: Any = None
        self._reaper: Reaper | None = None  #: of the local Ray
        self._doors: list[str] = []  #: HOST:PORT where those of Ray's processes listen without which it is of no use
        self._store: Any = None  #: a client of the control store whose calls have time limits
        self._own_node = ""
        self._control: Control | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is a Ray to talk to, as far as is known."""
        return self._ray is not None

    def open(self) -> None:
        """Start or join Ray, if that is not done. Raises ClusterUnreachable."""
        if self._ray is not None:
            return
        os.environ.update({**FIXED, **DRIVER, **os.environ})
        use_one_mask(os.environ)
        if self.address:
            expect_answer(self.address)
        if self.address is None or self.address.startswith("127."):
            os.environ.update(LOOPBACK)
        if self.address is None:
            use_own_token(self._data)
        import ray

        _leave_out_monitors()
        try:
            with interrupts.kept():
                if self.address:
                    self._expect_members(self.address)
                ray.init(**self._options(), log_to_driver=False, logging_level=logging.ERROR, namespace=NAMESPACE)
        except Exception as error:  # Ray's own are of no kind where a raylet is too slow to come up
            self._reap()
            raise ClusterUnreachable(self._where, reason_of(error)) from error
        self._ray, self._control = ray, Control(self._where)
        context = ray.get_runtime_context()
        self._own_node, self._doors = context.get_node_id(), [context.gcs_address]
        self._store = _control_store(context.gcs_address)
        if not self.address:
            self._doors += [f"{node.address}:{port}" for node, port in self._raylets()]

    def nodes(self) -> Mapping[str, RayNode]:
        """The members that are alive and have processors, by our names. Raises ClusterUnreachable.

        Of two with one name the newer is meant: a raylet that was started anew is known before the old one is known
        to be gone. Raises RayForgot where it is to be closed before it is of use again.
        """
        self.open()
        for door in self._doors:
            expect_answer(door)
        found: dict[str, RayNode] = {}
        is_member = False
        for id_, info in self._members().items():
            is_member |= id_ == self._own_node
            node = RayNode(id_, info.node_manager_address, info.start_time_ms)
            name = info.labels.get(NODE_LABEL) or info.node_manager_hostname if self.address else LOCAL
            if info.resources_total.get("CPU") and (name not in found or found[name].started_ms < node.started_ms):
                found[name] = node
        if not is_member and found:
            raise RayForgot(self._where, "its raylet on this machine is gone; it is joined anew")
        return found

    def agent(self, post: Post) -> Any:
        """The agent of a node: the one that is there, or a new one."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from workers.agent import Agent

        make = self._ray.remote(Agent).options(
            name=f"agent:{post.node}",
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_concurrency=AGENT_THREADS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(post.raylet, soft=False),
        )
        return self.ask(lambda: make.remote(post))

    def kill(self, agent: Any) -> None:
        """End an agent's process."""
        ray = self._ray
        self.later(lambda: ray.kill(agent))

    def is_dead(self, error: BaseException) -> bool:
        """Whether an agent that answered so is gone for good."""
        exceptions = self._ray.exceptions
        is_actors = isinstance(error, exceptions.RayActorError | exceptions.ActorUnschedulableError)
        return is_actors and not isinstance(error, exceptions.ActorUnavailableError)

    def make_group(self, name: str, shape: Shape) -> Any:
        """Ask for a placement group; see `wait_for_group`."""
        from ray.util.placement_group import placement_group

        return placement_group(
            [dict(bundle) for _, bundle in shape],
            strategy="PACK",
            name=name,
            lifetime="detached",
            bundle_label_selector=[{"ray.io/node-id": node} for node, _ in shape],
        )

    def wait_for_group(self, group: Any) -> bool:
        """Whether a group is ready, within `GROUP_WAIT_S`."""
        return bool(group.wait(GROUP_WAIT_S))

    def remove_group(self, name_or_group: Any) -> None:
        """Give back what a group holds."""
        from ray.util.placement_group import get_placement_group, remove_placement_group

        def remove() -> None:
            is_name = isinstance(name_or_group, str)
            remove_placement_group(get_placement_group(name_or_group) if is_name else name_or_group)

        self.later(remove)

    def groups(self) -> Sequence[str]:
        """Names of our placement groups."""
        from ray.util.placement_group import placement_group_table

        found = self.ask(placement_group_table)
        return [
            group["name"]
            for group in found.values()
            if group["name"].startswith(GROUP_PREFIX) and group["state"] != "REMOVED"
        ]

    def ask(self, call: Callable[[], T], timeout_s: float = ANSWER_S) -> T:
        """What a call that needs the control store returns. Raises ClusterUnreachable."""
        assert self._control
        try:
            return self._control.ask(call, timeout_s)
        except (self._ray.exceptions.RayError, RuntimeError, ValueError, OSError, TimeoutError) as error:
            raise ClusterUnreachable(self._where, reason_of(error)) from error

    def close(self) -> None:
        """Leave a cluster; end a local Ray, and what is left of it."""
        ray, self._ray = self._ray, None
        if ray is None:
            return
        assert self._control
        if self.address:
            with suppress(ClusterUnreachable):
                self._control.ask(lambda: None, ASIDE_S)  # what is to be tidied up
        self._control.close()
        self._store = self._control = None
        ray.shutdown()
        self._reap()

    def later(self, call: Callable[[], None]) -> None:
        """Have a call made after those that were asked for before it; it is not waited for."""
        assert self._control
        self._control.tell(call)

    def _options(self) -> dict[str, Any]:
        """Where to connect to, or what to start."""
        if self.address:
            return {"address": self.address}
        self._reaper = Reaper()
        return _local_options(self._describe(), self._reaper.folder)

    def _reap(self) -> None:
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None

    def _expect_members(self, address: str) -> None:
        """Raise ConnectionError where no raylet is on this machine yet: Ray itself would wait for long."""
        import psutil

        own = {one.address for found in psutil.net_if_addrs().values() for one in found}
        members = _alive(_control_store(address).get_all_node_info(timeout=CONTROL_STORE_S))
        if not any(info.node_manager_address in own for info in members.values()):
            raise ConnectionError("no raylet of its runs on this machine: `haloctl head` and `ray start` start one")

    def _members(self) -> Mapping[str, Any]:
        """All living raylets, by Ray's names. Not asked with ray.nodes(), which ends this process when Ray's state was
        wiped."""
        try:
            timeout_s = CONTROL_STORE_S if self.address else LOCAL_CONTROL_STORE_S
            return _alive(self._store.get_all_node_info(timeout=timeout_s))
        except self._ray.exceptions.AuthenticationError as error:
            raise RayForgot(self._where, "its state was wiped; it is joined anew") from error
        except (self._ray.exceptions.RayError, RuntimeError, OSError) as error:
            raise ClusterUnreachable(self._where, reason_of(error)) from error

    def _raylets(self) -> list[tuple[Any, int]]:
        infos = self._members().values()
        return [(RayNode("", info.node_manager_address, 0), info.node_manager_port) for info in infos]


def reason_of(error: BaseException) -> str:
    """The first line of what an error says."""
    return f"{error}".strip().partition("\n")[0] or type(error).__name__


def _control_store(address: str) -> Any:
    from ray._private.services import GcsClient

    return GcsClient(address=address)


def _alive(infos: Mapping[Any, Any]) -> dict[str, Any]:
    return {id_.hex(): info for id_, info in infos.items() if info.state == info.ALIVE}


def _leave_out_monitors() -> None:
    """Have a local Ray start without its autoscaler and its log monitor, as `ray start` does where it is told so.

    `ray.init` has no option for it; they take a second of processor time, and as long until Ray is up.
    """
    from ray._private import parameter

    if not isinstance(parameter.RayParams, partial):
        parameter.RayParams = partial(parameter.RayParams, include_log_monitor=False, no_monitor=True)


def _local_options(node: Node, folder: Path) -> dict[str, Any]:
    """A Ray on loopback for this user alone, without a dashboard."""
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
