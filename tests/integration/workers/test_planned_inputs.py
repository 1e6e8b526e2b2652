"""Attempts whose model or files change after their job was submitted: nothing comes of them."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from jobs.models import SHIPPED, content_files
from jobs.state import FailureKind
from jobs.task import Attempt, Command, TaskResult
from jobs.toolchains import Toolchain
from tests.integration.attempts import make_attempt, python
from workers.artifacts import ArtifactStore
from workers.attempts.run_task import MAX_RUNS, run
from workers.inputs.content_digests import ContentDigests, Stopped, identity_of
from workers.processes.cancellation import Cancellation

TINY = SHIPPED / "tiny-llama"
TOOLCHAIN = Toolchain("default", {})

#: Programs of a test's stage; argv[1] is the file that changes, argv[2] one that counts the runs.
REPORT = """
import json, os, sys
with open(sys.argv[2], "a") as runs:
    runs.write(".")
json.dump({"load_s": 0.5, "calls": [{"entry_point": "prefill", "finite": True}]}, open("outputs/invoke.json", "w"))
"""
ZERO = (
    REPORT
    + """
with open(sys.argv[1], "r+b") as file:
    file.write(bytes(64))
"""
)
CHANGE_AND_CHANGE_BACK = (
    REPORT
    + """
if os.stat(sys.argv[2]).st_size <= int(sys.argv[3]):
    stat = os.stat(sys.argv[1])
    content = open(sys.argv[1], "rb").read()
    for written in (bytes(64), content):
        with open(sys.argv[1], "r+b") as file:
            file.write(written)
    os.utime(sys.argv[1], ns=(stat.st_atime_ns, stat.st_mtime_ns))
"""
)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    """A copy of the shipped model that may be changed."""
    yield Path(shutil.copytree(TINY, tmp_path / "model"))


def digest_of(file: Path) -> str:
    return sha256(file.read_bytes()).hexdigest()


def reading(model: Path | str, files: list[Path], *commands: Command, **settings: Any) -> Attempt:
    """An attempt of a task that was planned with the model as it is now."""
    facts: dict[str, Any] = {"text": str(model), "digest": "d", "revision": None, "overrides": {}}
    attempt = make_attempt(*commands, settings={"target": "cpu", "tp": 1, "model": facts, **settings})
    return replace(attempt, model_files={file.name: digest_of(file) for file in files})


def carried_out(data: Path, attempt: Attempt) -> TaskResult:
    return run(attempt, data, ArtifactStore(data / "artifacts"), TOOLCHAIN, Cancellation())


def outcome(result: TaskResult) -> tuple[FailureKind | None, list[str]]:
    """The kind of failure, and the kinds of what was published."""
    return result.failure.kind if result.failure else None, [artifact.kind for artifact in result.artifacts]


def runs(tmp_path: Path) -> int:
    return len((tmp_path / "runs").read_text()) if (tmp_path / "runs").exists() else 0


def test_a_model_that_stayed_as_it_was_is_read(tmp_path: Path, model: Path) -> None:
    attempt = reading(model, content_files(model), python(REPORT, "", str(tmp_path / "runs")))
    assert outcome(carried_out(tmp_path, attempt)) == (None, ["report", "log"])


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "generation_config.json"])
def test_a_model_that_changed_before_the_attempt_is_not_read(tmp_path: Path, model: Path, name: str) -> None:
    attempt = reading(model, content_files(model), python(REPORT, "", str(tmp_path / "runs")))
    with (model / name).open("r+b") as file:
        file.write(b" ")
    result = carried_out(tmp_path, attempt)
    assert outcome(result) == (FailureKind.INPUT_CHANGED, ["log"])
    assert result.failure
    assert result.failure.message == f"{model / name} has changed since the job was submitted: submit the job again"
    assert runs(tmp_path) == 0


def test_what_was_added_or_removed_is_named(tmp_path: Path, model: Path) -> None:
    attempt = reading(model, content_files(model), python(REPORT, "", str(tmp_path / "runs")))
    (model / "README.md").write_text("no tool reads this")
    assert outcome(carried_out(tmp_path, attempt))[0] is None
    (model / "adapter_config.json").write_text("{}")
    added = carried_out(tmp_path, replace(attempt, id=f"{attempt.id}2")).failure
    (model / "adapter_config.json").unlink()
    (model / "tokenizer.json").unlink()
    removed = carried_out(tmp_path, replace(attempt, id=f"{attempt.id}3")).failure
    shutil.rmtree(model)
    gone = carried_out(tmp_path, replace(attempt, id=f"{attempt.id}4")).failure
    assert added and removed and gone
    assert {failure.kind for failure in (added, removed, gone)} == {FailureKind.INPUT_CHANGED}
    assert f"{model}/adapter_config.json was added" in added.message
    assert f"{model}/tokenizer.json was removed" in removed.message
    assert f"the model folder {model} does not exist" in gone.message


def test_nothing_is_published_of_a_stage_while_which_the_model_changed(tmp_path: Path, model: Path) -> None:
    weights = model / "model.safetensors"
    attempt = reading(model, content_files(model), python(ZERO, str(weights), str(tmp_path / "runs")))
    result = carried_out(tmp_path, attempt)
    assert outcome(result) == (FailureKind.INPUT_CHANGED, ["log"])
    assert result.measurements == ()
    assert len(result.processes) == 1, "what ran is on record"
    assert result.failure
    assert str(weights) in result.failure.message


@pytest.mark.parametrize(("times", "kind"), [(1, None), (MAX_RUNS, FailureKind.INPUT_CHANGED)])
def test_a_stage_runs_again_if_the_model_was_changed_and_changed_back_while_it_ran(
    tmp_path: Path, model: Path, times: int, kind: FailureKind | None
) -> None:
    program = python(CHANGE_AND_CHANGE_BACK, str(model / "model.safetensors"), str(tmp_path / "runs"), str(times))
    result = carried_out(tmp_path, reading(model, content_files(model), program))
    assert outcome(result) == (kind, ["log"] if kind else ["report", "log"])
    assert runs(tmp_path) == min(times + 1, MAX_RUNS)


def test_text_and_files_in_options_are_checked_wherever_they_are_in_the_settings(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("In the beginning")
    settings = {"options": {"file": {"path": str(text), "sha256": digest_of(text)}}}
    attempt = reading("tiny-llama", content_files(TINY), python(REPORT, "", str(tmp_path / "runs")), **settings)
    assert outcome(carried_out(tmp_path, attempt))[0] is None
    text.write_text("In the end")
    result = carried_out(tmp_path, replace(attempt, id=f"{attempt.id}2"))
    assert result.failure
    assert (result.failure.kind, str(text) in result.failure.message) == (FailureKind.INPUT_CHANGED, True)


def test_a_model_of_the_hub_may_be_fetched_by_the_stage_but_must_be_what_was_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    commit = "c" * 40
    snapshot = tmp_path / "hf" / "hub" / "models--meta--tiny" / "snapshots" / commit
    fetch = f"import pathlib; f = pathlib.Path({str(snapshot)!r}); f.mkdir(parents=True, exist_ok=True)\n"
    fetch += "(f / 'config.json').write_text('{}')\n"
    facts = {"text": "meta/tiny", "digest": "d", "revision": commit, "overrides": {}}
    attempt = make_attempt(python(fetch + REPORT, "", str(tmp_path / "runs")), settings={"model": facts, "tp": 1})
    attempt = replace(attempt, model_files={"config.json": sha256(b"{}").hexdigest(), "merges.txt": "f" * 64})
    assert outcome(carried_out(tmp_path, attempt))[0] is None
    (snapshot / "config.json").write_text("[]")
    failure = carried_out(tmp_path, replace(attempt, id=f"{attempt.id}2")).failure
    assert failure
    assert failure.kind is FailureKind.INPUT_CHANGED
    assert f"{snapshot}/config.json has changed" in failure.message
    assert "remove it, so that it is fetched again" in failure.message


def test_a_large_file_is_read_once_as_long_as_it_stays_as_it_is(tmp_path: Path) -> None:
    weights, digests = TINY / "model.safetensors", ContentDigests(tmp_path / "inputs")
    content = digests.read(weights)
    assert (content.sha256, content.identity) == (digest_of(weights), identity_of(weights))
    assert ContentDigests(tmp_path / "inputs").read(weights, should_stop=lambda: True) == content, "without reading it"


def test_a_file_that_changed_a_moment_ago_is_read_again_for_its_times_may_not_tell(tmp_path: Path) -> None:
    weights, digests = tmp_path / "weights", ContentDigests(tmp_path / "inputs")
    weights.write_bytes(bytes(1 << 20))
    digests.read(weights)
    with pytest.raises(Stopped):
        digests.read(weights, should_stop=lambda: True)


def test_a_damaged_record_is_as_good_as_none(tmp_path: Path) -> None:
    weights, digests = TINY / "model.safetensors", ContentDigests(tmp_path / "inputs")
    content = digests.read(weights)
    (record,) = (path for path in (tmp_path / "inputs").iterdir() if path.is_file())
    for damaged in ("", "[]", json.dumps({"identity": content.identity})):
        record.write_text(damaged)
        assert digests.read(weights) == content


def test_a_folder_that_can_not_be_written_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    weights = TINY / "model.safetensors"
    assert ContentDigests(tmp_path / "file" / "inputs").read(weights).sha256 == digest_of(weights)
