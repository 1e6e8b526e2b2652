"""`haloctl numerics`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.commands import options

if TYPE_CHECKING:
    from jobs.task import Artifact
    from orchestrator.context import Context

MOST = 2  #: side by side


def numerics(
    names: Annotated[
        list[str],
        typer.Argument(
            help="One or two: a task of the stage numerics, or a variant, with :TARGET behind it where it has several.",
            metavar="TASK|VARIANT...",
        ),
    ],
    json: options.Json = False,
    csv: options.Csv = False,
) -> None:
    """Show how far a program is from the reference, layer by layer; two programs side by side.

    `error` is what a layer adds wrongly, given its own input, relative to what it adds; `drift` is the distance of the
    hidden state from the reference's. Jobs with `numerics: {where: layers}` measure both; with `where: failed`, those
    that fail do.
    """
    from jobs.errors import BadSetting
    from orchestrator.context import open_context
    from orchestrator.views import layer_rows
    from orchestrator.views.formats import OutputFormat

    output_format = OutputFormat(json, csv)
    if len(names) > MOST:
        raise BadSetting("TASK|VARIANT", "compares at most two")
    with open_context() as context:
        reports = [_read_report(context, find_report(context, name)) for name in names]
    layer_rows.check_reports(names, reports)
    rows = layer_rows.rows_of(names, reports)
    columns = layer_rows.csv_columns(names)
    output_format.print_rows(rows, columns, lambda: layer_rows.build_table(names, reports), "")


def find_report(context: "Context", name: str) -> "Artifact":
    """Return the newest layer-by-layer report of a task or variant. Raises NotFound."""
    from db.reads import artifact_refs
    from db.reads.results import artifacts
    from jobs.errors import NotFound
    from jobs.stages.localization import REPORT
    from jobs.task import Artifact

    variant, _, target = name.partition(":")
    for row in artifacts(context.database, variant=variant, target=target or None, kind="report"):
        if row.name == REPORT:
            return Artifact(row.name, row.kind, row.sha256, row.size_bytes)
    try:
        return artifact_refs.find_artifact(context.database, f"{name}/{REPORT}")
    except NotFound:
        raise NotFound("report of layers", name) from None


def _read_report(context: "Context", artifact: "Artifact") -> Any:
    from json import loads
    from pathlib import Path
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        file = Path(folder, artifact.name)
        context.artifacts.get(artifact, file)
        return loads(file.read_text(encoding="utf-8"))
