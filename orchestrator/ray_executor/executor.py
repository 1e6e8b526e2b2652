"""Follows the cluster's nodes, handles the events of their agents, and reports what became of attempts."""

import math
import queue
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from db.store import RunningAttempt
from jobs.errors import ClusterUnreachable
from jobs.state import FailureKind
from jobs.task import Attempt, LogChunk, Node, TaskResult
from jobs.toolchains import Lock, Toolchain
from orchestrator.executor import LOCAL_NODE
from orchestrator.ray_executor.agent_client import RETRY_S, AgentClient, AgentEvent
from orchestrator.ray_executor.agent_clients import AgentClients
from orchestrator.ray_executor.connection import Connection, RayForgot, RayNode, reason_of
from orchestrator.ray_executor.dispatch import Dispatcher
from orchestrator.ray_executor.followed_logs import FollowedLogs
from orchestrator.ray_executor.in_flight import InFlightAttempt, InFlightAttempts
from orchestrator.ray_executor.placement_groups import PlacementGroups
from orchestrator.ray_executor.version_skew import VersionSkew
from workers import daemon_log
from workers.agent.protocol import AgentConfig, AgentStatus, StaleTerm
from workers.artifacts import Location
from workers.machine.devices import describe_node
from workers.processes.lease import boot_clock_s

logger = daemon_log.logger(__name__)

LEASE_S = 15.0  #: an agent that has not heard of its head for so long ends all that it runs, and itself
MARGIN_S = 3.0  #: after the lease, until nothing of the agent is left
FIRST_ANSWERS_S = 3.0  #: for agents to answer at the start of a term
MEMBERS_EVERY_S = 0.25  #: how often Ray's control store is asked for the members while all is well
LOCAL_START_S = 60.0  #: for a local Ray to start an agent


class RayExecutor:
    """Implements `orchestrator.executor.Executor`, on a local Ray or on the cluster at `address`.

    All but the emission of events and the renewal of leases happens in the caller's thread: nothing is locked.
    """

    def __init__(
        self,
        data: Path,
        address: str | None = None,
        artifacts: Location | None = None,
        toolchain: Toolchain | None = None,
        lease_s: float = LEASE_S,
        margin_s: float = MARGIN_S,
    ) -> None:
        """`artifacts` is the store that all nodes share, by default in `data`; `toolchain` is what nodes must have,
        by default what is installed here."""
        self._data, self._address = data.absolute(), address
        self._version_skew = VersionSkew(self._data, artifacts or self._data / "artifacts", toolchain)
        self._lease_s = lease_s if address else math.inf
        self._max_silence_s = self._lease_s + margin_s
        self._term = 0
        self._describe_local = cache(lambda: describe_node(LOCAL_NODE))  # until a local agent does it
        self._connection = Connection(self._data, address, self._describe_local, self._ray_hangs)
        self._groups = PlacementGroups(self._connection)
        self._in_flight = InFlightAttempts(self._cancel_rest, lambda attempt: self._release(attempt.group))
        self._clients = AgentClients(
            self._connection, self._lease_s, self._agent_config, self._emit, self._in_flight.cancel_gangs_on
        )
        self._dispatcher = Dispatcher(self._in_flight, self._clients, self._groups, holds_devices=address is not None)
        self._has_old_groups = False  #: Ray may have groups that earlier heads made
        self._logs = FollowedLogs()
        self._built: dict[str, Toolchain] = {}  #: by their locks' digests
        self._events: queue.SimpleQueue[AgentEvent] = queue.SimpleQueue()
        self._wake: Callable[[], None] = lambda: None
        self._stale: StaleTerm | None = None  #: a newer head leads
        self._next_members_at = 0.0

    def start_term(self, term: int, running: Sequence[RunningAttempt]) -> None:
        """Ask the agents what they have; a local Ray has ended with its head."""
        self._term, self._stale = term, None
        self._in_flight.adopt(running)
        self._clients.restart_silence(self._in_flight.nodes)
        if not self._address:
            for node in self._in_flight.nodes:
                self._in_flight.lose_all_on(node, "the process that led has ended", FailureKind.LEASE_LOST)
            return
        self._has_old_groups = True
        self._sync_members()
        self._wait_until(lambda: self._clients.are_ready, FIRST_ANSWERS_S)
        self._remove_old_groups()

    def set_wakeup(self, wake: Callable[[], None]) -> None:
        """`wake` is called from Ray's threads."""
        self._wake = wake

    def nodes(self) -> Sequence[Node]:
        """Return this machine, or every live node of the cluster whose agent answers."""
        if self._address:
            self._update_members()
            self._groups.remove_idle()
            self._remove_old_groups()
            return [client.description for client in self._clients if self._clients.ready(client.node)]
        if self._connection.is_open:
            with suppress(ClusterUnreachable):  # then what it ran is lost, and the next attempt starts another Ray
                self._update_members()
        local = self._clients.ready(LOCAL_NODE)
        return [local.description if local else self._describe_local()]

    def cordoned(self) -> Mapping[str, str]:
        """Return nodes that drain, lack the head's artifact store, or differ from the head in what is installed."""
        reasons = {}
        for client in self._clients:
            if client.status and (
                reason := client.cordon_reason or self._version_skew.explain(client.status.toolchain)
            ):
                reasons[client.node] = reason
        return reasons

    def ensure_ready(self) -> None:
        """Start or join Ray, with an agent on every node."""
        if self._clients.by_node and self._clients.are_ready:
            return
        self._sync_members()
        if not self._address:
            self._wait_until(
                lambda: self._clients.ready(LOCAL_NODE) is not None or not self._clients.by_node, LOCAL_START_S
            )
            if self._clients.ready(LOCAL_NODE) is None:
                raise ClusterUnreachable("the local Ray", "its agent does not start; see Ray's logs")

    def start(self, attempts: Sequence[Attempt]) -> dict[str, str]:
        """Have Ray hold the devices, then dispatch the attempts to their nodes' agents: all of a gang, or none."""
        if not self._address:
            self.ensure_ready()
        self._handle_events()
        return self._dispatcher.dispatch(attempts)

    def build_toolchains(self, wanted: Mapping[str, Sequence[Lock]]) -> None:
        """Ask the agents; their polls tell the outcome."""
        if not self._address:
            self.ensure_ready()
        self._handle_events()
        for node, locks in wanted.items():
            if client := self._clients.ready(node):
                client.build(locks)

    def built_toolchains(self) -> Mapping[str, Toolchain]:
        """Return those that agents reported."""
        return self._built

    def forget_build_failures(self, digests: Collection[str]) -> None:
        """Ignore them until the agents are asked again."""
        for client in self._clients:
            client.forget_build_failures(digests)

    def in_flight(self) -> set[str]:
        """Return the ids of the attempts whose results were not collected yet."""
        return set(self._in_flight.by_id)

    def collect(self, wait_s: float) -> list[TaskResult]:
        """Return the results of all agents, and fail what runs on nodes that are silent for longer than their lease."""
        for attempt in self._in_flight.take_stored():
            for node in attempt.nodes:
                if node in self._clients.by_node:
                    self._clients.by_node[node].forget([attempt.id])
        self._maintain_clients()
        self._wait_until(lambda: self._in_flight.has_results, wait_s)
        return self._in_flight.collect()

    def cancel(self, attempt: str) -> None:
        """Ask the agents; they answer with results when everything has ended."""
        if in_flight := self._in_flight.by_id.get(attempt):
            self._in_flight.cancel(in_flight)

    def read_logs(self, attempts: Collection[str]) -> list[LogChunk]:
        """Ask the agents, whose answers a later call returns; of a gang, the log of its first node."""
        self._handle_events()
        by_id = self._in_flight.by_id
        self._logs.follow(attempt for attempt in attempts if attempt in by_id)
        for client in self._clients:
            offsets = {
                attempt: offset
                for attempt, offset in self._logs.offsets.items()
                if by_id[attempt].nodes[0] == client.node
            }
            if offsets:
                client.read_logs(offsets)
        return self._logs.take()

    def detach(self) -> None:
        """Leave the cluster as it is; a local Ray is closed, for it can't outlive this process."""
        if self._address:
            self._disconnect()
        else:
            self.close()

    def close(self) -> None:
        """End all attempts and agents, then the local Ray or the connection."""
        if self._connection.is_open:
            self._clients.stop_all()
            self._groups.remove_all()
        self._disconnect()
        self._in_flight.adopt([])

    def _disconnect(self) -> None:
        self._clients.close()
        self._groups.forget()
        self._connection.close()

    def _update_members(self) -> None:
        """Follow the members as they come and go, now and then. Raises ClusterUnreachable."""
        if boot_clock_s() < self._next_members_at and self._connection.is_open:
            self._maintain_clients()
            return
        self._sync_members()
        self._next_members_at = boot_clock_s() + MEMBERS_EVERY_S

    def _sync_members(self) -> None:
        """Have a client for every member's agent, and for no others. Raises ClusterUnreachable."""
        if self._stale:
            raise ClusterUnreachable(f"Ray at {self._address}", str(self._stale))
        was_open = self._connection.is_open
        try:
            members = self._connection.nodes()
        except ClusterUnreachable as error:
            if isinstance(error, RayForgot) or (was_open and not self._address):
                self._lose_ray(error)
            raise
        self._handle_events()
        self._clients.sync(members, self._term)
        self._maintain_clients()

    def _agent_config(self, node: str, member: RayNode) -> AgentConfig:
        artifacts = self._version_skew.artifacts
        if not self._address:
            return AgentConfig(node, self._data, artifacts, raylet=member.id)
        mark = self._version_skew.mark
        return AgentConfig(node, self._data, artifacts, mark, member.address, self._lease_s, member.id, is_member=True)

    def _emit(self, event: AgentEvent) -> None:
        """Queue an event; called from any thread."""
        self._events.put(event)
        self._wake()

    def _wait_until(self, is_over: Callable[[], bool], wait_s: float) -> None:
        """Handle events until a condition holds, for `wait_s` at most."""
        self._handle_events()
        deadline = time.monotonic() + wait_s
        while not is_over() and (left_s := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                self._handle(self._events.get(timeout=min(left_s, RETRY_S)))
            self._maintain_clients()

    def _handle_events(self) -> None:
        with suppress(queue.Empty):
            while True:
                self._handle(self._events.get_nowait())

    def _maintain_clients(self) -> None:
        """Call again the agents that did not answer; give up nodes that are silent for longer than a lease lasts."""
        self._handle_events()
        self._clients.maintain(self._in_flight.expected)
        for client in self._clients:
            if client.is_lost(self._max_silence_s):
                self._clients.kill(client.node)
        for node in self._in_flight.nodes:
            if self._clients.silence_s(node) > self._max_silence_s:
                self._in_flight.lose_all_on(node, f"node {node} has not answered for {self._max_silence_s:g} s")

    def _handle(self, event: AgentEvent) -> None:
        client = event.client
        if self._clients.by_node.get(client.node) is not client:
            return  # of an agent that was given up
        self._clients.note_answer(client)
        if event.error is not None:
            self._handle_error(client, event.call, event.error)
            return
        match event.call:
            case "accept_leader":
                self._adopt(client, event.answer)
            case "start":
                self._confirm_started(client, event.subjects)
                self._lose_unknown(client.node, event.answer)
            case "build":
                client.builds_requested(event.subjects, event.answer)
            case "poll":
                self._built |= {toolchain.lock: toolchain for toolchain in event.answer.built_toolchains}
                self._add_results(client, event.answer.results)
                client.polled(event.answer)
                client.poll()
            case "read_logs":
                self._logs.add(event.answer)

    def _handle_error(self, client: AgentClient, call: str, error: BaseException) -> None:
        if isinstance(error, StaleTerm):
            self._stale = error
        elif self._connection.is_dead(error):
            self._clients.lose(client.node)
        else:
            logger.warning("the agent of node %s: %s failed: %s", client.node, call, reason_of(error), node=client.node)
            client.failed()

    def _adopt(self, client: AgentClient, status: AgentStatus) -> None:
        """Adopt the attempts of an agent that has accepted this head; those that it lacks are lost."""
        client.accepted(status)
        for id_, group in status.attempts.items():
            if attempt := self._in_flight.by_id.get(id_):
                attempt.group = attempt.group or group
        self._confirm_started(client, list(status.attempts))
        missing = [attempt.id for attempt in self._in_flight.open_on(client.node) if attempt.id not in status.attempts]
        self._lose_unknown(client.node, missing)

    def _confirm_started(self, client: AgentClient, attempts: Sequence[str]) -> None:
        """Note that an agent has attempts; cancel those that were cancelled before it could be told."""
        for attempt in [self._in_flight.by_id[id_] for id_ in attempts if id_ in self._in_flight.by_id]:
            attempt.started_on.add(client.node)
            if attempt.is_cancelled:
                client.cancel([attempt.id])

    def _lose_unknown(self, node: str, attempts: Sequence[str]) -> None:
        self._in_flight.lose(attempts, node, f"the agent of node {node} was ended, and what it ran with it")

    def _add_results(self, client: AgentClient, results: Sequence[TaskResult]) -> None:
        for result in results:
            if not self._in_flight.add_result(client.node, result) and self._in_flight.is_stored(result.attempt):
                client.forget([result.attempt])

    def _cancel_rest(self, attempt: InFlightAttempt) -> None:
        for node in attempt.open_nodes:
            if (client := self._clients.by_node.get(node)) and node in attempt.started_on:
                client.cancel([attempt.id])

    def _release(self, group: str | None) -> None:
        if group and self._connection.is_open:
            self._groups.release(group)

    def _remove_old_groups(self) -> None:
        """Remove groups that earlier heads made and nobody needs, once all agents have said what they have, also those
        whose nodes are not members yet."""
        is_complete = self._clients.are_ready and all(self._clients.ready(node) for node in self._in_flight.nodes)
        if self._has_old_groups and is_complete:
            self._groups.remove_unknown({attempt.group for attempt in self._in_flight.by_id.values() if attempt.group})
            self._has_old_groups = False

    def _ray_hangs(self) -> None:
        """Do nothing about a join that takes long: a local Ray on a busy machine does."""

    def _lose_ray(self, error: BaseException) -> None:
        """Disconnect from a Ray that forgot this process. A local one is lost; in a cluster agents live on, and are
        found again."""
        self._disconnect()
        self._has_old_groups = True
        if not self._address:
            self._in_flight.lose_all_on(LOCAL_NODE, f"node {LOCAL_NODE} stopped answering: {reason_of(error)}")
