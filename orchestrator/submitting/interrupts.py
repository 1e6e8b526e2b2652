"""Ctrl-C and SIGTERM as a question that a loop asks between two steps, so that no step is torn apart."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

NOTICED = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Interrupts:
    """Which signal came, if any."""

    came: signal.Signals | None = None
    wake: Callable[[], None] = lambda: None  #: called when one comes; from a signal handler

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came is not None and number == signal.SIGINT:
            raise KeyboardInterrupt  # somebody insists
        self.came = signal.Signals(number)
        self.wake()


@contextmanager
def noticed() -> Iterator[Interrupts]:
    """While it lasts SIGINT and SIGTERM are only noted; a second Ctrl-C interrupts at once."""
    interrupts = Interrupts()
    earlier = {number: signal.signal(number, interrupts._note) for number in NOTICED}
    try:
        yield interrupts
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


@contextmanager
def kept() -> Iterator[None]:
    """Afterwards signals are handled as before: Ray puts handlers of its own in place of the ones that it finds."""
    handlers = {number: signal.getsignal(number) for number in NOTICED}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
