"""Ctrl-C and SIGTERM as a flag that a loop checks between two steps, so that no step is interrupted."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

HANDLED = (signal.SIGINT, signal.SIGTERM)
POLL_S = 0.1


@dataclass
class Interrupts:
    """The signal that came, if any."""

    came: signal.Signals | None = None
    wake: Callable[[], None] = lambda: None  #: called from the signal handler
    is_noticed: bool = True  #: False while a step runs that is to end soon after a signal

    @contextmanager
    def expected(self) -> Iterator[None]:
        """A context that ends soon after a signal, or hangs."""
        self.is_noticed = False
        try:
            yield
        finally:
            self.is_noticed = True

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C
        self.came = signal.Signals(number)
        self.wake()


@contextmanager
def catch_signals(forces_end_after_s: float | None = None) -> Iterator[Interrupts]:
    """Record SIGINT and SIGTERM in place of their usual effect; a second Ctrl-C interrupts at once.

    With `forces_end_after_s` this process ends so long after a signal that a step has not noticed: it hangs in a call,
    as Ray's do, and what it left behind is what a killed process leaves behind.
    """
    interrupts = Interrupts()
    earlier = {number: signal.signal(number, interrupts._note) for number in HANDLED}
    try:
        if forces_end_after_s is None:
            yield interrupts
        else:
            with _watchdog(interrupts, forces_end_after_s):
                yield interrupts
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


@contextmanager
def restore_handlers() -> Iterator[None]:
    """Restore the signal handlers afterwards: Ray replaces them by its own."""
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


@contextmanager
def _watchdog(interrupts: Interrupts, patience_s: float) -> Iterator[None]:
    """Watch for signals in a thread: while the main thread hangs in a library, no handler of Python's is called."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    earlier_wakeup = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)

    def watch() -> None:
        while numbers := os.read(read_end, 1):
            if numbers[0] not in HANDLED:
                continue
            until = time.monotonic() + patience_s
            while time.monotonic() < until and not interrupts.is_noticed:
                time.sleep(POLL_S)
            if not interrupts.is_noticed:
                os._exit(128 + numbers[0])

    thread = threading.Thread(target=watch, name="signals", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier_wakeup)
        os.close(write_end)
        thread.join()
        os.close(read_end)
