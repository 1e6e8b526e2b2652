"""An event that wakes a waiting loop."""

from queue import Empty, SimpleQueue


class WakeupEvent:
    """Can be set from any thread and from signal handlers, where a `threading.Event` could deadlock."""

    def __init__(self) -> None:
        self._sets: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wake the waiting thread, or else the next one that waits."""
        if self._sets.empty():
            self._sets.put(None)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the event is set and clear it; return False after `timeout_s`."""
        try:
            self._sets.get(timeout=max(timeout_s, 0.0))
        except Empty:
            return False
        return True
