"""A variant's files in a folder: IREE's own programs run there."""

import hashlib
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.contexts import context_for
from tests.acceptance.conftest import Filled
from tests.acceptance.haloctl import Haloctl
from tests.acceptance.job_specs import NEW_TOKENS, PROMPT_TOKENS

DECODE = f"decode_bs1_c{context_for(PROMPT_TOKENS + NEW_TOKENS)}"
FUNCTIONS = [f"prefill_bs1_t{PROMPT_TOKENS}", DECODE]
ONCE = "--benchmark_min_time=1x"
PROGRAM_S = 60.0


def run(*command: str, **variables: str) -> str:
    """Run a program outside haloctl and its environment; returns its stdout."""
    done = subprocess.run(
        command, env={"PATH": os.defpath, **variables}, cwd="/", capture_output=True, text=True, timeout=PROGRAM_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("tp", [1, 2])
def test_its_commands_and_its_script_run_every_function(filled: Filled, tmp_path: Path, tp: int) -> None:
    folder = tmp_path / "the set"
    name = f"tiny-llama-FP16-TP{tp}"
    lines = filled.haloctl.answer("artifacts", "get", name, "--target", "cpu", "-o", str(folder)).splitlines()
    commands = [shlex.split(line) for line in lines]
    assert [argv[0] for argv in commands] == ["iree-benchmark-module"] * len(FUNCTIONS)
    for argv, function in zip(commands, FUNCTIONS, strict=True):
        assert argv.count("--device=local-task") == tp
        program = str(Path(sys.executable).with_name(argv[0]))
        timed = json.loads(run(program, *argv[1:], ONCE, "--benchmark_format=json"))
        assert [row["run_name"].split("/")[0] for row in timed["benchmarks"]] == [f"BM_{function}"]
    called = run("sh", str(folder / "run.sh"), "run")
    assert [line for line in called.splitlines() if line.startswith("EXEC")] == [f"EXEC @{name}" for name in FUNCTIONS]
    timed_one = run("sh", str(folder / "run.sh"), DECODE, ONCE)
    assert f"BM_{DECODE}" in timed_one
    assert "prefill" not in timed_one


def test_it_holds_what_the_tasks_made_and_says_which(filled: Filled, tmp_path: Path) -> None:
    result = filled.haloctl.json(
        "artifacts", "get", "tiny-llama-FP16-TP2", "--target", "cpu", "-o", str(tmp_path / "set")
    )
    names = [file["name"] for file in result["files"]]
    assert names == ["config.json", "model.mlir", "model.rank0.irpa", "model.rank1.irpa", "model.vmfb"]
    readme = (tmp_path / "set" / "README.md").read_text()
    for file in result["files"]:
        assert hashlib.sha256((tmp_path / "set" / file["name"]).read_bytes()).hexdigest() == file["sha256"]
        assert file["sha256"] in readme
    assert result["job"] == filled.job


def test_a_changed_file_of_the_folder_leaves_the_store_as_it_was(filled: Filled, tmp_path: Path) -> None:
    get = ("artifacts", "get", "tiny-llama-FP16-TP1", "--target", "cpu", "-o")
    (file,) = (row for row in filled.haloctl.json(*get, str(tmp_path / "set"))["files"] if row["name"] == "model.vmfb")
    with (tmp_path / "set" / "model.vmfb").open("r+b") as module:  # as `cp other.vmfb set/model.vmfb` writes
        module.write(b"other")
    filled.haloctl.json(*get, str(tmp_path / "again"))
    again = (tmp_path / "again" / "model.vmfb").read_bytes()
    assert hashlib.sha256(again).hexdigest() == file["sha256"]


def test_what_is_unknown_ambiguous_or_in_the_way_is_told(filled: Filled, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    get, name = ("artifacts", "get"), "tiny-llama-FP16-TP1"
    unknown = filled.haloctl.run(*get, "no-such-variant", "-o", str(tmp_path / "set"))
    assert (unknown.code, "no-such-variant" in unknown.err) == (4, True)
    several = filled.haloctl.run(*get, "tiny-llama", "-o", str(tmp_path / "set"))
    assert several.code == 2
    assert "tiny-llama-FP16-TP2 (mi300x)" in several.err
    full = filled.haloctl.run(*get, name, "--target", "cpu", "-o", str(tmp_path / "full"))
    assert (full.code, "is not empty" in full.err) == (2, True)
    assert not (tmp_path / "set").exists()


def test_a_damaged_file_is_named_and_nothing_is_laid_out(copied: Haloctl, tmp_path: Path) -> None:
    (row,) = [
        artifact
        for artifact in copied.json("artifacts", "--kind", "vmfb", "--target", "cpu")
        if "TP2" in artifact["subject"]
    ]
    file = copied.data / "artifacts" / "sha256" / row["sha256"][:2] / row["sha256"]
    file.chmod(0o644)
    file.write_bytes(b"\0" + file.read_bytes()[1:])
    done = copied.run("artifacts", "get", "tiny-llama-FP16-TP2", "--target", "cpu", "-o", str(tmp_path / "set"))
    assert done.code == 4, done.err
    assert "model.vmfb" in done.err
    assert "damaged" in done.err
    assert list(tmp_path.glob("*set*")) == []
