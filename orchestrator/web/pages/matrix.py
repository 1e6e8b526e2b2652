"""The matrix: models and variants against stages."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from db.reads.matrix import MatrixRow
from db.reads.matrix import matrix as read_matrix
from jobs.stages import STAGES
from orchestrator.views import matrix_view
from orchestrator.web.access import ReaderUser
from orchestrator.web.pages import rendering
from orchestrator.web.pages.filters import MAX_TEXT, Filters, FiltersOf
from orchestrator.web.site import Site, SiteOf

router = APIRouter(include_in_schema=False)

FAILING_FIRST, FAILING_ONLY = "failing-first", "failing-only"
ORDERS = {"": "as planned", FAILING_FIRST: "failing first", FAILING_ONLY: "failing only"}


@dataclass(frozen=True)
class ShownRow:
    """A row of the page: a variant with the text and the task of each cell."""

    variant: str
    target: str
    cells: tuple[tuple[str, str | None], ...]


@router.get("/")
def matrix(
    request: Request,
    site: SiteOf,
    user: ReaderUser,
    filters: FiltersOf,
    job: Annotated[str, Query(max_length=MAX_TEXT)] = "",
    order: Annotated[str, Query(max_length=20)] = "",
) -> Response:
    """Show the newest verdict of each cell, or the cells of a job."""
    return rendering.respond("matrix.html.j2", request, site, user, lambda: read(site, filters, job.strip(), order))


def read(site: Site, filters: Filters, job: str, order: str) -> dict[str, Any]:
    """Return what the page shows. Raises NotFound, AmbiguousId."""
    names = {name: filters[name] for name in ("model", "variant", "target", "toolchain")}
    rows = read_matrix(
        site.database,
        job=job or None,
        model=names["model"],
        variant=names["variant"],
        target=names["target"],
        toolchain=names["toolchain"],
    )
    ordered = in_order(rows, order)
    stages = [name for name in STAGES if any(name in row.stages for row in rows)]
    return {
        "stages": [STAGES[name].title for name in stages],
        "groups": [
            (model, [shown_row(row, stages) for row in group])
            for model, group in groupby(ordered, lambda row: row.model)
        ],
        "counts": count_cells(rows, stages),
        "notes": matrix_view.matrix_notes(ordered),
        "filters": {**filters, "job": job, "order": order},
        "orders": ORDERS,
    }


def in_order(rows: Sequence[MatrixRow], order: str) -> Sequence[MatrixRow]:
    """Return the rows in the order of the page."""
    if order == FAILING_ONLY:
        return [row for row in rows if has_failed(row)]
    return sorted(rows, key=lambda row: not has_failed(row)) if order == FAILING_FIRST else rows


def has_failed(row: MatrixRow) -> bool:
    """Return whether a cell of a row has failed."""
    return any(cell.failure for cell in row.stages.values())


def shown_row(row: MatrixRow, stages: Sequence[str]) -> ShownRow:
    """Return a row with a cell for each stage."""
    cells = tuple(
        (matrix_view.format_row_cell(row, stage), row.stages[stage].task if stage in row.stages else None)
        for stage in stages
    )
    return ShownRow(row.variant, row.target, cells)


def count_cells(rows: Sequence[MatrixRow], stages: Sequence[str]) -> dict[str, int]:
    """Return the number of cells by their first word, without those that there are not."""
    words = (matrix_view.format_row_cell(row, stage).partition(" ")[0] for row in rows for stage in stages)
    counts = Counter(words)
    return {word: count for word, count in counts.most_common() if word not in ("", matrix_view.NOT_APPLICABLE)}
