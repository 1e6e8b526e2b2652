"""`haloctl matrix`."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.commands import options


def matrix(
    job: Annotated[
        str | None, typer.Argument(help="Id of a job; by default the latest result of each cell.", metavar="[JOB]")
    ] = None,
    model: options.Model = None,
    variant: options.Variant = None,
    target: options.Target = None,
    toolchain: options.Toolchain = None,
    json: options.Json = False,
    csv: options.Csv = False,
    markdown: options.Markdown = False,
    parquet: options.Parquet = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="Write an SVG picture.", dir_okay=False)] = None,
) -> None:
    """Print the matrix of variants and stages.

    Cells show PASS or FAIL with the stage's main figure; notes below explain failures and warnings.
    """
    from db.reads.matrix import matrix as read_matrix
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.views import matrix_view
    from orchestrator.views.formats import OutputFormat, nothing_found, writing

    output_format = OutputFormat(json, csv, markdown, parquet, svg)
    with open_context() as context:
        rows = read_matrix(context.database, job=job, model=model, variant=variant, target=target, toolchain=toolchain)
    if json:
        output.print_json(matrix_view.to_json(rows))
        return
    table = matrix_view.to_table(rows)
    if svg:
        with writing(svg):
            output.save_svg(table, svg, f"haloctl matrix {job or ''}".rstrip())
        output.print_message(f"written: {svg}")
        return
    cells = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    message = nothing_found("variants", job, model, variant, target, toolchain)
    output_format.print_rows(cells, table.columns, lambda: table, message)
