"""Calls of one agent: they return at once, and their answers come as events."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jobs.task import Node
from jobs.toolchains import Lock
from workers.agent import clock
from workers.orders import Answer, Order, Report

if TYPE_CHECKING:
    from concurrent.futures import Future

LONG_POLL_S = 20.0  #: how long an agent may think about a poll when nothing has happened
RETRY_S = 1.0
BUILD_AGAIN_S = 300.0  #: how long a node is not asked again to build a toolchain
BEGINNING_S = 60.0  #: what a new agent may take until it answers first


@dataclass(frozen=True)
class Event:
    """What an agent answered, or why it did not."""

    line: "Line"
    call: str  #: the method
    answer: Any = None
    error: BaseException | None = None
    about: Sequence[str] = ()  #: the attempts that the call was about


@dataclass(eq=False)
class Line:
    """To the agent of one node, from the head of one term."""

    node: str
    agent: Any
    term: int
    tell: Callable[[Event], None]  #: called from any thread
    report: Report | None = None  #: None until the agent obeys, and after it did not answer
    closed: str | None = None
    heard_at: float = 0.0  #: when the latest answer came
    made_at: float = field(default_factory=clock)
    _their_clock: float = 0.0  #: in that answer
    _number: int = 0  #: of the latest result that came
    _under_way: set[str] = field(default_factory=set)  #: calls of which there is one at a time
    _obey_again_at: float = 0.0
    _asked: dict[str, float] = field(default_factory=dict)  #: locks that are to be built, and since when
    _past: set[str] = field(default_factory=set)  #: locks of which the node is to say anew whether it can build them
    _forget: list[str] = field(default_factory=list)  #: results that the head has stored

    @property
    def is_ready(self) -> bool:
        """Whether the agent obeys, as far as is known."""
        return self.report is not None

    def is_lost(self, longest_silence_s: float) -> bool:
        """Whether the agent has not answered for so long that it is of no use."""
        if self.heard_at:
            return clock() - self.heard_at > longest_silence_s
        return clock() - self.made_at > BEGINNING_S

    @property
    def described(self) -> Node:
        """The node of an agent that obeys."""
        assert self.report
        node = self.report.node
        if self._past.isdisjoint(node.toolchains):
            return node
        told = node.toolchains.items()
        return replace(node, toolchains={lock: why for lock, why in told if not (why and lock in self._past)})

    def tend(self, expected: Callable[[str], Mapping[str, int]]) -> None:
        """See to it that the agent obeys, and that it is asked for results."""
        if self.report:
            self.poll()
        elif "obey" not in self._under_way and clock() >= self._obey_again_at:
            self._obey_again_at = clock() + RETRY_S
            self._only_one("obey", self.term, expected(self.node))

    def obeys(self, report: Report) -> None:
        """The agent has answered so."""
        self.report, self.closed, self._number, self._their_clock = report, report.closed, 0, report.clock
        self._asked.clear()
        self.renew()
        self.poll()

    def is_silent(self) -> None:
        """A call of the agent has failed: what it knows and what it missed is to be found out."""
        self.report = None

    def poll(self) -> None:
        """Ask for results, and let those be forgotten that are stored."""
        if "poll" not in self._under_way:
            forget, self._forget = self._forget, []
            self._only_one("poll", self.term, self._number, forget, self.closed, LONG_POLL_S)

    def polled(self, answer: Answer) -> None:
        """The answer of a poll has been taken in."""
        self._number, self.closed = answer.number, answer.closed
        if answer.node and self.report:
            self.report = replace(self.report, node=answer.node)

    def forget(self, attempts: Sequence[str]) -> None:
        """Let results be forgotten with the next poll; at once where the node waits for that to leave."""
        if self.closed:
            self._call("forget", self.term, list(attempts))
        else:
            self._forget += attempts

    def start(self, orders: Sequence[Order]) -> None:
        """Hand attempts over."""
        self._call("start", self.term, list(orders), about=[order.attempt.id for order in orders])

    def build(self, locks: Sequence[Lock]) -> None:
        """Have toolchains built; what was asked for a short while ago is not asked for again."""
        since = clock() - BUILD_AGAIN_S
        fresh = [lock for lock in locks if self._asked.get(lock.digest, -math.inf) < since]
        if fresh:
            self._asked |= {lock.digest: clock() for lock in fresh}
            self._call("build", self.term, fresh, about=[lock.digest for lock in fresh])

    def builds(self, asked: Sequence[str], toolchains: Mapping[str, str]) -> None:
        """The agent was asked for these: what it has, and what it can't build, is now so."""
        self._past.difference_update(asked)
        if self.report:
            self.report = replace(self.report, node=replace(self.report.node, toolchains=toolchains))

    def forget_builds(self, locks: Collection[str]) -> None:
        """Why the node could not build these counts no more, until it is asked to build them."""
        self._past.update(locks)
        for lock in locks:
            self._asked.pop(lock, None)

    def cancel(self, attempts: Sequence[str]) -> None:
        """Ask for attempts' ends."""
        self._call("cancel", self.term, list(attempts))

    def read_logs(self, offsets: Mapping[str, int]) -> None:
        """Ask for parts of logs, unless they are asked for already."""
        if self.report and "read_logs" not in self._under_way:
            self._only_one("read_logs", self.term, dict(offsets))

    def free_port(self) -> "Future[int]":
        """Ask for a port."""
        future: Future[int] = self.agent.free_port.remote(self.term).future()
        return future

    def stop(self, timeout_s: float) -> "Future[bool]":
        """Ask the agent to end everything."""
        future: Future[bool] = self.agent.stop.remote(self.term, timeout_s).future()
        return future

    def renew(self) -> None:
        """Renew the agent's lease; from any thread. An answer is no event."""
        if self.report and "renew" not in self._under_way:
            self._only_one("renew", self.term, self._their_clock)

    def _only_one(self, call: str, *arguments: object) -> None:
        self._under_way.add(call)
        self._call(call, *arguments)

    def _call(self, call: str, *arguments: object, about: Sequence[str] = ()) -> None:
        try:
            future = getattr(self.agent, call).remote(*arguments).future()
        except Exception as error:  # of Ray's own, of no kind, for an agent that it knows to be gone
            self._under_way.discard(call)
            self.tell(Event(self, call, error=error, about=about))
        else:
            future.add_done_callback(partial(self._hear, call, about))

    def _hear(self, call: str, about: Sequence[str], future: "Future[Any]") -> None:
        """Called from one of Ray's threads."""
        self._under_way.discard(call)
        error = future.exception()
        if error is None:
            self.heard_at = clock()
        if call == "renew" and error is None:
            self._their_clock = future.result()
        elif call != "cancel" or error:
            self.tell(Event(self, call, None if error else future.result(), error, about))
