"""What runs on which nodes, and what came of it."""

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
from orchestrator.ray_executor.book import Book
from orchestrator.ray_executor.connection import LOCAL, Connection, RayForgot, RayNode, reason_of
from orchestrator.ray_executor.groups import Groups
from orchestrator.ray_executor.handed import Handed
from orchestrator.ray_executor.handing import Handing
from orchestrator.ray_executor.line import RETRY_S, Event, Line
from orchestrator.ray_executor.lines import Lines
from orchestrator.ray_executor.logs import Logs
from orchestrator.ray_executor.sameness import Sameness
from workers.agent import clock
from workers.artifacts import Location
from workers.devices import describe_node
from workers.orders import Post, Report, Superseded

LEASE_S = 15.0  #: an agent that has not heard of its head for so long ends all that it runs, and itself
MARGIN_S = 3.0  #: after which nothing of it is left
FIRST_ANSWERS_S = 3.0  #: what agents get to answer a head that begins to lead
FOLLOW_EVERY_S = 0.25  #: how often Ray's control store is asked for the members while all is well
LOCAL_ANSWER_S = 60.0  #: what a local Ray takes at most to start an agent


class RayExecutor:
    """Implements `orchestrator.executor.Executor`, on a local Ray or on the cluster at `address`.

    All but the making of events and the renewing of leases happens in the thread that calls: nothing is locked.
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
        self._sameness = Sameness(self._data, artifacts or self._data / "artifacts", toolchain)
        self._lease_s = lease_s if address else math.inf
        self._longest_silence_s = self._lease_s + margin_s
        self._term = 0
        self._describe = cache(lambda: describe_node(LOCAL))  # while no local agent does it
        self._connection = Connection(self._data, address, self._describe)
        self._groups = Groups(self._connection)
        self._book = Book(self._end_rest, lambda handed: self._release(handed.group))
        self._lines = Lines(self._connection, self._lease_s, self._post, self._tell, self._book.end_gangs_on)
        self._handing = Handing(self._book, self._lines, self._groups, has_books=address is not None)
        self._has_old_groups = False  #: some that earlier heads made may be in Ray's books
        self._logs = Logs()
        self._built: dict[str, Toolchain] = {}  #: by their locks' digests
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._wake: Callable[[], None] = lambda: None
        self._superseded: Superseded | None = None
        self._follow_again_at = 0.0

    def lead(self, term: int, known: Sequence[RunningAttempt]) -> None:
        """Ask the agents that are there what they have; a local Ray ends with whoever started it."""
        self._term, self._superseded = term, None
        self._book.take_over(known)
        self._lines.await_answers_of(self._book.nodes)
        if not self._address:
            for node in self._book.nodes:
                self._book.lose_all_on(node, "nobody runs it any more: whoever led was gone", FailureKind.LEASE_LOST)
            return
        self._has_old_groups = True
        self._follow_members()
        self._await(lambda: self._lines.are_ready, FIRST_ANSWERS_S)
        self._drop_old_groups()

    def wakes(self, wake: Callable[[], None]) -> None:
        """`wake` is called from Ray's threads."""
        self._wake = wake

    def nodes(self) -> Sequence[Node]:
        """The local machine as it is, or every live node of the cluster whose agent answers."""
        if self._address:
            self._keep_up()
            self._groups.drop_idle()
            self._drop_old_groups()
            return [line.described for line in self._lines if self._lines.ready(line.node)]
        if self._connection.is_open:
            with suppress(ClusterUnreachable):  # then what it ran is lost, and the next attempt starts another one
                self._keep_up()
        local = self._lines.ready(LOCAL)
        return [local.described if local else self._describe()]

    def closed(self) -> Mapping[str, str]:
        """Nodes that drain, lack the head's artifact store, or differ from the head in what is installed."""
        found = {}
        for line in self._lines:
            if line.report and (reason := line.closed or self._sameness.difference(line.report.toolchain)):
                found[line.node] = reason
        return found

    def open(self) -> None:
        """Start or join Ray, with an agent on every node."""
        if self._lines.by_node and self._lines.are_ready:
            return
        self._follow_members()
        if not self._address:
            self._await(lambda: self._lines.ready(LOCAL) is not None or not self._lines.by_node, LOCAL_ANSWER_S)
            if self._lines.ready(LOCAL) is None:
                raise ClusterUnreachable("the local Ray", "its agent does not start; Ray's logs say why")

    def start(self, attempts: Sequence[Attempt]) -> dict[str, str]:
        """Hold the devices in Ray's books, then hand the attempts to their nodes' agents: all of a gang's, or none."""
        if not self._address:
            self.open()
        self._hear()
        return self._handing.hand_over(attempts)

    def build(self, wanted: Mapping[str, Sequence[Lock]]) -> None:
        """Ask the agents; their polls tell what came of it."""
        if not self._address:
            self.open()
        self._hear()
        for node, locks in wanted.items():
            if line := self._lines.ready(node):
                line.build(locks)

    def built(self) -> Mapping[str, Toolchain]:
        """Those that agents told of."""
        return self._built

    def forget_builds(self, digests: Collection[str]) -> None:
        """Until agents are asked again."""
        for line in self._lines:
            line.forget_builds(digests)

    def running(self) -> set[str]:
        """Ids of the attempts whose results were not collected yet."""
        return set(self._book.handed)

    def collect(self, wait_s: float) -> list[TaskResult]:
        """Results of all agents, and the losses of those that are silent for longer than their lease."""
        for handed in self._book.stored():
            for node in handed.nodes:
                if node in self._lines.by_node:
                    self._lines.by_node[node].forget([handed.id])
        self._tend()
        self._await(lambda: self._book.has_results, wait_s)
        return self._book.collect()

    def cancel(self, attempt: str) -> None:
        """Ask the agents; they answer with results when everything has ended."""
        handed = self._book.handed.get(attempt)
        if handed:
            self._book.end(handed)

    def follow(self, attempts: Collection[str]) -> list[LogChunk]:
        """Through the agents, whose answers a later call gives; of a gang the log of its first node."""
        self._hear()
        handed = self._book.handed
        self._logs.follow(one for one in attempts if one in handed)
        for line in self._lines:
            if wanted := {one: at for one, at in self._logs.offsets.items() if handed[one].nodes[0] == line.node}:
                line.read_logs(wanted)
        return self._logs.taken()

    def leave(self) -> None:
        """Leave the cluster as it is; a local Ray can't be left."""
        if self._address:
            self._disconnect()
        else:
            self.close()

    def close(self) -> None:
        """End all attempts and agents, then the local Ray or the connection."""
        if self._connection.is_open:
            self._lines.end_agents()
            self._groups.drop_all()
        self._disconnect()
        self._book.take_over([])

    def _disconnect(self) -> None:
        self._lines.close()
        self._groups.forget()
        self._connection.close()

    def _keep_up(self) -> None:
        """Follow the members as they come and go. Raises ClusterUnreachable."""
        if clock() < self._follow_again_at and self._connection.is_open:
            self._tend()
            return
        self._follow_members()
        self._follow_again_at = clock() + FOLLOW_EVERY_S

    def _follow_members(self) -> None:
        """Have a line to every node's agent, and none to others. Raises ClusterUnreachable."""
        if self._superseded:
            raise ClusterUnreachable(f"Ray at {self._address}", str(self._superseded))
        was_open = self._connection.is_open
        try:
            members = self._connection.nodes()
        except ClusterUnreachable as error:
            if isinstance(error, RayForgot) or (was_open and not self._address):
                self._lose_ray(error)
            raise
        self._hear()
        self._lines.follow(members, self._term)
        self._tend()

    def _post(self, node: str, member: RayNode) -> Post:
        """What the agent of a node is told."""
        artifacts = self._sameness.artifacts
        if not self._address:
            return Post(node, self._data, artifacts, raylet=member.id)
        mark = self._sameness.mark
        return Post(node, self._data, artifacts, mark, member.address, self._lease_s, member.id, is_member=True)

    def _tell(self, event: Event) -> None:
        """Called from any thread."""
        self._events.put(event)
        self._wake()

    def _await(self, is_over: Callable[[], bool], wait_s: float) -> None:
        """Take events in until something is so, for so long at most."""
        self._hear()
        deadline = time.monotonic() + wait_s
        while not is_over() and (left_s := deadline - time.monotonic()) > 0:
            with suppress(queue.Empty):
                self._take(self._events.get(timeout=min(left_s, RETRY_S)))
            self._tend()

    def _hear(self) -> None:
        """Take in what came."""
        with suppress(queue.Empty):
            while True:
                self._take(self._events.get_nowait())

    def _tend(self) -> None:
        """Ask agents again that did not answer; give up nodes that are silent for longer than a lease lasts."""
        self._hear()
        self._lines.tend(self._book.expected)
        for line in self._lines:
            if line.is_lost(self._longest_silence_s):
                self._lines.end_agent(line.node)
        for node in self._book.nodes:
            if self._lines.silence_s(node) > self._longest_silence_s:
                self._book.lose_all_on(node, f"node {node} has not answered for {self._longest_silence_s:g} s")

    def _take(self, event: Event) -> None:
        line = event.line
        if self._lines.by_node.get(line.node) is not line:
            return  # of an agent that was given up
        self._lines.hear(line)
        if event.error is not None:
            self._take_error(line, event.error)
            return
        match event.call:
            case "obey":
                self._adopt(line, event.answer)
            case "start":
                self._see_begun(line, event.about)
                self._lose_unknown(line.node, event.answer)
            case "build":
                line.builds(event.about, event.answer)
            case "poll":
                self._built |= {toolchain.lock: toolchain for toolchain in event.answer.built}
                self._take_results(line, event.answer.results)
                line.polled(event.answer)
                line.poll()
            case "read_logs":
                self._logs.add(event.answer)

    def _take_error(self, line: Line, error: BaseException) -> None:
        if isinstance(error, Superseded):
            self._superseded = error
        elif self._connection.is_dead(error):
            self._lines.lose(line.node)
        else:
            line.is_silent()

    def _adopt(self, line: Line, report: Report) -> None:
        """An agent obeys: what it has goes on, and what it lacks is lost."""
        line.obeys(report)
        for attempt, group in report.has.items():
            if handed := self._book.handed.get(attempt):
                handed.group = handed.group or group
        self._see_begun(line, list(report.has))
        self._lose_unknown(line.node, [one.id for one in self._book.open_on(line.node) if one.id not in report.has])

    def _see_begun(self, line: Line, attempts: Sequence[str]) -> None:
        """An agent has these: their ends may have been asked for before it could be told."""
        for handed in [self._book.handed[attempt] for attempt in attempts if attempt in self._book.handed]:
            handed.begun_on.add(line.node)
            if handed.is_ending:
                line.cancel([handed.id])

    def _lose_unknown(self, node: str, attempts: Sequence[str]) -> None:
        self._book.lose(attempts, node, f"the agent of node {node} was ended, and what it ran with it")

    def _take_results(self, line: Line, results: Sequence[TaskResult]) -> None:
        for result in results:
            if not self._book.take(line.node, result) and self._book.is_stored(result.attempt):
                line.forget([result.attempt])

    def _end_rest(self, handed: Handed) -> None:
        for node in handed.open_nodes:
            if (line := self._lines.by_node.get(node)) and node in handed.begun_on:
                line.cancel([handed.id])

    def _release(self, group: str | None) -> None:
        if group and self._connection.is_open:
            self._groups.release(group)

    def _drop_old_groups(self) -> None:
        """Remove what earlier heads held and nobody needs, once all agents have said what they have, also those whose
        nodes are not members yet."""
        has_all = self._lines.are_ready and all(self._lines.ready(node) for node in self._book.nodes)
        if self._has_old_groups and has_all:
            self._groups.drop_unknown({handed.group for handed in self._book.handed.values() if handed.group})
            self._has_old_groups = False

    def _lose_ray(self, error: BaseException) -> None:
        """Ray is not what it was. Of a local one nothing is kept; in a cluster agents live on, and are looked for."""
        self._disconnect()
        self._has_old_groups = True
        if not self._address:
            self._book.lose_all_on(LOCAL, f"node {LOCAL} stopped answering: {reason_of(error)}")
