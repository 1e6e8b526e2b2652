"""The manifest of a stored attempt, from which it is reproduced."""

from typing import Any

from db.reads import reports
from db.reads.reports import AttemptRow
from db.writes import toolchains
from jobs.task import Artifact
from orchestrator.context import Context
from orchestrator.reruns import reproduction
from workers.artifacts import ArtifactStore
from workers.environment import packages_root


def manifest_of(context: Context, attempt: AttemptRow, *, links: bool) -> dict[str, Any]:
    """Return an attempt's manifest; with `links`, inputs in a remote store have URLs that are valid for a week."""
    task = reports.task(context.database, attempt.task)
    lock = toolchains.of_digest(context.database, attempt.lock) if attempt.lock else None
    store = context.artifacts
    return reproduction.manifest(
        attempt,
        task,
        lock.lock if lock else None,
        lambda artifact: _locate(store, artifact, links=links),
        str(packages_root()),
    )


def _locate(store: ArtifactStore, artifact: Artifact, *, links: bool) -> dict[str, Any]:
    try:
        return {"path": str(store.path(artifact.sha256))}
    except ValueError:  # a remote store has no paths
        return {"path": "", "urls": list(store.links(artifact)) if links else []}
