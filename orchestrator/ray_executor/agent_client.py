"""The client of one agent: its calls return at once, and their answers come as events."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jobs.task import Node
from jobs.toolchains import Lock
from workers.agent.protocol import AgentStatus, LaunchRequest, PollResponse
from workers.processes.lease import boot_clock_s

if TYPE_CHECKING:
    from concurrent.futures import Future

LONG_POLL_S = 20.0  #: how long an agent may hold a poll when nothing has happened
RETRY_S = 1.0
BUILD_AGAIN_S = 300.0  #: pause before a node is asked again to build the same toolchain
START_TIMEOUT_S = 60.0  #: for the first answer of a new agent


@dataclass(frozen=True)
class AgentEvent:
    """The answer of an agent to a call, or the error instead of one."""

    client: "AgentClient"
    call: str  #: the method
    answer: Any = None
    error: BaseException | None = None
    subjects: Sequence[str] = ()  #: attempts, or digests of locks, that the call was about


@dataclass(eq=False)
class AgentClient:
    """Calls the agent of one node for the head of one term."""

    node: str
    agent: Any  #: Ray's actor handle
    term: int
    emit: Callable[[AgentEvent], None]  #: called from any thread
    status: AgentStatus | None = None  #: None until the agent accepts this head, and after a call failed
    cordon_reason: str | None = None
    answered_at: float = 0.0  #: time of the latest answer
    created_at: float = field(default_factory=boot_clock_s)
    _agent_clock: float = 0.0  #: the agent's clock at its latest renewal
    _cursor: int = 0  #: of the latest poll
    _pending: set[str] = field(default_factory=set)  #: methods with a call under way, of which there is one at a time
    _accept_again_at: float = 0.0
    _requested_builds: dict[str, float] = field(default_factory=dict)  #: time of the request, by the lock's digest
    _forgiven_builds: set[str] = field(default_factory=set)  #: locks whose earlier build failures don't count
    _stored: list[str] = field(default_factory=list)  #: attempts whose results the agent may forget

    @property
    def is_ready(self) -> bool:
        """Whether the agent has accepted this head, as far as is known."""
        return self.status is not None

    def is_lost(self, max_silence_s: float) -> bool:
        """Whether the agent has been silent for too long to be of use."""
        if self.answered_at:
            return boot_clock_s() - self.answered_at > max_silence_s
        return boot_clock_s() - self.created_at > START_TIMEOUT_S

    @property
    def description(self) -> Node:
        """The node as its agent describes it; the agent must be ready."""
        assert self.status
        node = self.status.node
        if self._forgiven_builds.isdisjoint(node.toolchains):
            return node
        toolchains = {lock: why for lock, why in node.toolchains.items() if not (why and lock in self._forgiven_builds)}
        return replace(node, toolchains=toolchains)

    def maintain(self, expected: Callable[[str], Mapping[str, int]]) -> None:
        """Poll the agent; first have it accept this head, with the attempts (and epochs) `expected` on its node."""
        if self.status:
            self.poll()
        elif "accept_leader" not in self._pending and boot_clock_s() >= self._accept_again_at:
            self._accept_again_at = boot_clock_s() + RETRY_S
            self._call_once("accept_leader", self.term, expected(self.node))

    def accepted(self, status: AgentStatus) -> None:
        """Handle the agent's acceptance of this head."""
        self.status, self.cordon_reason = status, status.cordon_reason
        self._cursor, self._agent_clock = 0, status.clock
        self._requested_builds.clear()
        self.renew()
        self.poll()

    def failed(self) -> None:
        """Handle a failed call: the agent's state has to be found out again."""
        self.status = None

    def poll(self) -> None:
        """Ask for results, and acknowledge those that are stored."""
        if "poll" not in self._pending:
            stored, self._stored = self._stored, []
            self._call_once("poll", self.term, self._cursor, stored, self.cordon_reason, LONG_POLL_S)

    def polled(self, response: PollResponse) -> None:
        """Handle the response of a poll once its results are taken."""
        self._cursor, self.cordon_reason = response.cursor, response.cordon_reason
        if response.node and self.status:
            self.status = replace(self.status, node=response.node)

    def forget(self, attempts: Sequence[str]) -> None:
        """Let the agent forget stored results with the next poll; at once when it drains and waits for that."""
        if self.cordon_reason:
            self._call("forget", self.term, list(attempts))
        else:
            self._stored += attempts

    def start(self, requests: Sequence[LaunchRequest]) -> None:
        """Start attempts."""
        self._call("start", self.term, list(requests), subjects=[request.attempt.id for request in requests])

    def build(self, locks: Sequence[Lock]) -> None:
        """Have toolchains built, but those that were requested a short while ago."""
        since = boot_clock_s() - BUILD_AGAIN_S
        fresh = [lock for lock in locks if self._requested_builds.get(lock.digest, -math.inf) < since]
        if fresh:
            self._requested_builds |= {lock.digest: boot_clock_s() for lock in fresh}
            self._call("build", self.term, fresh, subjects=[lock.digest for lock in fresh])

    def builds_requested(self, locks: Sequence[str], toolchains: Mapping[str, str]) -> None:
        """Handle the answer to a build request: the toolchains that the node has or failed to build, by digest."""
        self._forgiven_builds.difference_update(locks)
        if self.status:
            self.status = replace(self.status, node=replace(self.status.node, toolchains=toolchains))

    def forget_build_failures(self, locks: Collection[str]) -> None:
        """Ignore why the node failed to build these, until it is asked to build them again."""
        self._forgiven_builds.update(locks)
        for lock in locks:
            self._requested_builds.pop(lock, None)

    def cancel(self, attempts: Sequence[str]) -> None:
        """Ask the agent to end attempts."""
        self._call("cancel", self.term, list(attempts))

    def read_logs(self, offsets: Mapping[str, int]) -> None:
        """Ask for more of the logs, unless a read is under way."""
        if self.status and "read_logs" not in self._pending:
            self._call_once("read_logs", self.term, dict(offsets))

    def free_port(self) -> "Future[int]":
        """Ask for a free port of the node."""
        future: Future[int] = self.agent.free_port.remote(self.term).future()
        return future

    def stop(self, timeout_s: float) -> "Future[bool]":
        """Ask the agent to end everything."""
        future: Future[bool] = self.agent.stop.remote(self.term, timeout_s).future()
        return future

    def renew(self) -> None:
        """Renew the agent's lease; called from any thread, and answered without an event."""
        if self.status and "renew" not in self._pending:
            self._call_once("renew", self.term, self._agent_clock)

    def _call_once(self, call: str, *arguments: object) -> None:
        self._pending.add(call)
        self._call(call, *arguments)

    def _call(self, call: str, *arguments: object, subjects: Sequence[str] = ()) -> None:
        try:
            future = getattr(self.agent, call).remote(*arguments).future()
        except Exception as error:  # Ray raises various kinds for an agent that it knows to be gone
            self._pending.discard(call)
            self.emit(AgentEvent(self, call, error=error, subjects=subjects))
        else:
            future.add_done_callback(partial(self._on_answer, call, subjects))

    def _on_answer(self, call: str, subjects: Sequence[str], future: "Future[Any]") -> None:
        """Handle an answer on one of Ray's threads."""
        self._pending.discard(call)
        error = future.exception()
        if error is None:
            self.answered_at = boot_clock_s()
        if call == "renew" and error is None:
            self._agent_clock = future.result()
        elif call != "cancel" or error:
            self.emit(AgentEvent(self, call, None if error else future.result(), error, subjects))
