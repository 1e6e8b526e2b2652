"""A thread for calls that hang for as long as Ray's control store is away."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from jobs.errors import ClusterUnreachable

T = TypeVar("T")
ANSWER_S = 10.0


class Control:
    """Makes calls one after another. While one hangs, those after it are not answered either."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="ray-control", daemon=True).start()

    def ask(self, call: Callable[[], T], timeout_s: float = ANSWER_S) -> T:
        """What a call returns or raises; raises ClusterUnreachable when it takes too long."""
        future = self.tell(call)
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            if future.cancel() or not future.done():
                raise ClusterUnreachable(self._where, "its control store does not answer; it is asked again") from error
            raise

    def tell(self, call: Callable[[], T]) -> "Future[T]":
        """Have a call made."""
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
        """Make no more calls; one that hangs is left alone."""
        self._calls.put(None)

    def _run(self) -> None:
        while call := self._calls.get():
            call()
