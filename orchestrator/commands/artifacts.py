"""`haloctl artifacts`."""

import typer


def artifacts(
    job: str = typer.Argument(None, help="A job's id; without it the artifacts of all jobs.", metavar="[JOB]"),
    model: str = typer.Option(None, "--model", help="A model's name, or a pattern such as 'llama*'."),
    variant: str = typer.Option(None, "--variant", help="A variant's name or pattern."),
    target: str = typer.Option(None, "--target", help="cpu, mi300x, ..."),
    kind: str = typer.Option(None, "--kind", help="mlir, irpa, vmfb, config, report, log"),
    limit: int = typer.Option(0, "--limit", "-n", help="At most so many, newest first; 0 for all.", min=0),
    json: bool = typer.Option(False, "--json", help="Answer in JSON."),
    csv: bool = typer.Option(False, "--csv", help="Answer in CSV."),
) -> None:
    """List the files that tasks made.

    In JSON and CSV with their sha256 and where they lie.
    """
    from db.results import artifacts as read
    from orchestrator import output, rows
    from orchestrator.context import opened
    from workers.artifacts import ArtifactStore

    with opened() as context:
        store = ArtifactStore(context.settings.artifacts)
        found = [
            rows.artifact(row, store.path(row.sha256))
            for row in read(
                context.database, job=job, model=model, variant=variant, target=target, kind=kind, limit=limit or None
            )
        ]
    if json:
        output.as_json(found)
    elif csv:
        output.as_csv(found, rows.ARTIFACT_COLUMNS)
    elif not found:
        output.note("no artifacts match")
    else:
        output.table(
            ("task", "for", "name", "kind", "size", "file"),
            [(a["task"], a["subject"], a["name"], a["kind"], output.size(a["size_bytes"]), a["path"]) for a in found],
            right=("size",),
        )
