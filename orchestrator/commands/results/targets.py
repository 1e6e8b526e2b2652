"""`haloctl targets`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.commands import options
from orchestrator.commands.groups import ListByDefault

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.imports.target_files import TargetRow

app = typer.Typer(cls=ListByDefault, help="List and record quoted numbers that results are compared with.")

VariantPattern = Annotated[str, typer.Argument(help="A variant, or a pattern: 'llama3.1-8B-FP8*'.", metavar="VARIANT")]
MetricName = Annotated[str, typer.Argument(help="ttft_ms, itl_ms, ...", metavar="METRIC")]
Begin = Annotated[
    str | None,
    typer.Option("--since", help="Valid from this date, time or age on: 2026-11-20, 7d; from now on by default."),
]


@app.command("list")
def list_targets(
    every: Annotated[bool, typer.Option("--all", help="Include targets that have been replaced.")] = False,
    json: options.Json = False,
    csv: options.Csv = False,
) -> None:
    """List targets, ordered by variant."""
    from db.writes.targets import in_force, quoted_targets
    from orchestrator.context import open_context
    from orchestrator.views import target_rows
    from orchestrator.views.formats import OutputFormat

    output_format = OutputFormat(json, csv)
    with open_context() as context:
        targets = quoted_targets(context.database)
    rows = [target_rows.to_json(target) for target in (targets if every else in_force(targets))]
    message = "no targets yet: run `haloctl targets set VARIANT METRIC VALUE --source TEXT`"
    output_format.print_rows(rows, target_rows.CSV_COLUMNS, lambda: target_rows.build_table(rows), message)


@app.command("set")
def set_target(
    variant: VariantPattern,
    metric: MetricName,
    value: Annotated[float, typer.Argument(help="In the metric's unit.")],
    source: Annotated[str, typer.Option("--source", help="Where the number comes from: a text or a URL.")],
    target: options.Target = None,
    batch: options.Batch = None,
    prompt_tokens: options.PromptTokens = None,
    new_tokens: options.NewTokens = None,
    since: Begin = None,
) -> None:
    """Record a target; earlier ones stay in the history.

    Options that are left out match any value. Of several targets that match a result, the most specific one is used: a
    name before a pattern, then the one with more workload options, then the one with --target.
    """
    from datetime import UTC, datetime

    from db.writes.targets import keep
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.formatting import format_quantity

    now = datetime.now(UTC)
    row = _validated_row(
        variant=variant,
        metric=metric,
        value=value,
        source=source,
        target=target or "",
        batch=batch,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        since=_parse_since(since, now),
    )
    quoted = row.as_quoted_target(_user(), now)
    with open_context() as context:
        keep(context.database, [quoted])
    output.print_message(f"{quoted.variant} {quoted.metric}: target {format_quantity(quoted.value, quoted.unit)}")


@app.command("remove")
def remove(
    variant: VariantPattern,
    metric: MetricName,
    target: options.Target = None,
    batch: options.Batch = None,
    prompt_tokens: options.PromptTokens = None,
    new_tokens: options.NewTokens = None,
) -> None:
    """Remove a target and its history.

    Give the same arguments and options as to `set`.
    """
    from db.writes import targets as quoted
    from jobs.errors import NotFound
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.formatting import format_count

    with open_context() as context:
        count = quoted.remove(
            context.database,
            variant=variant,
            target=target or "",
            metric=metric,
            batch=batch,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
        )
    if not count:
        raise NotFound("target", " ".join(filter(None, (variant, metric, target))))
    output.print_message(f"removed: {format_count(count, 'target')}")


@app.command("import")
def import_targets(
    file: Annotated[Path, typer.Argument(help="CSV, JSON or Markdown, such as `haloctl targets --csv` prints.")],
    source: Annotated[str | None, typer.Option("--source", help="Where rows without a source come from.")] = None,
    target: options.Target = None,
    batch: options.Batch = None,
    prompt_tokens: options.PromptTokens = None,
    new_tokens: options.NewTokens = None,
    since: Begin = None,
    tp: options.DefaultTp = 1,
) -> None:
    """Record the targets in a file.

    Options apply to rows that lack the value. Columns are variant, metric, value and source, and optionally target,
    batch, prompt_tokens, new_tokens and since. In a tracker's page, columns such as `Target(vLLM-PyTorch)` with
    `(TTFT, ITL)` are read.
    """
    from datetime import UTC, datetime

    from db.writes.targets import keep
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.formatting import format_count
    from orchestrator.imports import target_files

    now = datetime.now(UTC)
    given = {
        "source": source,
        "target": target,
        "batch": batch,
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "since": _parse_since(since, now),
    }
    defaults = {name: value for name, value in given.items() if value}
    targets = target_files.read(file, defaults, _user(), now, tp)
    with open_context() as context:
        new_count = keep(context.database, targets)
    output.print_message(f"{format_count(len(targets), 'target')} read, {new_count} of them new")


def _validated_row(**values: Any) -> "TargetRow":
    from pydantic import ValidationError

    from jobs.errors import BadSetting
    from orchestrator.imports.target_files import TargetRow, describe_error

    try:
        return TargetRow(**values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        name = key.upper() if key in ("variant", "metric", "value") else "--" + key.replace("_", "-")
        raise BadSetting(name, describe_error(first["type"], key, first["msg"])) from error


def _parse_since(since: str | None, now: "datetime") -> "datetime | None":
    from orchestrator.times import parse_time

    return parse_time(since, now) if since else None


def _user() -> str:
    from db.schema.actors import current_actor

    return current_actor()
