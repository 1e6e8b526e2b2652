"""Laying a variant's files out in a folder, verified, with a script that runs them."""

import json
import shutil
from pathlib import Path, PurePath
from typing import Any

from db.variant_files import VariantFiles, variant_files
from jobs.errors import BadSetting, NotFound
from orchestrator.context import Context
from orchestrator.files import variant_set
from workers.artifacts import ArtifactStore


def find(context: Context, name: str, target: str | None, job: str | None) -> VariantFiles:
    """The one variant that is called so, or whose name starts so; raises NotFound, BadSetting."""
    found = variant_set.choose(variant_files(context.database, name, target=target, job=job), name)
    if not found:
        raise NotFound("variant with a module", name)
    if len(found) > 1:
        raise BadSetting(
            name, f"more than one is called so: {variant_set.named(found)}; give more of its name, --target"
        )
    return found[0]


def lay_out(found: VariantFiles, store: ArtifactStore, folder: Path) -> dict[str, Any]:
    """Put the files, a script and a README into a new or empty folder, at once; returns the program's config.

    Raises ArtifactLost where the store lacks a file or has it damaged, BadSetting where the folder can't be written.
    """
    folder = folder.absolute()
    part = folder.with_name(f".{folder.name}.part")
    try:
        if folder.exists() and any(folder.iterdir()):
            raise BadSetting("--output", f"{folder} is not empty; name a new folder")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for file in variant_set.laid_out(found):
            store.place(file, part / file.name)
        config = _add_what_runs_it(found, part)
        part.rename(folder)
    except OSError as error:
        raise BadSetting("--output", f"{error.filename}: {error.strerror}; name another folder") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return config


def _add_what_runs_it(found: VariantFiles, folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / variant_set.CONFIG).read_text())
    (folder / variant_set.README).write_text(variant_set.readme(found, config, found.versions))
    if config["parameter_files"]:
        script = folder / variant_set.SCRIPT
        script.write_text(variant_set.script(found, config, str(PurePath(found.compiler).parent)))
        script.chmod(0o755)
    return config
