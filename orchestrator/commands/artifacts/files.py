"""`haloctl artifacts` show, get, put and link: single files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.commands import options

if TYPE_CHECKING:
    from jobs.task import Artifact
    from orchestrator.context import Context


def show(name: options.Artifact, json: options.Json = False) -> None:
    """Show a file's address, makers, users and pins."""
    from dataclasses import asdict

    from db.reads import artifact_refs
    from db.writes import pins
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.formatting import format_bytes

    with open_context() as context:
        artifact = find_file(context, name)
        store = context.artifacts
        is_present = store.has(artifact)
        makers = artifact_refs.producers(context.database, artifact.sha256)
        users = artifact_refs.consumers(context.database, artifact.sha256)
        file_pins = pins.pins(context.database, artifact.sha256)
    address = store.address(artifact.sha256)
    if json:
        output.print_json(
            {
                **asdict(artifact),
                "address": address,
                "is_there": is_present,
                "made_by": [{**asdict(task), "made_at": task.made_at and task.made_at.isoformat()} for task in makers],
                "used_by": [asdict(user) for user in users],
                "pins": [{**asdict(pin), "pinned_at": pin.pinned_at.isoformat()} for pin in file_pins],
            }
        )
        return
    output.print_line(f"{artifact.name}  {artifact.kind}  {format_bytes(artifact.size_bytes)}  {artifact.sha256}")
    output.print_line(f"  {'at' if is_present else 'missing from'} {address}")
    for task in makers:
        output.print_line(f"  made by {task.attempt}: {task.stage} for {task.subject}, as {task.name}")
    for user in users:
        use = "read by" if user.how == "input" else "reused by"
        output.print_line(f"  {use} {user.task}: {user.stage} for {user.subject}")
    for pin in file_pins:
        output.print_line(f"  pinned by {pin.pinned_by}: {pin.why}")


def get(
    name: Annotated[
        str,
        typer.Argument(
            help="A file's sha256, a unique prefix of it, TASK/NAME, or a variant.",
            metavar="SHA256|TASK/NAME|VARIANT",
        ),
    ],
    path: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file, or the variant's folder; default: its name.")
    ] = None,
    target: options.Target = None,
    job: options.Job = None,
    json: options.Json = False,
) -> None:
    """Fetch a file, or a variant as a folder that runs by itself.

    Files are verified; an interrupted fetch continues where it stopped. --target and --job select a variant.
    """
    import os
    from dataclasses import asdict

    from jobs.errors import BadSetting
    from jobs.paths import path_part
    from orchestrator import output
    from orchestrator.artifacts.artifact_names import is_file_name
    from orchestrator.commands.artifacts.variant_get import get_variant
    from orchestrator.context import open_context
    from orchestrator.formatting import format_bytes

    if not is_file_name(name):
        get_variant(name, path or Path(path_part(name)), target=target, job=job, json=json)
        return
    with open_context() as context:
        artifact = find_file(context, name)
        file = path or Path(path_part(artifact.name))
        if os.path.lexists(file):
            raise BadSetting("--output", f"{file} exists already; name another file")
        try:
            context.artifacts.get(artifact, file)
        except OSError as error:
            raise BadSetting("--output", f"{error.filename or file}: {error.strerror}; name another file") from error
    if json:
        output.print_json({**asdict(artifact), "path": str(file.absolute())})
    else:
        output.print_message(f"written: {file} ({format_bytes(artifact.size_bytes)})")


def put(
    file: Annotated[Path, typer.Argument(help="A file, which is copied.", exists=True, dir_okay=False, readable=True)],
    kind: Annotated[
        str | None, typer.Option("--kind", help="irpa, mlir, vmfb, ...; the file's suffix by default.")
    ] = None,
    why: Annotated[str, typer.Option("--why", help="The reason of the pin.")] = "put by hand",
    json: options.Json = False,
) -> None:
    """Store and pin a file that no task made.

    It prints the file's sha256; `haloctl artifacts unpin` removes the pin.
    """
    from dataclasses import asdict

    from db.schema.actors import current_actor
    from db.writes import pins
    from orchestrator import output
    from orchestrator.context import open_context

    with open_context() as context:
        artifact = context.writable_artifacts.put(file, kind or file.suffix.lstrip(".") or "file", may_link=False)
        pins.pin(context.database, artifact.sha256, f"{why} ({file.name})", current_actor())
        address = context.artifacts.address(artifact.sha256)
    if json:
        output.print_json({**asdict(artifact), "address": address})
    else:
        output.print_line(artifact.sha256)


def link(name: options.Artifact, json: options.Json = False) -> None:
    """Print a file's path or URL.

    URLs are valid for a week where the store can sign them. A large file on a remote store has several parts, with one
    URL for each in their order.
    """
    from orchestrator import output
    from orchestrator.context import open_context

    with open_context() as context:
        artifact = find_file(context, name)
        links = context.artifacts.links(artifact)
    if json:
        output.print_json({"sha256": artifact.sha256, "name": artifact.name, "links": list(links)})
        return
    for address in links:
        output.print_line(address)


def find_file(context: "Context", name: str) -> "Artifact":
    """Return the file with a name; one that no task made is described by the store. Raises NotFound."""
    from db.reads import artifact_refs
    from jobs.errors import AmbiguousId, NotFound
    from jobs.task import Artifact

    try:
        return artifact_refs.find_artifact(context.database, name)
    except AmbiguousId:
        raise
    except NotFound:
        if "/" in name or not name:
            raise
        matches = [stored for stored in context.artifacts.stored() if stored.sha256.startswith(name.lower())]
        if not matches:
            raise
        if len(matches) > 1:
            raise AmbiguousId("artifact", name) from None
        return Artifact(matches[0].sha256[:12], "", matches[0].sha256, matches[0].size_bytes)
