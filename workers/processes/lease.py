"""The lease under which an agent's runs go on, and the clock that it is counted on."""

import os
import threading
import time
import weakref


def boot_clock_s() -> float:
    """Return seconds since boot (CLOCK_BOOTTIME), which also pass while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Lease:
    """How long supervisors go on without a word from their agent, which may be stopped or hang.

    All supervisors of an agent share one, in memory that they have open: renewing it wakes none of them.
    """

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self.fd = os.memfd_create("lease")
        weakref.finalize(self, os.close, self.fd)
        self._lock = threading.Lock()
        self._renewed_at_s = 0.0
        self.renew()

    def renew(self, at_s: float | None = None) -> None:
        """Extend the lease to `lease_s` after `at_s` on the boot clock, by default after now.

        May be called from any thread. It never shortens the lease.
        """
        with self._lock:
            self._renewed_at_s = max(self._renewed_at_s, boot_clock_s() if at_s is None else at_s)
            os.pwrite(self.fd, int(self._renewed_at_s * 1e9).to_bytes(8, "little"), 0)
