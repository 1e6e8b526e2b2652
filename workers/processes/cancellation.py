"""A request to end something, made in one thread and carried out in another."""

import threading
from collections.abc import Callable


class Cancellation:
    """A request to cancel, which may come before or after somebody can act on it. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_requested = False
        self._callback: Callable[[], None] | None = None

    @property
    def is_requested(self) -> bool:
        """Whether `cancel` was called."""
        return self._is_requested

    def cancel(self) -> None:
        """Request the end; later calls change nothing."""
        with self._lock:
            callback, self._is_requested = (None if self._is_requested else self._callback), True
        if callback:
            callback()

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Have `callback` called on `cancel`, or now if that was before; it replaces an earlier callback."""
        with self._lock:
            self._callback = callback
            is_requested = self._is_requested
        if is_requested:
            callback()
