"""`haloctl reproduce`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.commands import options

if TYPE_CHECKING:
    from orchestrator.context import Context

SCRIPT, MANIFEST, PROGRAMS = "reproduce.sh", "manifest.json", "programs"


def reproduce(
    name: options.TaskOrAttempt,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help=f"Write {SCRIPT}, {MANIFEST} and the programs into this folder.", file_okay=False
        ),
    ] = None,
    links: Annotated[
        bool,
        typer.Option("--links", help="Include signed URLs of a remote store, for machines without haloctl."),
    ] = False,
    json: options.Json = False,
) -> None:
    """Print a shell script that repeats an attempt without haloctl.

    It has the attempt's commands, environment and inputs; of a task those of its latest attempt, or of the one that it
    was cached from. JSON is the manifest of all that.
    """
    from jobs.paths import path_below
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.reruns import reproduction

    with open_context() as context:
        manifest = _manifest(context, name, links=links)
    script = reproduction.script(manifest)
    if folder is not None:
        _write(folder, manifest, script)
        if manifest["programs"]:
            _copy_programs(manifest["programs"], path_below(folder, PROGRAMS))
        output.print_message(f"run `sh {folder / SCRIPT} FOLDER` with a new folder")
    if json:
        output.print_json(manifest)
    elif folder is None:
        (output.print_text if output.is_terminal() else output.print_raw)(script)


def _manifest(context: "Context", name: str, *, links: bool) -> dict[str, Any]:
    from orchestrator import output
    from orchestrator.reruns.stored_manifest import manifest_of
    from orchestrator.views.attempt_lookup import find_attempt

    attempt = find_attempt(context, name)
    for artifact in context.artifacts.missing(
        artifact for artifacts in attempt.inputs.values() for artifact in artifacts
    ):
        output.print_message(f"warning: {artifact.name} ({artifact.sha256}) is missing from the artifact store")
    manifest = manifest_of(context, attempt, links=links)
    _warn_of_changed_programs(context, attempt.id, manifest)
    return manifest


def _warn_of_changed_programs(context: "Context", attempt: str, manifest: dict[str, Any]) -> None:
    """Warn when haloctl's programs differ from those that the attempt ran."""
    from db.reads import identities
    from orchestrator import output
    from workers.toolchain_probe import probe_toolchain

    identity = identities.attempt_identity(context.database, attempt).identity or {}
    if manifest["programs"] and identity.get("program") != probe_toolchain(context.settings.cache).programs:
        output.print_message("warning: haloctl's programs have changed since the attempt: install its version")


def _copy_programs(root: str, folder: Path) -> None:
    """Copy the packages that stage programs import."""
    from shutil import copytree, ignore_patterns

    for package in ("workers", "jobs"):
        copytree(Path(root, package), folder / package, ignore=ignore_patterns("__pycache__"), dirs_exist_ok=True)


def _write(folder: Path, manifest: dict[str, Any], script: str) -> None:
    from json import dumps

    from jobs.errors import BadSetting
    from jobs.paths import path_below

    try:
        folder.mkdir(parents=True, exist_ok=True)
        path_below(folder, MANIFEST).write_text(dumps(manifest, indent=2) + "\n")
        path_below(folder, SCRIPT).write_text(script)
        (folder / SCRIPT).chmod(0o755)
    except OSError as error:
        raise BadSetting("--output", f"{error.filename}: {error.strerror}; name another folder") from error
