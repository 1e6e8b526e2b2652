"""Jobs of the shipped model that are submitted and waited for, and what they measured, a line for each variant."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.acceptance.haloctl import Haloctl

WORKLOAD = {"batch": 1, "prompt_tokens": 64, "new_tokens": 32}
TIMES = ("ttft_ms", "itl_ms", "generation_ttft_ms", "itl_mean_ms")
JOB_S = 2400.0

Rows = dict[str, dict[str, float]]


def measured(haloctl: Haloctl, metrics: Sequence[str], code: int = 0, **job: Any) -> Rows:
    """The medians of each variant of a job that ended so."""
    path = haloctl.job(model="tiny-llama", workload=WORKLOAD, **job)
    running = haloctl.start("submit", path, "--wait")
    assert running.process.wait(JOB_S) == code, running.err
    rows: Rows = {}
    for found in haloctl.json("results"):
        if found["metric"] in metrics:
            rows.setdefault(found["variant"], {})[found["metric"]] = found["median"]
    return dict(sorted(rows.items()))


def show(rows: Mapping[str, Mapping[str, float]], metrics: Sequence[str]) -> None:
    """One line for each variant."""
    width = max(map(len, rows), default=0) + 2
    print(f"\n{'variant':{width}}" + "".join(f"{metric:>28}" for metric in metrics))
    for variant, found in rows.items():
        print(f"{variant:{width}}" + "".join(f"{found.get(metric, float('nan')):>28.4g}" for metric in metrics))
