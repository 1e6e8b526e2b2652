"""A release of IREE from the index, over what haloctl is installed in: it compiles and runs, and torch stays."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.errors import IndexUnreachable
from jobs.task import Command
from jobs.toolchain_table import find_toolchain
from jobs.toolchains import Toolchain
from tests.integration.attempts import make_attempt, python
from workers.artifacts import ArtifactStore
from workers.attempts.run_task import run
from workers.processes.cancellation import Cancellation
from workers.toolchain_probe import probe_toolchain
from workers.toolchains.environments import Environments
from workers.toolchains.resolving import resolve

RELEASE = "3.12"
DOUBLE = """
func.func @double(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = arith.addf %x, %x : tensor<4xf32>
  return %y : tensor<4xf32>
}
"""
CPU = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu")
LOOK = """
import json
from importlib.metadata import version
from importlib.util import find_spec
import iree.compiler, iree.runtime
where = {name: find_spec(name).origin for name in ("iree.compiler", "iree.runtime", "iree.turbine", "torch")}
report = {"where": where, "compiler": version("iree-base-compiler"), "torch": version("torch")}
json.dump(report, open("outputs/found.json", "w"))
print(json.dumps(report))
"""


def test_a_release_compiles_and_runs_over_the_torch_that_is_there(tmp_path: Path) -> None:
    environments = Environments(tmp_path)
    base = probe_toolchain(tmp_path / "cache")
    name = f"iree-{RELEASE}"
    try:
        lock = resolve(name, find_toolchain(name), base, environments.cache)
        toolchain = environments.build(lock)
    except IndexUnreachable as error:
        pytest.skip(f"packages can't be fetched here: {error}")
    source = tmp_path / "double.mlir"
    source.write_text(DOUBLE)
    attempt = make_attempt(
        Command(("iree-compile", "--version")),
        Command(("iree-compile", str(source), "-o", "outputs/model.vmfb", *CPU)),
        Command(("iree-run-module", "--module=outputs/model.vmfb", "--device=local-task", "--input=4xf32=1 2 3 4")),
        python(LOOK),
        stage="compile",
        settings={"target": "cpu", "tp": 1, "flags": [], "prefill_rows": 1, "decode_rows": 1},
    )
    data = tmp_path
    store = ArtifactStore(data / "artifacts")
    result = run(replace(attempt, toolchain=lock.digest), data, store, Toolchain("default", {}), Cancellation())
    assert result.failure is None
    log = (data / "logs" / f"{attempt.id}.log").read_text()
    assert f"IREE compiler version {RELEASE}." in log
    assert "4xf32=2 4 6 8" in log
    report = json.loads(next(line for line in log.splitlines() if line.startswith('{"where"')))
    assert report["compiler"].startswith(f"{RELEASE}.")
    assert report["torch"] == base.versions["torch"]
    inside = {module for module, file in report["where"].items() if Path(file).is_relative_to(environments.folder)}
    assert inside == {"iree.compiler", "iree.runtime"}
    assert toolchain.compiler_flags - base.compiler_flags or base.compiler_flags - toolchain.compiler_flags
