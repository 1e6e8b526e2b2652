"""`haloctl results`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.commands.form_options import CSV, JSON, MARKDOWN, PARQUET

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from db.runs import Run
    from orchestrator.context import Context
    from orchestrator.showing.forms import Form, Shown

MOST_LINES = 1000  #: of a table, where nobody says how many
MOST_RUNS = 20_000  #: that are read for a pivot or for groups: the newest ones


def results(
    model: str = typer.Option(None, "--model", help="A model's name, or a pattern such as 'llama*'."),
    variant: str = typer.Option(None, "--variant", help="A variant's name or pattern."),
    target: str = typer.Option(None, "--target", help="cpu, mi300x, ..."),
    toolchain: str = typer.Option(None, "--toolchain", help="What it was measured under: a name, or 'iree-*'."),
    metric: str = typer.Option(None, "--metric", help="ttft_ms, '*_ms', perplexity, ...; a wrong one lists them all."),
    since: str = typer.Option(
        None, "--since", help="A date or time (2026-11-20, 2026-11-20T08:00), or an age: 90m, 12h, 7d."
    ),
    job: str = typer.Option(None, "--job", help="A job's id, or the start of it."),
    limit: int = typer.Option(
        None, "--limit", "-n", help="At most so many, newest first; 0 for all. Without it tables end at 1000.", min=0
    ),
    pivot: str = typer.Option(
        None,
        "--pivot",
        help="A column for each date, week, month, toolchain, engine, node, device or job, beside the target.",
    ),
    columns: int = typer.Option(6, "--columns", help="With --pivot: at most so many, the newest; 0 for all.", min=0),
    group: str = typer.Option(
        None, "--group", help="Sum up by these: variant, model,node, ...; a wrong one lists all."
    ),
    json: bool = JSON,
    csv: bool = CSV,
    markdown: bool = MARKDOWN,
    parquet: Path = PARQUET,
) -> None:
    """Print measurements, newest first; the workload 4 x 2048 + 128: four prompts of 2048 tokens, 128 new ones each.

    In JSON, CSV and Parquet each has its samples and what it was measured under. With --pivot or --group medians over
    runs are told instead; without --metric those of TTFT and ITL.
    """
    from datetime import UTC, datetime

    from jobs.errors import BadSetting
    from orchestrator.context import opened
    from orchestrator.showing import rows
    from orchestrator.showing.forms import Form

    form = Form(json, csv, markdown, parquet)
    if pivot and group:
        raise BadSetting("--group", "it does not go with --pivot; leave one of them out")
    metrics = _metrics(metric)
    begin = rows.point_in_time(since, datetime.now(UTC)) if since else None
    names = {"job": job, "model": model, "variant": variant, "target": target, "toolchain": toolchain}
    with opened() as context:
        if pivot:
            _give_pivot(form, context, pivot, columns, metrics, begin, names)
        elif group:
            _give_groups(form, context, group, metrics, begin, names)
        else:
            _give_all(form, context, metric, begin, limit, names)


def _metrics(pattern: str | None) -> tuple[str, ...]:
    from jobs.errors import BadSetting
    from jobs.metrics import METRICS, metrics_like
    from orchestrator.showing.pivoting import TRACKED

    found = TRACKED if pattern is None else metrics_like(pattern)
    if not found:
        raise BadSetting("--metric", f"no metric is called {pattern!r}: there are {', '.join(METRICS)}")
    return found


def _give_all(
    form: "Form",
    context: "Context",
    metric: str | None,
    since: "datetime | None",
    limit: int | None,
    names: dict[str, Any],
) -> None:
    from db.results import results as read
    from jobs.toolchains import DEFAULT
    from orchestrator import output
    from orchestrator.showing import forms, rows

    is_cut = limit is None and form.is_for_people
    most = MOST_LINES + 1 if is_cut else limit or None
    found = [rows.result(row) for row in read(context.database, metric=metric, since=since, limit=most, **names)]
    is_cut, found = is_cut and len(found) > MOST_LINES, found[:MOST_LINES] if is_cut else found
    has_others = any(row["toolchain"] != DEFAULT for row in found)
    lines = [rows.result_line(row, with_toolchain=has_others) for row in found] if form.is_for_people else []
    heads = rows.result_columns(with_toolchain=has_others)
    shown = forms.Shown(heads, lines, right=("median", "samples"))
    form.give(found, rows.RESULT_COLUMNS, shown, forms.nothing_found("measurements", metric, since, *names.values()))
    if is_cut:
        output.note(f"the newest {MOST_LINES}: --limit 0 gives all, --since, --variant and others choose")


def _give_pivot(
    form: "Form",
    context: "Context",
    by: str,
    columns: int,
    metrics: tuple[str, ...],
    since: "datetime | None",
    names: dict[str, Any],
) -> None:
    from db.targets import quoted_targets
    from jobs.errors import BadSetting
    from orchestrator import output
    from orchestrator.showing import pivoting

    if by not in pivoting.PIVOTS:
        raise BadSetting("--pivot", f"{by!r} is none of {', '.join(pivoting.PIVOTS)}")
    runs = _runs(context, metrics, since, names, tells=not columns or by not in pivoting.IN_TIME)
    quoted = quoted_targets(context.database)
    found = pivoting.pivot(runs, by, quoted, columns)
    while form.is_for_people and len(found.columns) > 1 and not output.fits(*_head_and_rows(pivoting.shown(found))):
        found = pivoting.pivot(runs, by, quoted, len(found.columns) - 1)
    if form.json:
        output.as_json(pivoting.as_rows(found))
        return
    rows, heads = pivoting.as_flat_rows(found)
    form.give(rows, heads, pivoting.shown(found), _nothing(metrics, since, names))
    for text in pivoting.notes(found) if rows and form.is_for_people else ():
        output.answer(f"\n{text}" if form.markdown else text)


def _head_and_rows(shown: "Shown") -> "tuple[Sequence[str], Sequence[Sequence[str]]]":
    return shown.columns, shown.rows


def _give_groups(
    form: "Form",
    context: "Context",
    group: str,
    metrics: tuple[str, ...],
    since: "datetime | None",
    names: dict[str, Any],
) -> None:
    from orchestrator.showing import grouping

    wanted = grouping.parse(group)
    found = grouping.grouped(_runs(context, metrics, since, names, tells=True), wanted)
    form.give(found, grouping.columns(wanted), grouping.shown(found, wanted), _nothing(metrics, since, names))


def _nothing(metrics: tuple[str, ...], since: "datetime | None", names: dict[str, Any]) -> str:
    from orchestrator.showing.forms import nothing_found
    from orchestrator.showing.pivoting import TRACKED

    what = "measurements" if len(metrics) > len(TRACKED) else f"measurements of {', '.join(metrics)}"
    return nothing_found(what, since, *names.values())


def _runs(
    context: "Context", metrics: tuple[str, ...], since: "datetime | None", names: dict[str, Any], *, tells: bool
) -> "Sequence[Run]":
    from db.runs import Chosen, runs
    from orchestrator import output
    from orchestrator.showing import pivoting

    found = runs(context.database, Chosen(metrics, since=since, disturbed=True, **names), most=MOST_RUNS)
    if tells and len(found) >= MOST_RUNS:
        output.note(f"the newest {MOST_RUNS} runs of more; --since, --variant and others choose")
    calm, disturbed = pivoting.parted(found)
    if disturbed:
        output.note(pivoting.disturbed_note(disturbed))
    return calm
