"""Outputs and logs go into the artifact store; while it takes nothing, they wait on the node and nothing fails."""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_fixed

from jobs.errors import BadSetting, StorageUnusable
from jobs.task import Artifact
from workers.artifacts import ArtifactStore
from workers.processes.cancellation import Cancellation

VARIABLE = "HALOCTL_STORE_WAIT_S"
DEFAULT_WAIT_S = 4 * 3600.0  #: longer than an outage lasts; shorter than most people wait for what takes GPUs to repeat
RETRY_S = 1.0


def store_wait_s() -> float:
    """Return how long files wait for the store; raises BadSetting."""
    text = os.environ.get(VARIABLE, "")
    try:
        wait_s = float(text or DEFAULT_WAIT_S)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s < float("inf"):
        raise BadSetting(VARIABLE, f"{text!r} is no number of seconds; set it to 0 or more")
    return wait_s


@dataclass
class Publisher:
    """Publishes what one attempt leaves, and waits for the store as long as it may: its files took longer to make."""

    store: ArtifactStore
    cancellation: Cancellation  #: ends the wait
    report: Callable[[str | None], None]  #: told what the store says while files wait for it, and None when that ends
    wait_s: float = field(default_factory=store_wait_s)
    _until_s: float | None = None  #: by the monotonic clock; None: the store has taken everything so far

    def publish(self, files: Iterable[tuple[Path, str]]) -> tuple[Artifact, ...]:
        """Publish files with their kinds, all of them. Raises StorageUnusable when that takes too long."""
        retrying = Retrying(
            retry=retry_if_exception_type(StorageUnusable),
            wait=wait_fixed(RETRY_S),
            stop=self._has_waited_enough,
            before_sleep=lambda state: self.report(str(state.outcome and state.outcome.exception())),
            reraise=True,
        )
        files = list(files)
        try:
            return retrying(lambda: tuple(self.store.put(path, kind) for path, kind in files))
        finally:
            if self._until_s is not None:
                self.report(None)

    def _has_waited_enough(self, _: RetryCallState) -> bool:
        if self._until_s is None:
            self._until_s = time.monotonic() + self.wait_s
        return self.cancellation.is_requested or time.monotonic() >= self._until_s
