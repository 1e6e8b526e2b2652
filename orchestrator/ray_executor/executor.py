"""What runs on which nodes, and what came of it."""

import math
import queue
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from db.store import RunningAttempt
from jobs.errors import ClusterUnreachable
from jobs.state import Failure, FailureKind
from jobs.task import Attempt, LogChunk, Node, TaskResult
from jobs.toolchains import Toolchain
from orchestrator.ray_executor.connection import LOCAL, Connection, RayNode, reason_of
from orchestrator.ray_executor.groups import Groups, shape_of
from orchestrator.ray_executor.handed import Handed, share
from orchestrator.ray_executor.line import Event, Line
from orchestrator.ray_executor.renewing import Renewing
from workers import store_mark
from workers.agent import clock
from workers.devices import describe_node
from workers.environment import probe_toolchain
from workers.orders import Order, Post, Report, Superseded

if TYPE_CHECKING:
    from concurrent.futures import Future

LEASE_S = 15.0  #: an agent that has not heard of its head for so long ends all that it runs, and itself
MARGIN_S = 3.0  #: after which nothing of it is left
FIRST_ANSWERS_S = 10.0  #: what agents get to answer a head that begins to lead
LOCAL_ANSWER_S = 60.0  #: what a local Ray takes at most to start an agent
STOP_S = 30.0
PORT_S = 5.0
GONE = "nobody runs it any more: whoever led was gone"


class RayExecutor:
    """Implements `orchestrator.executor.Executor`, on a local Ray or on the cluster at `address`.

    Everything but the callbacks that make events happens in the thread that calls: nothing here is locked.
    """

    def __init__(
        self,
        data: Path,
        address: str | None = None,
        artifacts: Path | None = None,
        toolchain: Toolchain | None = None,
        lease_s: float = LEASE_S,
        margin_s: float = MARGIN_S,
    ) -> None:
        """`artifacts` is the store that all nodes share, by default in `data`; `toolchain` is what nodes must have,
        by default what is installed here."""
        self._data, self._address = data.absolute(), address
        self._artifacts = (artifacts or data / "artifacts").absolute()
        self._toolchain = toolchain
        self._mark: str | None = None
        self._lease_s, self._margin_s = (lease_s if address else math.inf), margin_s
        self._term = 0
        self._connection = Connection(self._data, address, self._describe)
        self._groups = Groups(self._connection)
        self._described: Node | None = None  #: this machine, while no local agent does it
        self._lines: dict[str, Line] = {}  #: by node
        self._renewing: Renewing | None = None
        self._heard_at: dict[str, float] = {}  #: by node: when its agent last answered, as far as that is over
        self._handed: dict[str, Handed] = {}  #: not collected yet
        self._done: list[TaskResult] = []  #: for the next `collect`
        self._collected: list[Handed] = []  #: by the latest one
        self._offsets: dict[str, int] = {}  #: of followed logs
        self._chunks: list[LogChunk] = []
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._wake: Callable[[], None] = _nobody
        self._superseded: Superseded | None = None

    def lead(self, term: int, known: Sequence[RunningAttempt]) -> None:
        """Ask the agents that are there what they have; a local Ray ends with whoever started it."""
        self._term, self._superseded = term, None
        self._handed = {one.id: Handed(one.id, one.epoch, [place.node for place in one.places]) for one in known}
        if not self._address:
            for handed in list(self._handed.values()):
                self._lose(handed, handed.nodes, FailureKind.LEASE_LOST, GONE)
            return
        self._heard_at = {node: clock() for handed in self._handed.values() for node in handed.nodes}
        self.nodes()
        self._await(lambda: all(line.is_ready for line in self._lines.values()), FIRST_ANSWERS_S)
        if all(line.is_ready for line in self._lines.values()):
            needed = [group for line in self._lines.values() if line.report for group in line.report.has.values()]
            self._groups.drop_unknown([group for group in needed if group])

    def wakes(self, wake: Callable[[], None]) -> None:
        """`wake` is called from Ray's threads."""
        self._wake = wake

    def nodes(self) -> Sequence[Node]:
        """The local machine as it is, or every live node of the cluster whose agent answers."""
        if self._address:
            self._follow_members()
            self._groups.drop_idle()
            return [line.described for line in self._lines.values() if line.is_ready]
        if self._connection.is_open:
            with suppress(ClusterUnreachable):  # then what it ran is lost, and the next attempt starts another one
                self._follow_members()
        local = self._lines.get(LOCAL)
        return [local.described if local and local.is_ready else self._describe()]

    def closed(self) -> Mapping[str, str]:
        """Nodes that drain, lack the head's artifact store, or differ from the head in what is installed."""
        found = {}
        for node, line in self._lines.items():
            if line.report and (reason := line.closed or self._difference(line.report.toolchain)):
                found[node] = reason
        return found

    def open(self) -> None:
        """Start or join Ray, with an agent on every node."""
        if self._lines and all(line.is_ready for line in self._lines.values()):
            return
        self._follow_members()
        if not self._address:
            self._await(lambda: LOCAL in self._lines and self._lines[LOCAL].is_ready, LOCAL_ANSWER_S)
            if not self._lines:
                raise ClusterUnreachable("the local Ray", "its agent ended as soon as it was started")

    def start(self, attempts: Sequence[Attempt]) -> dict[str, str]:
        """Hold the devices in Ray's books, then hand the attempts to their nodes' agents: all of a gang's, or none."""
        if not self._address:
            self.open()
        self._hear()
        refused = {attempt.id: reason for attempt in attempts if (reason := self._obstacle(attempt))}
        wanted = [attempt for attempt in attempts if attempt.id not in refused]
        groups = self._hold(wanted)
        orders: dict[str, list[Order]] = {}
        for attempt in wanted:
            if self._address and attempt.id not in groups:
                refused[attempt.id] = f"Ray has no room for it on {_listed(attempt)}: somebody else holds what it needs"
                continue
            group = groups.get(attempt.id)
            try:
                shares = self._shares(attempt)
            except ClusterUnreachable as error:
                refused[attempt.id] = str(error)
                self._release(group)
                continue
            nodes = [place.node for place in attempt.places]
            self._handed[attempt.id] = Handed(attempt.id, attempt.epoch, nodes, group)
            for node, part in zip(nodes, shares, strict=True):
                orders.setdefault(node, []).append(Order(part, group))
        for node, given in orders.items():
            self._lines[node].start(given)
        return refused

    def running(self) -> set[str]:
        """Ids of the attempts whose results were not collected yet."""
        return set(self._handed)

    def collect(self, wait_s: float) -> list[TaskResult]:
        """Results of all agents, and the losses of those that are silent for longer than their lease."""
        self._acknowledge()
        self._tend()
        self._await(lambda: bool(self._done), wait_s)
        found, self._done = self._done, []
        self._collected = [self._handed.pop(result.attempt) for result in found]
        return found

    def cancel(self, attempt: str) -> None:
        """Ask the agents; they answer with results when everything has ended."""
        handed = self._handed.get(attempt)
        if handed:
            handed.is_ending = True
            self._cancel_rest(handed)

    def follow(self, attempts: Collection[str]) -> list[LogChunk]:
        """Through the agents, whose answers the next call gives; of a gang the log of its first node."""
        self._hear()
        self._offsets = {attempt: self._offsets.get(attempt, 0) for attempt in attempts if attempt in self._handed}
        for node, line in self._lines.items():
            wanted = {one: at for one, at in self._offsets.items() if self._handed[one].nodes[0] == node}
            if wanted and line.is_ready:
                line.read_logs(wanted)
        found, self._chunks = self._chunks, []
        return found

    def leave(self) -> None:
        """Leave the cluster as it is; a local Ray can't be left."""
        if not self._address:
            self.close()
        else:
            self._disconnect()

    def close(self) -> None:
        """End all attempts and agents, then the local Ray or the connection."""
        if self._connection.is_open:
            stops = [(line, line.stop(STOP_S)) for line in self._lines.values() if line.is_ready]
            deadline = time.monotonic() + STOP_S + 1
            for line, stop in stops:
                with suppress(Exception):  # gone, or another head's
                    stop.result(max(deadline - time.monotonic(), 0))
                    self._connection.kill(line.agent)
            self._groups.drop_all()
        self._disconnect()
        self._handed.clear()
        self._done.clear()

    def _describe(self) -> Node:
        if self._described is None:
            self._described = describe_node(LOCAL)
        return self._described

    def _disconnect(self) -> None:
        if self._renewing:
            self._renewing.close()
            self._renewing = None
        for node in list(self._lines):
            self._lose_line(node)
        self._groups.forget()
        self._connection.close()

    def _follow_members(self) -> None:
        """Have a line to every node's agent, and none to others. Raises ClusterUnreachable."""
        if self._superseded:
            raise ClusterUnreachable(f"Ray at {self._address}", str(self._superseded))
        was_open = self._connection.is_open
        try:
            members = self._connection.nodes()
        except ClusterUnreachable as error:
            if was_open and not (self._address and self._connection.is_open):
                self._lose_ray(error)
            raise
        if self._address and self._renewing is None:
            self._renewing = Renewing(self._lease_s, self._lines.values)
        self._hear()
        for node, line in list(self._lines.items()):
            if node not in members or (line.report and line.report.raylet != members[node].id):
                if node in members:
                    self._connection.kill(line.agent)
                self._lose_line(node)
        for node, member in members.items():
            if node not in self._lines:
                self._lines[node] = Line(node, self._connection.agent(self._post(node, member)), self._term, self._tell)
        self._tend()

    def _post(self, node: str, member: RayNode) -> Post:
        if not self._address:
            return Post(node, self._data, self._artifacts, raylet=member.id)
        if self._mark is None:
            self._mark = store_mark.make(self._artifacts)
        return Post(node, self._data, self._artifacts, self._mark, member.address, self._lease_s, member.id, True)

    def _difference(self, theirs: Toolchain) -> str | None:
        """What is installed on a node otherwise than it is for the head, if anything."""
        if not self._address:
            return None
        if self._toolchain is None:
            self._toolchain = probe_toolchain(self._data / "cache")
        return difference(self._toolchain, theirs)

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
                self._take(self._events.get(timeout=min(left_s, 1.0)))
            self._tend()

    def _hear(self) -> None:
        """Take in what came."""
        with suppress(queue.Empty):
            while True:
                self._take(self._events.get_nowait())

    def _take(self, event: Event) -> None:
        line = event.line
        if self._lines.get(line.node) is not line:
            return  # of an agent that was given up
        self._heard_at[line.node] = max(line.heard_at, self._heard_at.get(line.node, 0.0))
        if event.error is not None:
            self._take_error(event, event.error)
            return
        match event.call:
            case "obey":
                self._adopt(line, event.answer)
            case "start":
                self._lose_unknown(line.node, event.answer)
            case "poll":
                for result in event.answer.results:
                    self._take_result(line.node, result)
                line.polled(event.answer)
                line.poll()
            case "read_logs":
                for chunk, end in event.answer:
                    if self._offsets.get(chunk.attempt) == chunk.offset:
                        self._offsets[chunk.attempt] = end
                        self._chunks.append(chunk)

    def _take_error(self, event: Event, error: BaseException) -> None:
        if isinstance(error, Superseded):
            self._superseded = error
        elif self._connection.is_dead(error):
            self._lose_line(event.line.node)
        else:
            event.line.is_silent()

    def _adopt(self, line: Line, report: Report) -> None:
        """An agent obeys: what it has runs on, and what it lacks is lost."""
        line.obeys(report)
        expected = [one for one in self._handed.values() if one.is_open_on(line.node)]
        for handed in expected:
            if handed.id in report.has:
                handed.group = handed.group or report.has[handed.id]
                if handed.is_ending:
                    line.cancel([handed.id])
        self._lose_unknown(line.node, [handed.id for handed in expected if handed.id not in report.has])

    def _expected(self, node: str) -> Mapping[str, int]:
        return {one.id: one.epoch for one in self._handed.values() if one.is_open_on(node)}

    def _take_result(self, node: str, result: TaskResult) -> None:
        handed = self._handed.get(result.attempt)
        if handed is None or not handed.is_open_on(node) or handed.epoch != result.epoch:
            self._lines[node].forget([result.attempt])
            return
        handed.take(node, result)
        if not handed.open_nodes:
            self._done.append(handed.merged())
            self._release(handed.group)
        elif result.failure and not handed.is_ending:
            handed.is_ending = True
            self._cancel_rest(handed)

    def _cancel_rest(self, handed: Handed) -> None:
        for node in handed.open_nodes:
            line = self._lines.get(node)
            if line and line.is_ready:
                line.cancel([handed.id])

    def _acknowledge(self) -> None:
        """What the latest `collect` returned is stored: agents may forget it."""
        for handed in self._collected:
            for node in handed.nodes:
                if node in self._lines:
                    self._lines[node].forget([handed.id])
        self._collected = []

    def _tend(self) -> None:
        """Ask agents again that did not answer; give up what runs on nodes that are silent for longer than a lease."""
        self._hear()
        for node, line in list(self._lines.items()):
            self._heard_at[node] = max(line.heard_at, self._heard_at.get(node, 0.0))
            line.tend(lambda node=node: self._expected(node))  # type: ignore[misc]
        silent_since = clock() - self._lease_s - self._margin_s
        for node in {node for handed in self._handed.values() for node in handed.open_nodes}:
            if self._heard_at.get(node, 0.0) < silent_since:
                self._give_up(node)

    def _give_up(self, node: str) -> None:
        """What ran there has ended by now; its agent is ended too, for another one to come."""
        line = self._lines.get(node)
        if line:
            self._connection.kill(line.agent)
            self._lose_line(node)
        reason = f"node {node} has not answered for {self._lease_s + self._margin_s:g} s"
        self._lose_all_on(node, reason)

    def _lose_line(self, node: str) -> None:
        """An agent is gone; what it ran is lost when another one says so, or when its lease is over.

        The rest of its gangs is ended at once.
        """
        line = self._lines.pop(node)
        self._heard_at[node] = max(line.heard_at, self._heard_at.get(node, 0.0))
        for handed in self._handed.values():
            if handed.is_open_on(node) and len(handed.nodes) > 1:
                handed.is_ending = True
                self._cancel_rest(handed)

    def _lose_ray(self, error: BaseException) -> None:
        """Ray is not what it was. Of a local one nothing is kept; in a cluster agents live on, and are looked for."""
        self._disconnect()
        if not self._address:
            self._lose_all_on(LOCAL, f"node {LOCAL} stopped answering: {reason_of(error)}")

    def _lose_all_on(self, node: str, reason: str) -> None:
        for handed in [one for one in self._handed.values() if one.is_open_on(node)]:
            self._lose(handed, [node], FailureKind.NODE_LOST, reason)

    def _lose_unknown(self, node: str, attempts: Iterable[str]) -> None:
        reason = f"the agent of node {node} was ended, and what it ran with it"
        for attempt in attempts:
            if attempt in self._handed:
                self._lose(self._handed[attempt], [node], FailureKind.NODE_LOST, reason)

    def _lose(self, handed: Handed, nodes: Sequence[str], kind: FailureKind, reason: str) -> None:
        for node in nodes:
            result = TaskResult(handed.id, handed.epoch, Failure(kind, reason))
            if handed.is_open_on(node):
                self._take_result(node, result)

    def _obstacle(self, attempt: Attempt) -> str | None:
        """Why an attempt can't be handed over, if so."""
        for place in attempt.places:
            if place.node not in self._lines or not self._lines[place.node].is_ready:
                return f"node {place.node} does not answer"
        return None

    def _hold(self, attempts: Sequence[Attempt]) -> Mapping[str, str]:
        """What holds the attempts' devices in Ray's books; a local Ray has no other users."""
        if not self._address or not attempts:
            return {}
        return self._groups.hold({attempt.id: shape_of(attempt, self._raylets(attempt)) for attempt in attempts})

    def _raylets(self, attempt: Attempt) -> list[str]:
        reports = [self._lines[place.node].report for place in attempt.places]
        return [report.raylet for report in reports if report]

    def _release(self, group: str | None) -> None:
        if group and self._connection.is_open:
            self._groups.release(group)

    def _shares(self, attempt: Attempt) -> Sequence[Attempt]:
        """What each node is handed. Raises ClusterUnreachable where the first node of a gang has no port to give."""
        if len(attempt.places) == 1:
            return [attempt]
        first = self._lines[attempt.places[0].node]
        port = _answer(first.free_port(), first.node)
        return [share(attempt, rank, first.described.address, port) for rank in range(len(attempt.places))]


def difference(wanted: Toolchain, found: Toolchain) -> str | None:
    """In what a node's toolchain is not the head's."""
    packages = sorted(wanted.versions.keys() | found.versions.keys())
    told = [
        f"{package} is {found.versions.get(package, 'missing')}, not {wanted.versions.get(package, 'missing')}"
        for package in packages
        if found.versions.get(package) != wanted.versions.get(package)
    ]
    if wanted.programs != found.programs:
        told.append("haloctl's stage programs are another version's")
    return f"install there what the head has: {', '.join(told)}" if told else None


def _answer(port: "Future[int]", node: str) -> int:
    try:
        return port.result(PORT_S)
    except Exception as error:
        raise ClusterUnreachable(f"node {node}", f"it does not answer: {reason_of(error)}") from error


def _listed(attempt: Attempt) -> str:
    return ", ".join(place.node for place in attempt.places)


def _nobody() -> None:
    """Nobody is to be woken."""
