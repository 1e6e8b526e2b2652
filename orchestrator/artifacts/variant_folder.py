"""Writes a variant's verified files to a folder, with a script that runs them."""

import json
import shutil
from pathlib import Path, PurePath
from typing import Any

from db.reads.variant_files import VariantFiles, variant_files
from jobs.errors import BadSetting, FileError, NotFound
from jobs.paths import path_below
from orchestrator.artifacts import variant_layout
from orchestrator.context import Context
from workers.artifacts import ArtifactStore
from workers.artifacts.streams import copy_file


def find(context: Context, name: str, target: str | None, job: str | None) -> VariantFiles:
    """Return the one variant whose name is or starts with `name`; raises NotFound, BadSetting."""
    candidates = variant_files(context.database, name, target=target, job=job)
    variants = [candidate for candidate in candidates if candidate.variant == name] or candidates
    if not variants:
        raise NotFound("variant with a module", name)
    if len(variants) > 1:
        names = ", ".join(f"{variant.variant} ({variant.target})" for variant in variants)
        raise BadSetting(name, f"several variants match: {names}; give more of the name, or --target")
    return variants[0]


def write_folder(variant: VariantFiles, store: ArtifactStore, folder: Path) -> dict[str, Any]:
    """Write the files, a script and a README to a new or empty folder, all at once; returns the program's config.

    The files are copies: whoever owns the folder may change them, and the store's stay as they are.

    Raises ArtifactLost if the store lacks a file or has it damaged, BadSetting if the folder can't be written.
    """
    if all(file.name != variant_layout.CONFIG for file in variant.files):
        remedy = f"fetch its files, such as {variant.compile_task}/model.vmfb"
        raise BadSetting(
            variant.variant, f"haloctl did not make this program, so it has no folder of its own: {remedy}"
        )
    folder = folder.absolute()
    part = folder.with_name(f".{folder.name}.part")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise BadSetting("--output", f"{folder} is not empty; name a new folder")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for file in variant_layout.folder_files(variant):
            copy_file(store.local(file), path_below(part, file.name))
        config = _write_script_and_readme(variant, part)
        part.rename(folder)
    except OSError as error:
        raise BadSetting("--output", f"{error.filename}: {error.strerror}; name another folder") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return config


def _write_script_and_readme(variant: VariantFiles, folder: Path) -> dict[str, Any]:
    """Write both, as new files."""
    file = folder / variant_layout.CONFIG
    try:
        config: dict[str, Any] = json.loads(file.read_text())
        readme = variant_layout.readme(variant, config, variant.versions)
        tools = str(PurePath(variant.compiler).parent)
        script = variant_layout.script(variant, config, tools) if config["parameter_files"] else ""
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise FileError(variant_layout.CONFIG, None, "", f"is not what export writes: {error!r}") from error
    _write_new(folder / variant_layout.README, readme)
    if script:
        _write_new(folder / variant_layout.SCRIPT, script)
        (folder / variant_layout.SCRIPT).chmod(0o755)
    return config


def _write_new(file: Path, text: str) -> None:
    with file.open("x") as stream:
        stream.write(text)
