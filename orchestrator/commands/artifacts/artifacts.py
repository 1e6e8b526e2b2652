"""`haloctl artifacts`."""

from typing import Annotated

import typer

from orchestrator.commands import options
from orchestrator.commands.artifacts import files, store
from orchestrator.commands.groups import ListNamesByDefault

app = typer.Typer(cls=ListNamesByDefault, help="List, fetch, pin and verify the files that tasks made.")


@app.command("list")
def list_artifacts(
    job: Annotated[str | None, typer.Argument(help="Id of a job; all jobs by default.", metavar="[JOB]")] = None,
    model: options.Model = None,
    variant: options.Variant = None,
    target: options.Target = None,
    kind: Annotated[
        str | None, typer.Option("--kind", help="A kind of file: mlir, irpa, vmfb, config, report, log.")
    ] = None,
    limit: options.Limit = 0,
    json: options.Json = False,
    csv: options.Csv = False,
) -> None:
    """List the files that tasks made.

    JSON and CSV contain their sha256.
    """
    from db.reads.results import artifacts as read_artifacts
    from orchestrator.context import open_context
    from orchestrator.views import rows
    from orchestrator.views.formats import OutputFormat, nothing_found

    output_format = OutputFormat(json, csv)
    with open_context() as context:
        artifact_store = context.artifacts
        artifacts = [
            rows.artifact_to_json(row, artifact_store.address(row.sha256))
            for row in read_artifacts(
                context.database, job=job, model=model, variant=variant, target=target, kind=kind, limit=limit or None
            )
        ]
    message = nothing_found("artifacts", job, model, variant, target, kind)
    output_format.print_rows(artifacts, rows.ARTIFACT_COLUMNS, lambda: rows.build_artifact_table(artifacts), message)


app.command("show")(files.show)
app.command("get")(files.get)
app.command("put")(files.put)
app.command("link")(files.link)
app.command("verify")(store.verify)
app.command("gc")(store.gc)
app.command("pin")(store.pin)
app.command("unpin")(store.unpin)
