"""`haloctl reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from jobs.task import Artifact
    from orchestrator.context import Context
    from workers.artifacts import ArtifactStore

SCRIPT, MANIFEST, PROGRAMS = "reproduce.sh", "manifest.json", "programs"


def reproduce(
    name: str = typer.Argument(help="A task's or an attempt's id, or the start of it.", metavar="TASK|ATTEMPT"),
    folder: Path = typer.Option(
        None,
        "--output",
        "-o",
        help=f"Write {SCRIPT}, {MANIFEST} and the programs that they need into this folder instead.",
        file_okay=False,
    ),
    links: bool = typer.Option(
        False,
        "--links",
        help="Put links to a remote store's files into it, good for a while, for where haloctl is not.",
    ),
    json: bool = typer.Option(False, "--json", help="Answer with the manifest, in JSON."),
) -> None:
    """Print a shell script that does an attempt again without haloctl.

    The very commands, environment and inputs; of a task its latest attempt, or the one that it was taken over from.
    """
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.repeating import reproduction

    with opened() as context:
        found = _manifest(context, name, links=links)
    script = reproduction.script(found)
    if folder is not None:
        _write(folder, found, script)
        if found["programs"]:
            _copy_programs(found["programs"], folder / PROGRAMS)
        output.note(f"`sh {folder / SCRIPT} FOLDER` does it again in a new folder")
    if json:
        output.as_json(found)
    elif folder is None:
        output.raw(script)


def _manifest(context: "Context", name: str, *, links: bool) -> dict[str, Any]:
    from db import reports, toolchains
    from orchestrator import output
    from orchestrator.repeating import reproduction
    from orchestrator.showing.chosen import attempt_named
    from workers.environment import packages_root

    attempt = attempt_named(context, name)
    task = reports.task(context.database, attempt.task)
    store = context.artifacts
    lock = toolchains.of_digest(context.database, attempt.lock) if attempt.lock else None
    for artifact in store.missing(artifact for artifacts in attempt.inputs.values() for artifact in artifacts):
        output.note(f"warning: {artifact.name} ({artifact.sha256}) is not in the artifact store")
    found = reproduction.manifest(
        attempt,
        task,
        lock.lock if lock else None,
        lambda artifact: _where(store, artifact, links=links),
        str(packages_root()),
    )
    _warn_of_changes(context, attempt.id, found)
    return found


def _where(store: "ArtifactStore", artifact: "Artifact", *, links: bool) -> dict[str, Any]:
    try:
        return {"path": str(store.path(artifact.sha256))}
    except ValueError:  # the store is no folder
        return {"path": "", "urls": list(store.links(artifact)) if links else []}


def _warn_of_changes(context: "Context", attempt: str, found: dict[str, Any]) -> None:
    """Say where our own programs are not those any more that it ran."""
    from db import identities
    from orchestrator import output
    from workers.environment import probe_toolchain

    identity = identities.made(context.database, attempt).identity or {}
    if found["programs"] and identity.get("program") != probe_toolchain(context.settings.cache).programs:
        output.note("warning: haloctl's own programs have changed since it ran: take the version of then")


def _copy_programs(root: str, folder: Path) -> None:
    """Our packages, as far as stage programs import them."""
    from shutil import copytree, ignore_patterns

    for part in ("workers", "jobs"):
        copytree(Path(root, part), folder / part, ignore=ignore_patterns("__pycache__"), dirs_exist_ok=True)


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
