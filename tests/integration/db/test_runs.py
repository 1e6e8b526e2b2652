"""Which runs are read for a comparison, on both databases."""

from datetime import timedelta

import pytest

from db.reads.run_filter import RunFilter
from db.reads.runs import identities_of, runs
from db.store import CacheHit, Store
from jobs.errors import NotFound
from jobs.task import Measurement
from tests.stored_jobs import NOON, submit, succeed

TTFT = ("ttft_ms",)
MACHINE = {"machine": {"drivers": {"amdgpu": "6.4"}}}


def benchmark(store: Store, median: float, name: str = "tiny", **context: object) -> str:
    """A job whose first task measures this; its id."""
    job = submit(store, name=name, variants={"toolchain": "iree-3.12"} if name == "other" else {})
    facts = {"batch": 1, "prompt_tokens": 64, "new_tokens": 8, **MACHINE, **context}
    both = (Measurement("ttft_ms", (median,) * 3, facts), Measurement("itl_ms", (median / 20,), {"batch": 4}))
    succeed(store, f"{job}-01", measurements=both)
    return job


def medians(store: Store, chosen: RunFilter, **options: int) -> list[float]:
    return [run.median for run in runs(store.database, chosen, **options)]


def test_runs_are_told_apart_by_all_that_they_are_compared_by(clocked: Store) -> None:
    job = benchmark(clocked, 3.0)
    (found,) = runs(clocked.database, RunFilter(TTFT))
    assert (found.job, found.task, found.attempt) == (job, f"{job}-01", f"{job}-01-1")
    assert found.workload == (("batch", 1), ("prompt_tokens", 64), ("new_tokens", 8))
    assert (found.place, found.devices, found.driver) == ("s0+s1", ("cpu:0", "cpu:1"), "amdgpu 6.4")
    assert (found.axes["precision"], found.axes["engine"], found.is_good) == ("f16", "iree", True)
    assert identities_of(clocked.database, [found.attempt])[found.attempt]["stage"] == "export"


def test_runs_are_found_by_what_is_asked_for(clocked: Store) -> None:
    first, other = benchmark(clocked, 1.0), benchmark(clocked, 2.0, name="other")
    asked = {
        RunFilter(TTFT): [2.0, 1.0],
        RunFilter(("itl_ms", "ttft_ms")): [0.1, 0.05, 2.0, 1.0],
        RunFilter(TTFT, job=first): [1.0],
        RunFilter(TTFT, job="other"): [2.0],
        RunFilter(TTFT, result=f"{other}-01"): [2.0],
        RunFilter(TTFT, result=f"{other}-01-1"): [2.0],
        RunFilter(TTFT, tasks=(f"{first}-01",)): [1.0],
        RunFilter(TTFT, variant="tiny-llama-FP16-TP1"): [1.0],
        RunFilter(TTFT, variant="tiny-*"): [2.0, 1.0],
        RunFilter(TTFT, toolchain="iree-*"): [2.0],
        RunFilter(TTFT, engine="torch"): [],
        RunFilter(TTFT, model="tiny-llama", toolchain="default"): [1.0],
        RunFilter(TTFT, target="mi300x"): [],
        RunFilter(TTFT, node="a", batch=1): [2.0, 1.0],
        RunFilter(("itl_ms",), batch=1): [],
        RunFilter(TTFT, since=NOON + timedelta(days=1)): [],
        RunFilter(TTFT, until=NOON + timedelta(days=1)): [2.0, 1.0],
        RunFilter(()): [],
    }
    for chosen, wanted in asked.items():
        assert medians(clocked, chosen) == wanted, chosen
    assert medians(clocked, RunFilter(TTFT), most=1) == [2.0]
    with pytest.raises(NotFound):
        medians(clocked, RunFilter(TTFT, job="zz"))


def test_what_was_disturbed_is_read_only_when_asked_for(clocked: Store) -> None:
    benchmark(clocked, 1.0)
    benchmark(clocked, 9.0, disturbed="others used 80% of 8 processors")
    assert medians(clocked, RunFilter(TTFT)) == [1.0]
    assert medians(clocked, RunFilter(TTFT, disturbed=True)) == [9.0, 1.0]


def test_a_job_has_the_runs_that_it_took_over(clocked: Store) -> None:
    source = benchmark(clocked, 1.0)
    job = submit(clocked)
    clocked.queue([f"{job}-01"])
    clocked.record_cache_hits([CacheHit(f"{job}-01", "f" * 64, f"{source}-01")])
    assert medians(clocked, RunFilter(TTFT, job=job)) == [1.0]
    assert medians(clocked, RunFilter(TTFT)) == [1.0]
