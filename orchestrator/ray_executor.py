"""Running attempts on Ray: one agent a node, one placement group an attempt. The only module that imports ray.

Without an address a local Ray is started when the first attempt is, and ended with the executor.
Ray decides nothing here: the scheduler says which node and which devices; a placement group of that size, pinned to
that node, keeps the devices in Ray's books so that other users of the cluster keep off.
"""

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from db.store import RunningAttempt
from jobs.errors import ClusterUnreachable
from jobs.state import Failure, FailureKind
from jobs.task import Attempt, Node, TaskResult
from orchestrator import interrupts
from orchestrator.executor import LogChunk
from orchestrator.ray_address import expect_answer
from orchestrator.ray_token import use_own_token
from orchestrator.reaper import Reaper
from workers.devices import describe_node

LOCAL = "local"
GROUP_READY_S = 5.0  #: a placement group that fits is ready in milliseconds
LONG_POLL_S = 5.0  #: how long an agent may think about a poll when nothing has ended
ANSWER_S = 60.0  #: an agent answers at once unless its node is gone
CPU_DEVICE = "cpu_device"  #: Ray's name for our logical CPU devices


class NoRoom(Exception):
    """A node that looked free is not: somebody else holds what the attempt needs."""


class RayExecutor:
    """Implements `orchestrator.executor.Executor`."""

    def __init__(self, data: Path, address: str | None = None) -> None:
        self._data, self._address = data, address
        self._ray: Any = None
        self._reaper: Reaper | None = None  #: of the local Ray
        self._doors: list[str] = []  #: HOST:PORT where those of Ray's processes listen without which it is of no use
        self._nodes: dict[str, Node] = {} if address else {LOCAL: describe_node(LOCAL)}
        self._agents: dict[str, Any] = {}
        self._groups: dict[str, Any] = {}
        self._where: dict[str, Attempt] = {}
        self._on: dict[str, str] = {}
        self._polls: dict[str, Any] = {}  #: by node: the call that its agent answers when it has something
        self._taken: dict[str, list[str]] = {}  #: by node: results that the head has stored since they were collected
        self._lost_before: set[str] = set()  #: of those, the attempts of an earlier leader
        self._losses: list[TaskResult] = []  #: found out by the way; the next `collect` tells them

    def lead(self, term: int, known: Sequence[RunningAttempt]) -> None:
        """A local Ray ends with whoever started it: nothing of an earlier leader's runs."""
        reason = "nobody runs it any more: whoever led was gone"
        failure = Failure(FailureKind.LEASE_LOST, reason)
        self._losses += [TaskResult(one.id, one.epoch, failure) for one in known]
        self._lost_before = {one.id for one in known}

    def wakes(self, wake: Callable[[], None]) -> None:
        """Not yet: `collect` waits by itself."""

    def closed(self) -> Mapping[str, str]:
        """None: nothing is looked at yet."""
        return {}

    def nodes(self) -> Sequence[Node]:
        """The local machine as it is, or every live node of the cluster that an agent answers from."""
        if self._ray is not None:
            self._expect_ray()
        if self._address:
            self.open()
        return list(self._nodes.values())

    def open(self) -> None:
        """Start or join Ray, and an agent on every node."""
        self._connect()
        self._find_agents()

    def start(self, attempts: Sequence[Attempt]) -> dict[str, str]:
        """Hold the devices in Ray's books, then hand the attempts to their nodes' agents."""
        refused = {}
        for attempt in attempts:
            try:
                self._start(attempt.places[0].node, attempt)
            except NoRoom as error:
                refused[attempt.id] = str(error)
        return refused

    def _start(self, node: str, attempt: Attempt) -> None:
        """Hand one attempt over.

        Where the agent does not answer the attempt is lost like those that it ran.
        """
        self.open()
        if node not in self._agents:
            raise NoRoom(f"node {node} is gone")
        self._where[attempt.id], self._on[attempt.id] = attempt, node
        try:
            self._groups[attempt.id] = self._hold(node, attempt)
            self._ray.get(self._agents[node].start.remote(attempt), timeout=ANSWER_S)
        except NoRoom:
            self._forget(attempt.id)
            raise
        except self._ray.exceptions.RayError as error:
            self._losses += self._lost(node, _reason(error))

    def running(self) -> set[str]:
        """Ids of the attempts whose results were not collected yet."""
        return set(self._where) | self._lost_before

    def collect(self, wait_s: float) -> list[TaskResult]:
        """Finished attempts of all agents; those of a node whose agent is gone come back as node_lost.

        Agents are polled with calls that they answer when they have something. The results of a call are acknowledged
        to their agents by the next one: the head has stored them by then.
        """
        for node in {*self._on.values(), *self._taken}:
            if node in self._agents and node not in self._polls:
                self._polls[node] = self._agents[node].poll.remote(self._taken.pop(node, []), LONG_POLL_S)
        results, self._losses = self._losses, []
        if self._polls:
            wait_s = 0.0 if results else wait_s
            answered, _ = self._ray.wait([*self._polls.values()], num_returns=1, timeout=wait_s)
            for node in [node for node, poll in self._polls.items() if poll in answered]:
                results += self._answer(node)
        elif not results:
            time.sleep(wait_s)
        for result in results:
            self._lost_before.discard(result.attempt)
            self._forget(result.attempt)
        return results

    def _answer(self, node: str) -> list[TaskResult]:
        try:
            found: list[TaskResult] = self._ray.get(self._polls.pop(node), timeout=ANSWER_S)
        except self._ray.exceptions.RayError as error:
            return self._lost(node, _reason(error))
        if found:
            self._taken[node] = [result.attempt for result in found]
        return [result for result in found if result.attempt in self._where]

    def cancel(self, attempt: str) -> None:
        """Ask the agent; it answers with a result when everything has ended."""
        agent = self._agents.get(self._on.get(attempt, ""))
        if agent is not None:
            with suppress(self._ray.exceptions.RayError):
                self._ray.get(agent.cancel.remote(attempt), timeout=ANSWER_S)

    def follow(self, attempts: Collection[str]) -> list[LogChunk]:
        """Nothing: who follows reads the data folder."""
        return []

    def leave(self) -> None:
        """A local Ray can't be left."""
        self.close()

    def close(self) -> None:
        """End all attempts, then the local Ray or the connection."""
        if self._ray is None:
            return
        for agent in self._agents.values():
            with suppress(self._ray.exceptions.RayError):
                self._ray.get(agent.stop.remote(), timeout=ANSWER_S)
        for attempt in list(self._where):
            self._forget(attempt)
        self._end_ray()

    def _connect(self) -> None:
        if self._ray is not None:
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")  # what it thinks of dead processes would go to stdout
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # keep Ray's hands off the GPU masks
        if self._address:
            expect_answer(self._address)
        else:  # without it Ray 2.60 on Linux turns 127.0.0.1 into the host's outer address
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
            use_own_token(self._data)
        import ray

        try:
            with interrupts.kept():
                ray.init(**self._options(), log_to_driver=False, logging_level=logging.ERROR, namespace="haloctl")
        except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
            self._reap()
            where = f"Ray at {self._address}" if self._address else "the local Ray"
            raise ClusterUnreachable(where, _reason(error)) from error
        self._ray = ray
        self._doors = [ray.get_runtime_context().gcs_address]
        if not self._address:
            self._doors += [f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}" for node in ray.nodes()]

    def _options(self) -> dict[str, Any]:
        """Where to connect to, or what to start."""
        if self._address:
            return {"address": self._address}
        self._reaper = Reaper()
        return _local_options(self._nodes[LOCAL], self._reaper.folder)

    def _reap(self) -> None:
        if self._reaper is not None:
            self._reaper.close()
            self._reaper = None

    def _find_agents(self) -> None:
        """Start agents on nodes that have none; forget nodes that are gone."""
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        if not self._address:
            if LOCAL not in self._agents:
                self._agents[LOCAL] = self._start_agent(LOCAL, next(iter(alive)))
            return
        for node in alive - self._agents.keys():
            agent = self._start_agent(node, node)
            with suppress(self._ray.exceptions.RayError):
                self._nodes[node] = self._ray.get(agent.describe.remote(), timeout=ANSWER_S)
                self._agents[node] = agent
        for node in self._nodes.keys() - alive:
            del self._nodes[node]

    def _start_agent(self, node: str, ray_node: str) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from workers.agent import Agent

        return (
            self._ray.remote(Agent)
            .options(
                num_cpus=0,
                max_concurrency=4,  # a cancel is answered while a poll is under way
                scheduling_strategy=NodeAffinitySchedulingStrategy(ray_node, soft=False),
            )
            .remote(node, self._data)
        )

    def _hold(self, node: str, attempt: Attempt) -> Any:
        """A placement group of the attempt's size, on its node.

        Ray 2.60 takes up to a second to see that a removed group's resources are free again. On a cluster that is
        waited for, because somebody else may hold them; a local Ray has no other users, so its books may lag.
        """
        from ray.util.placement_group import placement_group, remove_placement_group

        ray_node = self._ray.get_runtime_context().get_node_id() if node == LOCAL else node
        group = placement_group(
            [_bundle(attempt)], strategy="STRICT_PACK", bundle_label_selector=[{"ray.io/node-id": ray_node}]
        )
        if self._address and not group.wait(GROUP_READY_S):
            remove_placement_group(group)
            raise NoRoom(f"Ray has no room for {attempt.id} on node {node}")
        return group

    def _forget(self, attempt: str) -> None:
        from ray.util.placement_group import remove_placement_group

        self._where.pop(attempt, None)
        self._on.pop(attempt, None)
        group = self._groups.pop(attempt, None)
        if group is not None:
            with suppress(self._ray.exceptions.RayError):
                remove_placement_group(group)

    def _expect_ray(self) -> None:
        """Look whether Ray is there: Ray 2.60 ends this process a minute after its control store is gone."""
        try:
            for door in self._doors:
                expect_answer(door)
        except ClusterUnreachable:
            if self._address:
                raise
            self._losses += self._lost(LOCAL, "a process of Ray is gone")

    def _lost(self, node: str, reason: str) -> list[TaskResult]:
        """What becomes of a node's attempts when its agent does not answer: they are ended for good.

        Of a local Ray nothing is kept: the next attempt starts another one.
        """
        agent = self._agents.pop(node, None)
        self._polls.pop(node, None)
        self._taken.pop(node, None)
        if not self._address:
            self._end_ray()
        elif agent is not None:
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(agent)
        failure = Failure(FailureKind.NODE_LOST, f"node {node} stopped answering: {reason}")
        lost = [attempt for name, attempt in self._where.items() if self._on[name] == node]
        return [TaskResult(attempt.id, attempt.epoch, failure) for attempt in lost]

    def _end_ray(self) -> None:
        for held in (self._agents, self._groups, self._polls, self._taken):
            held.clear()
        ray, self._ray = self._ray, None
        ray.shutdown()
        self._reap()


def _reason(error: Exception) -> str:
    return f"{error}".strip().splitlines()[0]


def _bundle(attempt: Attempt) -> dict[str, float]:
    """What Ray is told that an attempt holds."""
    bundle: dict[str, float] = {"CPU": attempt.cpus}
    if attempt.devices:
        is_cpu = attempt.devices[0].kind == "cpu"
        bundle[CPU_DEVICE if is_cpu else "GPU"] = len(attempt.devices)
    return bundle


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
        "object_store_memory": 80 << 20,  # files never travel through it
    }
