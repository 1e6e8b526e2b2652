"""`haloctl artifacts` verify, gc, pin and unpin: what becomes of the store as a whole."""

from typing import TYPE_CHECKING, Any

import typer

from orchestrator.commands.artifact_files import FILE, JSON, found_file

if TYPE_CHECKING:
    from jobs.task import Artifact
    from orchestrator.context import Context


def verify(
    name: str = typer.Argument(
        None, help="A job's id, a file's sha256, or TASK/NAME.", metavar="[JOB|SHA256|TASK/NAME]"
    ),
    all_files: bool = typer.Option(
        False, "--all", help="Every file that there should be, and every other that there is."
    ),
    json: bool = JSON,
) -> None:
    """Read files where they lie and say which are damaged or missing; damaged ones are laid aside.

    Ends with 0 if all are sound, with 3 if not.
    """
    from dataclasses import asdict

    from jobs.errors import ArtifactsUnsound, BadSetting
    from orchestrator import output
    from orchestrator.context import opened
    from workers.artifacts import Soundness

    if all_files == (name is not None):
        raise BadSetting("verify", "name a job or a file, or give --all")
    rows = []
    with opened() as context:
        store = context.artifacts
        for artifact in _all(context) if name is None else _named(context, name):
            found = store.check(artifact)
            rows.append({**asdict(artifact), "state": found.value, "address": store.address(artifact.sha256)})
            if found is not Soundness.SOUND and not json:
                output.answer(f"{found.value}  {artifact.name}  {artifact.sha256}")
    if json:
        output.as_json(rows)
    bad = [row for row in rows if row["state"] != Soundness.SOUND]
    if bad:
        raise ArtifactsUnsound(len(bad), len(rows))
    output.note(f"{output.count(len(rows), 'file')}: all sound")


def gc(
    older_than: str = typer.Option(
        None, "--older-than", help="Also files of jobs that ended so long ago: 90d, 12h.", metavar="AGE"
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would go."),
    json: bool = JSON,
) -> None:
    """Remove files that no job, pin or result points to, and what was begun a day ago and never finished.

    With --older-than also what jobs made that ended before, but for pinned files and those of the newest result of each
    variant and stage. Nothing of a running attempt goes, and nothing that was published within the hour.
    """
    from datetime import UTC, datetime

    from db import artifact_refs
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.files import artifact_gc
    from orchestrator.showing import rows

    now = datetime.now(UTC)
    before = rows.point_in_time(older_than, now, "--older-than") if older_than else None
    with opened() as context:
        found = artifact_gc.collect(
            context.artifacts, lambda: artifact_refs.kept(context.database, before), now, is_dry=dry_run
        )
    if json:
        output.as_json(
            {
                "is_dry_run": dry_run,
                "removed": [{"sha256": one.sha256, "size_bytes": one.size_bytes} for one in found.removed],
                "half_made_bytes": found.half_made_bytes,
                "freed_bytes": found.freed_bytes,
            }
        )
        return
    for one in found.removed:
        output.answer(f"{one.sha256}  {output.size(one.size_bytes)}")
    verb = "would go" if dry_run else "removed"
    what = f"{output.count(len(found.removed), 'file')} and {output.size(found.half_made_bytes)} that was half made"
    output.note(f"{verb}: {what}, {output.size(found.freed_bytes)} in all")


def pin(name: str = FILE, why: str = typer.Option(..., "--why", help="What it is kept for.")) -> None:
    """Keep a file, whatever becomes of the jobs that made or used it."""
    import getpass

    from db import pins
    from orchestrator import output
    from orchestrator.context import opened

    with opened() as context:
        artifact = found_file(context, name)
        pins.pin(context.database, artifact.sha256, why, getpass.getuser())
    output.note(f"{artifact.name} ({artifact.sha256[:12]}) is kept")


def unpin(name: str = FILE) -> None:
    """Let go of a pin: the file stays as long as a job points to it."""
    from db import pins
    from jobs.errors import NothingToDo
    from orchestrator import output
    from orchestrator.context import opened

    with opened() as context:
        artifact = found_file(context, name)
        if not pins.unpin(context.database, artifact.sha256):
            raise NothingToDo(f"{artifact.name} ({artifact.sha256[:12]}) is not pinned")
    output.note(f"{artifact.name} ({artifact.sha256[:12]}) is pinned no more")


def _named(context: "Context", name: str) -> list["Artifact"]:
    """The one file, or all that a job stands on."""
    from db.results import artifacts
    from jobs.errors import NotFound

    try:
        rows = [] if "/" in name else artifacts(context.database, job=name)
    except NotFound:
        rows = []
    return _distinct(rows) if rows else [found_file(context, name)]


def _all(context: "Context") -> list["Artifact"]:
    from db.results import artifacts
    from jobs.task import Artifact

    told = _distinct(artifacts(context.database))
    digests = {one.sha256 for one in told}
    others = (one for one in context.artifacts.stored() if one.sha256 not in digests)
    return [*told, *(Artifact(one.sha256[:12], "", one.sha256, one.size_bytes) for one in others)]


def _distinct(rows: list[Any]) -> list["Artifact"]:
    """Each file once, whoever made it."""
    from jobs.task import Artifact

    return list({row.sha256: Artifact(row.name, row.kind, row.sha256, row.size_bytes) for row in rows}.values())
