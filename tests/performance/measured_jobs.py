"""Run jobs of the shipped model to their end, and print their results, a line for each variant."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.acceptance.haloctl import Haloctl

WORKLOAD = {"batch": 1, "prompt_tokens": 64, "new_tokens": 32}
TIMES = ("ttft_ms", "itl_ms", "generation_ttft_ms", "itl_mean_ms")
JOB_S = 2400.0

Rows = dict[str, dict[str, float]]


def measured(haloctl: Haloctl, metrics: Sequence[str], code: int = 0, **job: Any) -> Rows:
    """Return the medians of each variant of a job that ended with this exit code."""
    path = haloctl.job(model="tiny-llama", workload=WORKLOAD, **job)
    running = haloctl.start("submit", path, "--wait")
    assert running.process.wait(JOB_S) == code, running.err
    rows: Rows = {}
    for row in haloctl.json("results"):
        if row["metric"] in metrics:
            rows.setdefault(row["variant"], {})[row["metric"]] = row["median"]
    return dict(sorted(rows.items()))


def show(rows: Mapping[str, Mapping[str, float]], metrics: Sequence[str]) -> None:
    """One line for each variant."""
    width = max(map(len, rows), default=0) + 2
    print(f"\n{'variant':{width}}" + "".join(f"{metric:>28}" for metric in metrics))
    for variant, medians in rows.items():
        print(f"{variant:{width}}" + "".join(f"{medians.get(metric, float('nan')):>28.4g}" for metric in metrics))
