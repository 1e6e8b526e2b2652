"""The files of an evaluation's tasks: checked, and brought into a folder that holds nothing else.

A task is what its YAML and data say. It names no code, no dataset of a hub, and no file but those that were planned.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from workers.llm.command_line import BadInput
from workers.llm.models.json_files import expect_small_file

SUFFIX = "yaml"  #: files that end so are configs: `gsm8k.yaml`, and `_default_yaml`, which others include
BUILDERS = ("csv", "json", "parquet", "text")  #: how `datasets` reads files; it has others that run code or fetch files
DATASET_OPTIONS = ("data_files", "field")


def bring(files: Mapping[str, Path], folder: Path) -> None:
    """Bring files into a new folder under their names. Raises BadInput for a config that asks for anything else."""
    for name, path in files.items():
        place = folder / name
        if not place.resolve().is_relative_to(folder.resolve()):
            raise BadInput(f"{name} is not the name of a file in a folder")
        place.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(SUFFIX):
            place.write_text(yaml.safe_dump(checked(name, read_config(name, path), files, folder.resolve())))
        else:
            place.symlink_to(path)


def read_config(name: str, path: Path) -> dict[str, Any]:
    """Return a config. Raises BadInput where it is not YAML, or names code."""
    expect_small_file(path)
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.constructor.ConstructorError as problem:
        raise BadInput(
            f"{name}: {problem.problem}: code of tasks is not run; write what it does into the data"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as problem:
        raise BadInput(f"{name} is not YAML: {problem}") from None
    if not isinstance(config, dict):
        raise BadInput(f"{name} is not a task: it should have keys such as task, dataset_path and output_type")
    return config


def checked(name: str, config: dict[str, Any], files: Mapping[str, Path], folder: Path) -> dict[str, Any]:
    """Return a config whose data files are those in `folder`. Raises BadInput."""
    for key in ("class", "custom_dataset"):
        if key in config:
            raise BadInput(f"{name}: {key}: code of tasks is not run")
    for metric in map(_metric, _listed(config.get("metric_list") or [])):
        if not re.fullmatch(r"\w+", metric):
            raise BadInput(
                f"{name}: metric_list: {metric} is not the name of one of lm-evaluation-harness's own metrics"
            )
    for included in _listed(config.get("include", [])):
        if _name_of(Path(name).parent / str(included)) not in files:
            raise BadInput(f"{name}: include: {included} is not among the files of the folder")
    if config.get("dataset_path", BUILDERS[0]) not in BUILDERS:
        raise BadInput(
            f"{name}: dataset_path: {config['dataset_path']} is fetched from a hub, and tasks have their data beside "
            f"them: give one of {', '.join(BUILDERS)}, and dataset_kwargs: {{data_files: {{test: FILE}}}}"
        )
    options = config.get("dataset_kwargs") or {}
    if not isinstance(options, dict) or (unknown := options.keys() - set(DATASET_OPTIONS)):
        other = ", ".join(map(str, sorted(unknown, key=str))) if isinstance(options, dict) else options
        raise BadInput(f"{name}: dataset_kwargs: {other} is not among {', '.join(DATASET_OPTIONS)}")
    if "data_files" in options:
        options = {**options, "data_files": _data_files(name, options["data_files"], files, folder)}
    return {**config, **({"dataset_kwargs": options} if options else {})}


def _data_files(name: str, value: Any, files: Mapping[str, Path], folder: Path) -> Any:
    """Return the same structure of names with their paths in `folder`."""
    if isinstance(value, dict):
        return {split: _data_files(name, inner, files, folder) for split, inner in value.items()}
    if isinstance(value, list):
        return [_data_files(name, inner, files, folder) for inner in value]
    known = _name_of(Path(str(value)))
    if known not in files:
        raise BadInput(f"{name}: data_files: {value} is not among the files of the folder, to which names are relative")
    return str(folder / known)


def _name_of(path: Path) -> str:
    """Return a path without its detours, if it is relative and stays below its folder; an empty text if not."""
    parts: list[str] = []
    for part in path.parts:
        if part == ".." and not parts:
            return ""
        parts = parts[:-1] if part == ".." else [*parts, part]
    return "" if path.is_absolute() else "/".join(parts)


def _metric(entry: Any) -> str:
    """Return a metric's name; that of another library's stands for a file with its code."""
    is_of_harness = isinstance(entry, dict) and not entry.get("hf_evaluate")
    return str(entry.get("metric")) if is_of_harness else str(entry)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
