"""Something that whoever waits can be woken by."""

from queue import Empty, SimpleQueue


class Bell:
    """Rung from any thread, and from signal handlers: a `threading.Event` could deadlock there."""

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake who waits, or else the next one who does."""
        if self._rings.empty():
            self._rings.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it rings, or rang since it was last heard; whether it did within `timeout_s`."""
        try:
            self._rings.get(timeout=max(timeout_s, 0.0))
        except Empty:
            return False
        return True
