"""Waiting for signals and files at once."""

import os
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

HANDLED = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """Counts SIGINT and SIGTERM."""

    def __init__(self, wakeup: int) -> None:
        self.count = 0
        self._wakeup = wakeup

    def wait(self, files: Sequence[int] = (), timeout_s: float | None = None) -> bool:
        """Wait for another signal, or until a file can be read; return False after `timeout_s`."""
        before, deadline = self.count, None if timeout_s is None else time.monotonic() + timeout_s
        poll = select.poll()
        for file in (self._wakeup, *files):
            poll.register(file, select.POLLIN)
        while True:
            left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
            ready = {file for file, _ in poll.poll(left_ms)}
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
            if self.count > before or ready - {self._wakeup}:
                return True
            if not ready:
                return False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


@contextmanager
def queue_signals() -> Iterator[Signals]:
    """Count SIGINT and SIGTERM in place of their usual effect."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signals = Signals(read_end)
    earlier = {number: signal.signal(number, signals._note) for number in HANDLED}
    earlier_wakeup = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    try:
        yield signals
    finally:
        signal.set_wakeup_fd(earlier_wakeup)
        for number, handler in earlier.items():
            signal.signal(number, handler)
        for end in (read_end, write_end):
            os.close(end)
