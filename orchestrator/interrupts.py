"""Ctrl-C and SIGTERM as a flag that a loop checks between two steps, so that no step is interrupted."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

HANDLED = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Interrupts:
    """The signal that came, if any."""

    came: signal.Signals | None = None
    wake: Callable[[], None] = lambda: None  #: called from the signal handler

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C
        self.came = signal.Signals(number)
        self.wake()


@contextmanager
def catch_signals() -> Iterator[Interrupts]:
    """Record SIGINT and SIGTERM in place of their usual effect; a second Ctrl-C interrupts at once."""
    interrupts = Interrupts()
    earlier = {number: signal.signal(number, interrupts._note) for number in HANDLED}
    try:
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
