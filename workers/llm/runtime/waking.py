"""How the thread that waits for a program's results is woken."""

import os
from contextlib import suppress


def let_workers_finish() -> None:
    """Have this thread wait for a free core when it is woken, instead of taking that of the thread that wakes it.

    A worker of IREE's local-task wakes the thread that waits for a call just before it notes that it has done so. On
    Linux the woken thread takes the worker's core, and spins until it has lost it again, for milliseconds where all
    cores are busy (`iree_async_semaphore_multi_wait`, IREE 3.13). SCHED_BATCH, which takes no permission, leaves the
    core to the worker: https://man7.org/linux/man-pages/man7/sched.7.html
    """
    if hasattr(os, "sched_setscheduler"):
        with suppress(PermissionError):  # a sandbox may forbid it: then calls are slower
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
