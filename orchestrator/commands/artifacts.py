"""`haloctl artifacts`."""

from typing import Any

import typer
from typer.core import TyperGroup

from orchestrator.commands import artifact_care, artifact_files
from orchestrator.commands.artifact_files import JSON


class _ListsByDefault(TyperGroup):
    """`haloctl artifacts`, with a job's id or with options, is `haloctl artifacts list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """What is no command's name is the list's."""
        names_command = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, args if names_command else ["list", *args])


app = typer.Typer(cls=_ListsByDefault, help="List the files that tasks made, fetch and keep them.")


@app.command("list")
def list_artifacts(
    job: str = typer.Argument(None, help="A job's id; without it the artifacts of all jobs.", metavar="[JOB]"),
    model: str = typer.Option(None, "--model", help="A model's name, or a pattern such as 'llama*'."),
    variant: str = typer.Option(None, "--variant", help="A variant's name or pattern."),
    target: str = typer.Option(None, "--target", help="cpu, mi300x, ..."),
    kind: str = typer.Option(None, "--kind", help="mlir, irpa, vmfb, config, report, log"),
    limit: int = typer.Option(0, "--limit", "-n", help="At most so many, newest first; 0 for all.", min=0),
    json: bool = JSON,
    csv: bool = typer.Option(False, "--csv", help="Answer in CSV."),
) -> None:
    """List the files that tasks made.

    In JSON and CSV with their sha256 and where they lie.
    """
    from db.results import artifacts as read
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.showing import rows

    with opened() as context:
        store = context.artifacts
        found = [
            rows.artifact(row, store.address(row.sha256))
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


app.command("show")(artifact_files.show)
app.command("get")(artifact_files.get)
app.command("put")(artifact_files.put)
app.command("link")(artifact_files.link)
app.command("verify")(artifact_care.verify)
app.command("gc")(artifact_care.gc)
app.command("pin")(artifact_care.pin)
app.command("unpin")(artifact_care.unpin)
