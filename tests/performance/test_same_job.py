"""A/A: one job measured again and again on this machine; how often two of its runs are called different.

`pytest -m benchmark tests/performance/test_same_job.py -s` (a quiet machine: 2 minutes) prints the rate without any
history, as a new user has it, and with what the other runs tell.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from db.connection.engine import open_database
from db.reads.run_filter import RunFilter
from db.reads.runs import MeasuredRun, runs
from jobs.metrics import METRICS
from orchestrator.analysis.comparisons import compare
from orchestrator.analysis.noise import NoiseModel, learn_noise
from orchestrator.analysis.verdicts import DIFFERENT
from tests.acceptance.haloctl import Haloctl, opened, short_folder

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

JOBS = 12
MARGIN_PERCENT = 2.0
MOST_FALSE_ALARMS = 0.01


@pytest.fixture
def haloctl(tmp_path: Path) -> Iterator[Haloctl]:
    with short_folder() as temporary, opened(tmp_path, temporary) as cli:
        yield cli


def test_runs_of_the_same_job_are_hardly_ever_called_different(haloctl: Haloctl) -> None:
    job = haloctl.job(
        name="same",
        model="tiny-llama",
        stages=["export", "compile", "benchmark"],
        workload={"batch": [1, 4], "prompt_tokens": [16, 64], "new_tokens": 16},
        benchmark={"exclusive": False, "max_disturbed_reruns": 0},
    )
    for _ in range(JOBS):
        haloctl.answer("submit", job, "--wait")
    timed = tuple(name for name, metric in METRICS.items() if metric.stage == "benchmark")
    with open_database(f"sqlite:///{haloctl.data / 'haloctl.db'}", create=False) as database:
        measured = runs(database, RunFilter(timed, disturbed=True))
    by_job: dict[str, list[MeasuredRun]] = {}
    for run in measured:
        by_job.setdefault(run.job, []).append(run)
    assert len(by_job) == JOBS
    for name, has_history in (("without a history", False), ("with the others' history", True)):
        verdicts, alarms = Counter[str](), Counter[str]()
        for old, new in combinations(by_job, 2):
            others = [run for run in measured if run.job not in (old, new)] if has_history else []
            noise = learn_noise(others) if has_history else NoiseModel()
            for comparison in compare(by_job[old], by_job[new], noise, MARGIN_PERCENT):
                verdicts[comparison.verdict] += 1
                if comparison.verdict in DIFFERENT:
                    alarms[comparison.metric] += 1
        rate = alarms.total() / verdicts.total()
        print(
            f"\n{name}: {rate:.2%} of {verdicts.total()} comparisons are false alarms {dict(alarms)}; {dict(verdicts)}"
        )
        assert rate <= MOST_FALSE_ALARMS
