"""Fine-tuning in job files: ways side by side, the model of later stages, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from jobs.errors import JobFileError
from jobs.exporters import commands_of
from jobs.plan import PlannedTask, plan
from jobs.training_data import BadTrainingData, Example, read_examples
from orchestrator.submission import job_file
from tests.stored_jobs import TINY, TOOLCHAIN, spec_of

STAGES = ["finetune", "quantize", "export", "compile", "numerics"]
WAYS = ["none", {"name": "lora8", "rank": 8}, {"name": "full", "method": "full", "epochs": 2}]


def tasks(**changes: Any) -> dict[str, PlannedTask]:
    """The planned tasks by stage and variants."""
    section = {"data": "/data/examples.jsonl", "steps": 100, "batch": 4}
    spec = spec_of(**{"stages": STAGES, "finetune": section, **changes})
    planned = plan(spec, TINY)
    return {f"{task.stage} {'+'.join(variant.name for variant in task.variants)}": task for task in planned.tasks}


def argv(task: PlannedTask) -> set[str]:
    (command,) = commands_of(task.stage, task.settings, TOOLCHAIN)
    return set(command.argv)


def test_each_way_is_a_variant_and_trains_once_for_all_that_follow() -> None:
    planned = tasks(variants={"finetune": WAYS, "precision": "f32", "tp": [1, 2]})
    lora = planned["finetune tiny-llama-lora8-FP32-TP1+tiny-llama-lora8-FP32-TP2"]
    full = planned["finetune tiny-llama-full-FP32-TP1+tiny-llama-full-FP32-TP2"]
    assert {"--method=lora", "--rank=8", "--alpha=16", "--steps=100", "--batch=4", "--model=tiny-llama"} <= argv(lora)
    assert {"--method=full", "--epochs=2.0"} <= argv(full)
    assert not any(flag.startswith(("--rank", "--steps")) for flag in argv(full))
    assert (lora.toolchain, full.toolchain) == ("peft", "peft")
    assert "finetune tiny-llama-FP32-TP1" not in planned


def test_later_stages_read_what_was_trained_and_those_of_the_base_do_not() -> None:
    planned = tasks(variants={"finetune": WAYS[:2], "precision": "int8"})
    trained = planned["finetune tiny-llama-lora8-INT8-TP1"]
    for stage in ("quantize", "export", "numerics"):
        tuned, base = (planned[f"{stage} tiny-llama-{way}INT8-TP1"] for way in ("lora8-", ""))
        assert trained.key in tuned.needs
        assert "--model=./inputs/finetune" in argv(tuned)
        assert "--model=tiny-llama" in argv(base)
    assert trained.key not in planned["compile tiny-llama-lora8-INT8-TP1"].needs


def test_a_section_alone_trains_every_variant() -> None:
    assert list(tasks(stages=["finetune"], variants={"tp": [1, 2]})) == [
        "finetune tiny-llama-lora-FP16-TP1+tiny-llama-lora-FP16-TP2"
    ]


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("finetune: {rank: 8}\n", 3, "finetune.data: is missing"),
        ("finetune: {data: d.txt, steps: 3, epochs: 1}\n", 3, "give either steps or epochs"),
        ("finetune: {data: d.txt}\nstages: [export]\n", 3, "needs the stage finetune"),
        ("finetune: {data: d.txt, learning_rate: .inf}\n", 3, "finite"),
        ("finetune: {data: nowhere.txt}\n", 3, "does not exist"),
        ("variants:\n  finetune: [{name: none, rank: 8}]\n", 4, "no options"),
        ("variants:\n  finetune: [{name: a, rnk: 8}]\n", 4, "rnk"),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    (tmp_path / "d.txt").write_text("some text")
    job = tmp_path / "job.yaml"
    job.write_text(f"name: x\nmodel: tiny-llama\n{text}")
    with pytest.raises(JobFileError) as refused:
        job_file.load(str(job))
    assert f"{job}:{line}: " in str(refused.value)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("lines", "place", "says"),
    [
        ('{"text": "a"}\n{"text": "b"\n', ":2:13: ", "is not JSON"),
        ('{"text": ""}\n', ":1: ", "not empty"),
        ("[1]\n", ":1: ", "either `text` or `messages`"),
        ('{"text": "a", "messages": []}\n', ":1: ", "either `text` or `messages`"),
        ('{"messages": [{"role": "robot", "content": "a"}]}\n', ":1: ", "messages[0].role"),
        ('{"messages": [{"role": "user", "content": 3}]}\n', ":1: ", "messages[0].content"),
        ('{"text": "\xff"}\n', ":1:11: ", "is not UTF-8"),
        ("[" * 100_000 + "\n", ":1: ", "nested"),
        ("\n\n", "", "has no examples"),
    ],
)
def test_a_broken_example_is_told_with_line_and_column(tmp_path: Path, lines: str, place: str, says: str) -> None:
    file = tmp_path / "examples.jsonl"
    file.write_bytes(lines.encode("latin-1"))
    with pytest.raises(BadTrainingData, match=r"examples\.jsonl") as refused:
        list(read_examples(file))
    assert f"{file}{place}" in str(refused.value)
    assert says in str(refused.value)


def test_examples_are_texts_and_conversations(tmp_path: Path) -> None:
    file = tmp_path / "examples.jsonl"
    file.write_text('{"text": "a", "id": 3}\n\n{"messages": [{"role": "user", "content": "b"}]}')
    messages = [{"role": "user", "content": "b"}]
    assert list(read_examples(file)) == [Example("a"), Example(messages=messages)]
