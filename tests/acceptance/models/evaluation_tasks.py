"""Tasks of all three kinds for an evaluation, on the shipped text, as users keep them in a folder."""

import json
import shutil
from pathlib import Path

import yaml

from jobs.models import SHIPPED, SHIPPED_TASKS

WHOLE_TEXTS = {
    "task": "texts",
    "include": "texts/_base_yaml",
    "dataset_kwargs": {"data_files": {"test": "texts/some.jsonl"}},
    "metric_list": [{"metric": "word_perplexity"}],
}
BASE = {
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{text}}",
}


def write_tasks(folder: Path) -> Path:
    """Write the tasks that ship with haloctl, and one of the perplexity of whole texts; return the folder."""
    shutil.copytree(SHIPPED_TASKS, folder)
    (folder / "texts").mkdir()
    (folder / "texts.yaml").write_text(yaml.safe_dump(WHOLE_TEXTS))
    (folder / "texts" / "_base_yaml").write_text(yaml.safe_dump(BASE))
    lines = (SHIPPED / "tiny-llama" / "heldout.txt").read_text().splitlines()[:24]
    (folder / "texts" / "some.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    return folder
