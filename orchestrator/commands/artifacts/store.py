"""`haloctl artifacts` verify, gc, pin and unpin: the artifact store as a whole."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.commands import options
from orchestrator.commands.artifacts.files import find_file

if TYPE_CHECKING:
    from jobs.task import Artifact
    from orchestrator.context import Context


def verify(
    name: Annotated[
        str | None,
        typer.Argument(help="Id of a job, a file's sha256, or TASK/NAME.", metavar="[JOB|SHA256|TASK/NAME]"),
    ] = None,
    all_files: Annotated[
        bool, typer.Option("--all", help="Verify all files that jobs need and all that are stored.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Verify files, and set damaged ones aside.

    It exits with 3 when a file is damaged or missing.
    """
    from dataclasses import asdict

    from jobs.errors import ArtifactsDamaged, BadSetting
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.formatting import format_count
    from workers.artifacts import Soundness

    if all_files == (name is not None):
        raise BadSetting("verify", "name a job or a file, or use --all")
    rows = []
    with open_context() as context:
        store = context.writable_artifacts
        for artifact in _all_artifacts(context) if name is None else _named_artifacts(context, name):
            soundness = store.check(artifact)
            rows.append({**asdict(artifact), "state": soundness.value, "address": store.address(artifact.sha256)})
            if soundness is not Soundness.SOUND and not json:
                output.print_line(f"{soundness.value}  {artifact.name}  {artifact.sha256}")
    if json:
        output.print_json(rows)
    unsound = [row for row in rows if row["state"] != Soundness.SOUND]
    if unsound:
        raise ArtifactsDamaged(len(unsound), len(rows))
    output.print_message(f"{format_count(len(rows), 'file')}: all sound")


def gc(
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Include files of jobs that ended this long ago: 90d, 12h.", metavar="AGE"),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be removed only.")] = False,
    json: options.Json = False,
) -> None:
    """Remove files that no job, pin or result refers to.

    Unfinished uploads that are older than a day are removed, too. --older-than removes files of old jobs as well,
    except pinned ones and those of the latest result of each variant and stage. Files of running attempts, and files
    that were published within the last hour, stay.
    """
    from db.reads import artifact_refs
    from db.writes import changes
    from db.writes.changes import ChangeAction
    from jobs.errors import AlreadyRunning
    from orchestrator import output, times
    from orchestrator.artifacts import collection
    from orchestrator.context import open_context
    from orchestrator.formatting import format_bytes, format_count

    with open_context() as context, context.database.collector_lock() as lock:
        if not lock.try_acquire():
            raise AlreadyRunning("artifacts gc", "wait until it has ended")
        store = context.writable_artifacts
        now = store.clock()
        before = times.parse_time(older_than, now, "--older-than") if older_than else None
        result = collection.collect(
            store, lambda: artifact_refs.referenced(context.database, before), now, is_dry=dry_run
        )
        if not dry_run:
            detail = f"{format_count(len(result.removed), 'file')}, {format_bytes(result.freed_bytes)}"
            changes.record_alone(context.database, ChangeAction.GC, store.where, detail)
    if json:
        output.print_json(
            {
                "is_dry_run": dry_run,
                "removed": [{"sha256": file.sha256, "size_bytes": file.size_bytes} for file in result.removed],
                "abandoned_bytes": result.abandoned_bytes,
                "freed_bytes": result.freed_bytes,
            }
        )
        return
    for file in result.removed:
        output.print_line(f"{file.sha256}  {format_bytes(file.size_bytes)}")
    verb = "would remove" if dry_run else "removed"
    files, unfinished = format_count(len(result.removed), "file"), format_bytes(result.abandoned_bytes)
    output.print_message(f"{verb} {files} and {unfinished} of unfinished ones: {format_bytes(result.freed_bytes)}")


def pin(
    name: options.Artifact, why: Annotated[str, typer.Option("--why", help="The reason, shown by `show`.")]
) -> None:
    """Pin a file, so that `gc` never removes it."""
    from db.schema.actors import current_actor
    from db.writes import pins
    from jobs.errors import ArtifactLost
    from orchestrator import output
    from orchestrator.context import open_context

    with open_context() as context:
        artifact = find_file(context, name)
        store = context.writable_artifacts
        if store.use([artifact]):
            raise ArtifactLost(artifact.name, artifact.sha256, store.where, "missing, or about to be removed,")
        pins.pin(context.database, artifact.sha256, why, current_actor())
    output.print_message(f"{artifact.name} ({artifact.sha256[:12]}): pinned")


def unpin(name: options.Artifact) -> None:
    """Unpin a file; it stays as long as a job refers to it."""
    from db.writes import pins
    from jobs.errors import NothingToDo
    from orchestrator import output
    from orchestrator.context import open_context

    with open_context() as context:
        artifact = find_file(context, name)
        if not pins.unpin(context.database, artifact.sha256):
            raise NothingToDo(f"{artifact.name} ({artifact.sha256[:12]}) is not pinned")
    output.print_message(f"{artifact.name} ({artifact.sha256[:12]}): unpinned")


def _named_artifacts(context: "Context", name: str) -> list["Artifact"]:
    """Return the file with a name, or all files of a job."""
    from db.reads.results import artifacts
    from jobs.errors import NotFound

    try:
        rows = [] if "/" in name else artifacts(context.database, job=name)
    except NotFound:
        rows = []
    return _distinct(rows) if rows else [find_file(context, name)]


def _all_artifacts(context: "Context") -> list["Artifact"]:
    from db.reads.results import artifacts
    from jobs.task import Artifact

    known = _distinct(artifacts(context.database))
    digests = {artifact.sha256 for artifact in known}
    others = (stored for stored in context.artifacts.stored() if stored.sha256 not in digests)
    return [*known, *(Artifact(stored.sha256[:12], "", stored.sha256, stored.size_bytes) for stored in others)]


def _distinct(rows: list[Any]) -> list["Artifact"]:
    """Return each file once, whatever the number of tasks that made it."""
    from jobs.task import Artifact

    return list({row.sha256: Artifact(row.name, row.kind, row.sha256, row.size_bytes) for row in rows}.values())
