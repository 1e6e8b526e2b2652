"""The thread that waits for a program lets the threads that compute it finish."""

import os
import threading

import pytest

from workers.llm.runtime.waking import let_workers_finish


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux alone has this policy")
def test_only_the_thread_that_waits_changes_its_policy() -> None:
    policies = []

    def wait() -> None:
        let_workers_finish()
        policies.append(os.sched_getscheduler(0))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    assert policies == [os.SCHED_BATCH]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
