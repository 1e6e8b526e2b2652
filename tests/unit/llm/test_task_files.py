"""The files of tasks: nothing but what they say, and nothing but what was planned."""

from pathlib import Path

import pytest
import yaml

from workers.llm.command_line import BadInput
from workers.llm.evaluation.task_files import bring

DATA = "dataset_path: json\ndataset_kwargs: {data_files: {test: data/a.jsonl}}\n"


def brought(folder: Path, text: str) -> Path:
    source = folder / "source"
    (source / "data").mkdir(parents=True)
    (source / "a.yaml").write_text(text)
    (source / "_base_yaml").write_text("output_type: multiple_choice\n")
    (source / "data" / "a.jsonl").write_text("{}\n")
    files = {name: source / name for name in ("a.yaml", "_base_yaml", "data/a.jsonl")}
    bring(files, folder / "tasks")
    return folder / "tasks"


def test_data_is_found_wherever_the_folder_is_brought(tmp_path: Path) -> None:
    tasks = brought(tmp_path, f"task: a\ninclude: ./_base_yaml\n{DATA}")
    config = yaml.safe_load((tasks / "a.yaml").read_text())
    path = Path(config["dataset_kwargs"]["data_files"]["test"])
    assert path.read_text() == "{}\n"
    assert path.is_relative_to(tasks)
    assert config["include"] == "./_base_yaml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: a\nprocess_docs: !function utils.process_docs", "'!function': code of tasks is not run"),
        ("task: a\ndoc_to_text: !!python/name:os.system", "code of tasks is not run"),
        ("class: tests.Task\ntask: a", "class: code of tasks is not run"),
        ("task: a\ndataset_path: openai/gsm8k", "openai/gsm8k is fetched from a hub"),
        ("task: a\ndataset_path: json\ndataset_kwargs: {trust_remote_code: true}", "trust_remote_code is not among"),
        (f"task: a\n{DATA}".replace("data/a.jsonl", "/etc/passwd"), "/etc/passwd is not among the files"),
        (f"task: a\n{DATA}".replace("data/a.jsonl", "../a.jsonl"), "../a.jsonl is not among the files"),
        (f"task: a\n{DATA}".replace("data/a.jsonl", "https://example.com/a"), "is not among the files"),
        ("task: a\ninclude: /etc/other.yaml", "/etc/other.yaml is not among the files"),
        ("task: a\nmetric_list: [{metric: ./mine}]", "./mine is not the name of one of lm-evaluation-harness's own"),
        ("task: a\nmetric_list: [{metric: bleu, hf_evaluate: true}]", "is not the name of one of"),
        ("task: [a", "a.yaml is not YAML"),
        ("- a", "a.yaml is not a task"),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        brought(tmp_path, text)
    assert message in str(refused.value)


def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(BadInput, match="is not the name of a file"):
        bring({"../b": tmp_path / "a"}, tmp_path / "tasks")
