"""A gate between two real toolchains: two compilers, two programs that run, and their timings.

The second compiler repeats each dispatch 25 times, so that its programs are slower on any machine, however busy.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import toolchain_wheels
from tests.acceptance.haloctl import Haloctl, opened
from tests.acceptance.job_specs import EVERYTHING, PROMPT_TOKENS

SLOW = "--iree-hal-benchmark-dispatch-repeat-count=25"
NAMES = ("iree-9.1", "default")
FAR_TOO_FAST_MS = 1e-4  #: every program is slower


@pytest.fixture
def haloctl(temporary: Path, origin: Path, tmp_path: Path) -> Iterator[Haloctl]:
    """A haloctl that has measured with its default compiler, and can install another one."""
    wheels = tmp_path / "wheels"
    toolchain_wheels.iree(wheels, "9.1.0", flags=[SLOW])
    with opened(tmp_path / "copied", temporary, origin / "data", **toolchain_wheels.variables(wheels)) as cli:
        yield cli
        cli.until_gone()


def claim(haloctl: Haloctl) -> None:
    """Import a result that nothing on this machine can match, labelled as measured here with the installed compiler."""
    run = {"name": f"BM_prefill_bs1_t{PROMPT_TOKENS}", "real_time": FAR_TOO_FAST_MS, "time_unit": "ms"}
    file = haloctl.folder / "iree.json"
    file.write_text(json.dumps({"context": {"date": "2024-11-01T10:00:00+00:00"}, "benchmarks": [run]}))
    haloctl.answer(
        *("import", "iree", str(file), "--variant", "tiny-llama-FP16-TP1", "--target", "cpu", "--node", "local")
    )


def gated(haloctl: Haloctl, toolchains: list[str], against: str) -> str:
    """A job file."""
    return haloctl.job(
        **{
            **EVERYTHING,
            "variants": {"precision": "f16", "tp": [1, 2], "toolchain": toolchains, "exclude": [{"tp": 2}]},
            "stages": ["export", "compile", "benchmark"],
            "gate": {"against": against, "metrics": ["ttft_ms"], "runs": 2},
        }
    )


def test_a_compiler_whose_programs_are_slower_fails_the_gate_and_its_numbers_stay(haloctl: Haloctl) -> None:
    """The gate compares with the other program's runs on this device, also in the same job and in either order, and
    with no imported result."""
    claim(haloctl)
    done = haloctl.run("submit", gated(haloctl, list(NAMES), "toolchain:default"), "--wait", "--json")
    assert done.code == 3, done.err
    job = haloctl.json("list")[0]["job"]
    reference, task = (shown for shown in haloctl.json("show", job)["tasks"] if shown["stage"] == "benchmark")
    assert (reference["toolchain"], task["toolchain"], task["after"]) == ("default", "iree-9.1", reference["task"])
    began = [attempt["started_at"] for attempt in haloctl.json("show", task["task"])["attempts"]]
    assert reference["ended_at"] <= min(began)
    assert (task["failure"]["kind"], task["attempts"]) == ("too_slow", 2)
    assert "is slower than default " in task["failure"]["message"]
    assert re.search(r" ms \([1-3] runs?\): \+", task["failure"]["message"])
    rows = haloctl.json("results", "--metric", "ttft_ms", "--variant", "tiny-llama-FP16-TP1*", "--target", "cpu")
    (claimed,) = [row for row in rows if "imported_from" in row["context"]]
    assert (claimed["node"], claimed["toolchain"], claimed["median"]) == ("local", "default", FAR_TOO_FAST_MS)
    medians = {
        name: [row["median"] for row in rows if row is not claimed and row["toolchain"] == name] for name in NAMES
    }
    assert min(medians["iree-9.1"]) > 2 * max(medians["default"])
