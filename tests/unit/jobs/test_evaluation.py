"""What is planned for an evaluation, and what its gate says of scores on the same items."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from jobs.exporters import commands_of
from jobs.input_files import InputFile, input_files
from jobs.job_file.job_checks import job_problem
from jobs.job_file.spec import JobSpec
from jobs.plan import Plan, plan
from jobs.stages.evaluate import gate
from jobs.toolchain_table import TOOLCHAINS, find_toolchain
from jobs.toolchains import Toolchain
from orchestrator.submission.folders import files_in
from tests.stored_jobs import TINY

STAGES = ["export", "compile", "reference", "evaluate"]
TASKS = {"path": "/tasks", "files": {"a.yaml": {"path": "/tasks/a.yaml", "sha256": "1" * 64}}}


def spec(**keys: Any) -> JobSpec:
    variants = {"kv_cache": "paged", **keys.pop("variants", {})}
    return JobSpec.model_validate({"name": "x", "model": "tiny-llama", "stages": STAGES, "variants": variants, **keys})


def planned(**keys: Any) -> Plan:
    return plan(spec(**keys), TINY)


def test_all_variants_are_compared_with_one_reference() -> None:
    made = planned(variants={"precision": ["f32", "f16"], "tp": [1, 2], "target": ["cpu", "mi300x"]})
    (reference,) = (task for task in made.tasks if task.stage == "reference")
    evaluations = [task for task in made.tasks if task.stage == "evaluate"]
    assert len(evaluations) == 8
    assert all(reference.key in task.needs for task in evaluations)
    exports = [task for task in made.tasks if task.stage == "export"]
    assert all("decode_batch" in task.settings for task in exports)  # they have what scores prompts


def test_lm_eval_is_added_to_the_toolchain_that_the_program_needs() -> None:
    made = planned(variants={"toolchain": ["default", "iree-3.12", "iree-compiler-3.12"]})
    under = {task.toolchain for task in made.tasks if task.stage in ("reference", "evaluate")}
    assert under == {"lm-eval", "iree-3.12+lm-eval"}
    joined, parts = find_toolchain("iree-3.12+lm-eval"), [find_toolchain(name) for name in ("iree-3.12", "lm-eval")]
    assert joined.packages == (*parts[0].packages, *parts[1].packages)
    with pytest.raises(ValidationError):  # job files name the two apart
        spec(variants={"toolchain": "iree-3.12+lm-eval"})


def test_a_folder_s_files_are_inputs_wherever_it_lies() -> None:
    (task,) = (task for task in planned(evaluate={"tasks": TASKS}).tasks if task.stage == "reference")
    assert list(input_files(task.settings)) == [InputFile("/tasks/a.yaml", "1" * 64)]
    moved = {"path": "/b", "files": {"a.yaml": {"path": "/b/a.yaml", "sha256": "1" * 64}}}
    changed = {"path": "/tasks", "files": {"a.yaml": {"path": "/tasks/a.yaml", "sha256": "2" * 64}}}
    keys = [
        {task.key for task in planned(evaluate={"tasks": tasks}).tasks if task.stage == "reference"}
        for tasks in (TASKS, moved, changed)
    ]
    assert keys[0] == keys[1] != keys[2]
    (command,) = commands_of("reference", task.settings, Toolchain("default", {}))
    assert "--task-file=a.yaml=/tasks/a.yaml" in command.argv


def test_what_can_t_be_evaluated_is_told() -> None:
    problem = job_problem(spec(variants={"kv_cache": "contiguous"}), TOOLCHAINS)
    assert problem is not None
    assert problem.message == "the stage evaluate needs programs with `kv_cache: paged`, and no variant has that"


def test_a_folder_is_listed_without_what_is_hidden(tmp_path: Path) -> None:
    for name in ("a.yaml", "data/a.jsonl", ".git/config", ".git/hooks/.keep", "data/.a.jsonl.swp"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(tmp_path)
    assert list(files_in(tmp_path)) == ["a.yaml", "data/a.jsonl"]
    with pytest.raises(ValueError, match="has no files"):
        files_in(tmp_path / ".git" / "hooks")


def score(drop: float, stderr: float | None, **values: Any) -> dict[str, Any]:
    facts = {"name": "gsm8k exact_match", "value": 0.5 - drop, "reference": 0.5, "items": 400, "changed_items": 40}
    return {**facts, "drop": drop, "drop_stderr": stderr, **values}


def test_a_drop_fails_when_it_is_certain() -> None:
    assert gate([score(0.0, 0.0)], 1.0) is None
    assert gate([score(0.03, 0.015)], 1.0) is None  # 2 standard errors: chance
    failure = gate([score(0.05, 0.015)], 1.0)
    assert failure is not None
    assert failure.message == (
        "gsm8k exact_match 0.45, the reference's 0.5: worse by 0.05 ± 0.015 on 400 items, 40 of which changed, "
        "at most 0.005 allowed"
    )
    assert gate([score(0.05, 0.015)], 10.0) is None
    assert gate([score(0.05, 0.015)] + 50 * [score(0.0, 0.01)], 1.0) is None  # one of many may look so by chance
    assert gate([score(0.5, None)], 1.0) is not None
    assert gate([score(float("nan"), None)], 1.0) is not None
