"""Reports that stages wrote, found by task or by variant."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from db.reads import artifact_refs
from db.reads.results import artifacts
from jobs.errors import NotFound
from jobs.task import Artifact
from orchestrator.context import Context


def read_report(context: Context, name: str, file: str, what: str) -> Any:
    """Return the newest report of a task or a variant, `VARIANT:TARGET` where it has several. Raises NotFound."""
    artifact = _find_report(context, name, file, what)
    with TemporaryDirectory() as folder:
        path = Path(folder, artifact.name)
        context.artifacts.get(artifact, path)
        return json.loads(path.read_text(encoding="utf-8"))


def _find_report(context: Context, name: str, file: str, what: str) -> Artifact:
    variant, _, target = name.partition(":")
    for row in artifacts(context.database, variant=variant, target=target or None, kind="report"):
        if row.name == file:
            return Artifact(row.name, row.kind, row.sha256, row.size_bytes)
    try:
        return artifact_refs.find_artifact(context.database, f"{name}/{file}")
    except NotFound:
        raise NotFound(what, name) from None
