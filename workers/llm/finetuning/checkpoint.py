"""Writes what a fine-tuning made: a checkpoint that later stages read, and its adapter."""

import shutil
import tarfile
from pathlib import Path
from typing import Any

from workers.llm.models.model_source import TOKENIZER_FILES, LocalModel

OUTPUTS = Path("outputs")
ADAPTER = OUTPUTS / "adapter.tar"
CHAT_TEMPLATE = "chat_template.jinja"
MAX_SHARD = "4GB"


def save_adapter(model: Any, folder: Path) -> None:
    """Write an adapter as peft reads it, in one file: a folder with it would not be that of a whole model."""
    model.save_pretrained(folder)
    with tarfile.open(ADAPTER, "w") as archive:
        for file in sorted(folder.iterdir()):
            entry = archive.gettarinfo(file, f"adapter/{file.name}")
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
            with file.open("rb") as content:
                archive.addfile(entry, content)


def save_checkpoint(model: Any, source: LocalModel) -> None:
    """Write a model with the tokenizer of its base, in the number format in which that is stored."""
    model.to(source.config.dtype or model.dtype).save_pretrained(OUTPUTS, max_shard_size=MAX_SHARD)
    assert source.folder is not None, "a shape has no weights to train"
    for name in (*TOKENIZER_FILES, CHAT_TEMPLATE):
        if (source.folder / name).is_file():
            shutil.copyfile(source.folder / name, OUTPUTS / name)
