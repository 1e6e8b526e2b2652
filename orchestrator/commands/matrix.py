"""`haloctl matrix`."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.commands.form_options import CSV, JSON, MARKDOWN, PARQUET

if TYPE_CHECKING:
    from orchestrator.showing.matrix_view import View


def matrix(
    job: str = typer.Argument(None, help="A job's id; without it the newest verdict of every cell.", metavar="[JOB]"),
    model: str = typer.Option(None, "--model", help="A model's name, or a pattern such as 'llama*'."),
    variant: str = typer.Option(None, "--variant", help="A variant's name or pattern."),
    target: str = typer.Option(None, "--target", help="cpu, mi300x, ..."),
    toolchain: str = typer.Option(None, "--toolchain", help="A toolchain's name or pattern: 'iree-*'."),
    json: bool = JSON,
    csv: bool = CSV,
    markdown: bool = MARKDOWN,
    parquet: Path = PARQUET,
    svg: Path = typer.Option(None, "--svg", help="Write a picture to this file instead.", dir_okay=False),
) -> None:
    """Print the matrix: variants against stages.

    Cells say PASS or FAIL with the figure that the stage is about; reasons are told below.
    """
    from db.matrix import matrix as read
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.showing import matrix_view
    from orchestrator.showing.forms import Form, Shown, nothing_found

    form = Form(json, csv, markdown, parquet, svg)
    with opened() as context:
        rows = read(context.database, job=job, model=model, variant=variant, target=target, toolchain=toolchain)
    if form.json:
        output.as_json(matrix_view.as_json(rows))
        return
    view = matrix_view.view(rows)
    if form.svg:
        title = " ".join(filter(None, ("haloctl matrix", job)))
        _draw(form.svg, title, view)
        return
    found = [dict(zip(view.columns, row, strict=True)) for row in view.rows]
    nothing = nothing_found("variants", job, model, variant, target, toolchain)
    form.give(found, view.columns, Shown(view.columns, view.rows, notes=view.notes), nothing)


def _draw(file: Path, title: str, view: "View") -> None:
    from orchestrator import output
    from orchestrator.showing.forms import writing

    with writing(file):
        output.matrix_picture(file, title, view.columns, view.rows, view.notes)
    output.note(f"written: {file}")
