"""A thread for calls that hang for as long as Ray's control store is away."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from jobs.errors import ClusterUnreachable

T = TypeVar("T")
ANSWER_S = 10.0


class ControlThread:
    """Makes calls one after another. While one hangs, those after it are not answered either."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ray-control", daemon=True).start()

    def ask(self, call: Callable[[], T], timeout_s: float = ANSWER_S) -> T:
        """Return what a call returns, or raise what it raises; ClusterUnreachable when it takes too long."""
        future = self.submit(call)
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            if future.cancel() or not future.done():
                raise ClusterUnreachable(self._where, "its control store does not answer; trying again") from error
            raise

    def submit(self, call: Callable[[], T]) -> "Future[T]":
        """Make a call after those submitted before it."""
        future: Future[T] = Future()

        def make() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)

        self._calls.put(make)
        return future

    def close(self) -> None:
        """Make no more calls; one that hangs is abandoned."""
        self._calls.put(None)

    def _run(self) -> None:
        while call := self._calls.get():
            call()
