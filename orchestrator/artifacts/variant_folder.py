"""Writes a variant's verified files to a folder, with a script that runs them."""

import json
import shutil
from pathlib import Path, PurePath
from typing import Any

from db.reads.variant_files import VariantFiles, variant_files
from jobs.errors import BadSetting, NotFound
from orchestrator.artifacts import variant_layout
from orchestrator.context import Context
from workers.artifacts import ArtifactStore


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

    Raises ArtifactLost if the store lacks a file or has it damaged, BadSetting if the folder can't be written.
    """
    folder = folder.absolute()
    part = folder.with_name(f".{folder.name}.part")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise BadSetting("--output", f"{folder} is not empty; name a new folder")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for file in variant_layout.folder_files(variant):
            store.place(file, part / file.name)
        config = _write_script_and_readme(variant, part)
        part.rename(folder)
    except OSError as error:
        raise BadSetting("--output", f"{error.filename}: {error.strerror}; name another folder") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return config


def _write_script_and_readme(variant: VariantFiles, folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / variant_layout.CONFIG).read_text())
    (folder / variant_layout.README).write_text(variant_layout.readme(variant, config, variant.versions))
    if config["parameter_files"]:
        script = folder / variant_layout.SCRIPT
        script.write_text(variant_layout.script(variant, config, str(PurePath(variant.compiler).parent)))
        script.chmod(0o755)
    return config
