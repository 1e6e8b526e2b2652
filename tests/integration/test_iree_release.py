"""A release of IREE from the index, over what haloctl is installed in: it compiles and runs, and torch stays."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.errors import IndexUnreachable
from jobs.task import Command
from jobs.toolchains import Toolchain, find
from tests.integration.attempts import attempt, python
from workers.artifacts import ArtifactStore
from workers.environment import probe_toolchain
from workers.processes import Cancellation
from workers.run_task import run
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
found = {"where": where, "compiler": version("iree-base-compiler"), "torch": version("torch")}
json.dump(found, open("outputs/found.json", "w"))
print(json.dumps(found))
"""


def test_a_release_compiles_and_runs_over_the_torch_that_is_there(tmp_path: Path) -> None:
    here = Environments(tmp_path)
    base = probe_toolchain(tmp_path / "cache")
    name = f"iree-{RELEASE}"
    try:
        lock = resolve(name, find(name), base, here.cache)
        toolchain = here.build(lock)
    except IndexUnreachable as error:
        pytest.skip(f"packages can't be fetched here: {error}")
    source = tmp_path / "double.mlir"
    source.write_text(DOUBLE)
    given = attempt(
        Command(("iree-compile", "--version")),
        Command(("iree-compile", str(source), "-o", "outputs/model.vmfb", *CPU)),
        Command(("iree-run-module", "--module=outputs/model.vmfb", "--device=local-task", "--input=4xf32=1 2 3 4")),
        python(LOOK),
        stage="compile",
        settings={"target": "cpu", "tp": 1, "flags": [], "prefill_rows": 1, "decode_rows": 1},
    )
    data = tmp_path
    store = ArtifactStore(data / "artifacts")
    result = run(replace(given, toolchain=lock.digest), data, store, Toolchain("default", {}), Cancellation())
    assert result.failure is None
    log = (data / "logs" / f"{given.id}.log").read_text()
    assert f"IREE compiler version {RELEASE}." in log
    assert "4xf32=2 4 6 8" in log
    found = json.loads(next(line for line in log.splitlines() if line.startswith('{"where"')))
    assert found["compiler"].startswith(f"{RELEASE}.")
    assert found["torch"] == base.versions["torch"]
    inside = {module for module, file in found["where"].items() if Path(file).is_relative_to(here.folder)}
    assert inside == {"iree.compiler", "iree.runtime"}
    assert toolchain.compiler_flags - base.compiler_flags or base.compiler_flags - toolchain.compiler_flags
