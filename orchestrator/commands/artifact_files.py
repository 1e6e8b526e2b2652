"""`haloctl artifacts` show, get, put and link: single files."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from jobs.task import Artifact
    from orchestrator.context import Context

FILE = typer.Argument(help="A file's sha256 or the start of it, or TASK/NAME.", metavar="SHA256|TASK/NAME")
JSON = typer.Option(False, "--json", help="Answer in JSON.")
SHA256_CHARACTERS = 64


def show(name: str = FILE, json: bool = JSON) -> None:
    """Say where a file lies, who made it, who uses it and whether it is kept."""
    from dataclasses import asdict

    from db import artifact_refs, pins
    from orchestrator import output
    from orchestrator.context import opened

    with opened() as context:
        artifact = found_file(context, name)
        store = context.artifacts
        there = store.has(artifact)
        makers = artifact_refs.makers(context.database, artifact.sha256)
        users = artifact_refs.users(context.database, artifact.sha256)
        kept = pins.pins(context.database, artifact.sha256)
    found = {
        **asdict(artifact),
        "address": store.address(artifact.sha256),
        "is_there": there,
        "made_by": [{**asdict(one), "made_at": one.made_at and one.made_at.isoformat()} for one in makers],
        "used_by": [asdict(one) for one in users],
        "pins": [{**asdict(one), "pinned_at": one.pinned_at.isoformat()} for one in kept],
    }
    if json:
        output.as_json(found)
        return
    output.answer(f"{artifact.name}  {artifact.kind}  {output.size(artifact.size_bytes)}  {artifact.sha256}")
    output.answer(f"  {'lies' if there else 'is not there, and would lie'} at {found['address']}")
    for maker in makers:
        output.answer(f"  made by {maker.attempt}: {maker.stage} for {maker.subject}, as {maker.name}")
    for user in users:
        output.answer(
            f"  {'read by' if user.how == 'input' else 'taken over by'} {user.task}: {user.stage} for {user.subject}"
        )
    for pin in kept:
        output.answer(f"  pinned by {pin.pinned_by}: {pin.why}")


def get(
    name: str = typer.Argument(
        help="A file's sha256 or the start of it, TASK/NAME, or a variant's name.", metavar="SHA256|TASK/NAME|VARIANT"
    ),
    target_path: Path = typer.Option(
        None, "--output", "-o", help="The file, or a variant's folder; by default its name, here."
    ),
    target: str = typer.Option(None, "--target", help="Of a variant: cpu, mi300x, ..."),
    job: str = typer.Option(None, "--job", help="Of a variant: the job that made it."),
    json: bool = JSON,
) -> None:
    """Fetch a file, verified; or lay out all files of a variant in a folder that runs by itself.

    A fetch that was interrupted goes on where it ended.
    """
    from dataclasses import asdict

    from jobs.errors import BadSetting
    from orchestrator import output
    from orchestrator.commands.variant_get import get_variant
    from orchestrator.context import opened
    from orchestrator.files.artifact_names import names_file

    if not names_file(name):
        get_variant(name, target_path or Path(name), target=target, job=job, json=json)
        return
    with opened() as context:
        artifact = found_file(context, name)
        place = target_path or Path(artifact.name)
        if place.exists():
            raise BadSetting("--output", f"{place} is there already; name another file")
        try:
            context.artifacts.get(artifact, place)
        except OSError as error:
            raise BadSetting("--output", f"{error.filename or place}: {error.strerror}; name another file") from error
    if json:
        output.as_json({**asdict(artifact), "path": str(place.absolute())})
    else:
        output.note(f"{artifact.name}, {output.size(artifact.size_bytes)}, is in {place}")


def put(
    file: Path = typer.Argument(help="The file; it stays as it is.", exists=True, dir_okay=False, readable=True),
    kind: str = typer.Option(None, "--kind", help="irpa, mlir, vmfb, ...; by default its ending."),
    why: str = typer.Option("put by hand", "--why", help="What it is kept for."),
    json: bool = JSON,
) -> None:
    """Put a file that no task made into the store, and say its sha256. It is pinned: `unpin` lets go of it."""
    import getpass
    from dataclasses import asdict

    from db import pins
    from orchestrator import output
    from orchestrator.context import opened

    with opened() as context:
        artifact = context.artifacts.put(file, kind or file.suffix.lstrip(".") or "file", may_link=False)
        pins.pin(context.database, artifact.sha256, f"{why} ({file.name})", getpass.getuser())
        address = context.artifacts.address(artifact.sha256)
    if json:
        output.as_json({**asdict(artifact), "address": address})
    else:
        output.answer(artifact.sha256)


def link(name: str = FILE, json: bool = JSON) -> None:
    """Print what people can open a file by: its path, or a URL that is good for a week where the store can sign one.

    A large file on a remote store lies in parts: one URL each, to be put together in this order.
    """
    from orchestrator import output
    from orchestrator.context import opened

    with opened() as context:
        artifact = found_file(context, name)
        links = context.artifacts.links(artifact)
    if json:
        output.as_json({"sha256": artifact.sha256, "name": artifact.name, "links": list(links)})
        return
    for one in links:
        output.answer(one)


def found_file(context: "Context", name: str) -> "Artifact":
    """The file that is called so; one that no task made by what the store says of it. Raises NotFound."""
    from db import artifact_refs
    from jobs.errors import AmbiguousId, NotFound
    from jobs.task import Artifact

    try:
        return artifact_refs.find(context.database, name)
    except AmbiguousId:
        raise
    except NotFound:
        if "/" in name or not name:
            raise
        alike = [one for one in context.artifacts.stored() if one.sha256.startswith(name.lower())]
        if not alike:
            raise
        if len(alike) > 1:
            raise AmbiguousId("artifact", name) from None
        return Artifact(alike[0].sha256[:12], "", alike[0].sha256, alike[0].size_bytes)
