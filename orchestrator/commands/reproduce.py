"""`haloctl reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from db.reports import AttemptRow
    from orchestrator.context import Context

SCRIPT, MANIFEST = "reproduce.sh", "manifest.json"


def reproduce(
    name: str = typer.Argument(help="A task's or an attempt's id, or the start of it.", metavar="TASK|ATTEMPT"),
    folder: Path = typer.Option(
        None, "--output", "-o", help=f"Write {SCRIPT} and {MANIFEST} into this folder instead.", file_okay=False
    ),
    json: bool = typer.Option(False, "--json", help="Answer with the manifest, in JSON."),
) -> None:
    """Print a shell script that does an attempt again without haloctl.

    The very commands, environment and inputs; of a task its latest attempt, or the one that it was taken over from.
    """
    from orchestrator import output, reproduction
    from orchestrator.context import opened

    with opened() as context:
        found = _manifest(context, name)
    script = reproduction.script(found)
    if folder is not None:
        _write(folder, found, script)
        output.note(f"`sh {folder / SCRIPT} FOLDER` does it again in a new folder")
    if json:
        output.as_json(found)
    elif folder is None:
        output.raw(script)


def _manifest(context: "Context", name: str) -> dict[str, Any]:
    from db import reports
    from orchestrator import output, reproduction
    from workers.artifacts import ArtifactStore

    attempt = _attempt(context, name)
    task = reports.task(context.database, attempt.task)
    store = ArtifactStore(context.settings.artifacts)
    found = reproduction.manifest(attempt, task, lambda sha256: str(store.path(sha256)))
    for artifact in (artifact for artifacts in attempt.inputs.values() for artifact in artifacts):
        if not store.has(artifact):
            output.note(f"warning: {artifact.name} ({artifact.sha256}) is not in the artifact store")
    return found


def _attempt(context: "Context", name: str) -> "AttemptRow":
    from db import reports
    from jobs.errors import NothingToDo

    if name.count("-") < 2:
        task = reports.task(context.database, name)
        if task.attempt is None:
            raise NothingToDo(f"task {task.id} has not run: `haloctl why {task.id}` says what it waits for")
        name = task.attempt
    attempt = reports.attempt(context.database, name)
    if not attempt.environment:  # it comes with the result
        raise NothingToDo(f"attempt {attempt.id} left no result that could be had again: {_fate(attempt)}")
    return attempt


def _fate(attempt: "AttemptRow") -> str:
    return attempt.failure.message if attempt.failure else attempt.outcome or "it still runs"


def _write(folder: Path, manifest: dict[str, Any], script: str) -> None:
    from json import dumps

    from jobs.errors import BadSetting

    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST).write_text(dumps(manifest, indent=2) + "\n")
        (folder / SCRIPT).write_text(script)
        (folder / SCRIPT).chmod(0o755)
    except OSError as error:
        raise BadSetting("--output", f"{error.filename}: {error.strerror}; name another folder") from error
