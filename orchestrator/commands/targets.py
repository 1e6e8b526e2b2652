"""`haloctl targets`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from orchestrator.files.target_files import TargetRow

app = typer.Typer(help="List quoted numbers that results are held against; record them, each with its source.")

VARIANT = typer.Argument(..., help="A variant's name or pattern: 'llama3.1-8B-FP8*'.")
METRIC = typer.Argument(..., help="ttft_ms, itl_ms, ...")
TARGET = typer.Option("", "--target", help="The hardware: mi300x, ...; without it any.")
BATCH = typer.Option(None, "--batch", help="The workload's batch size; without it any.", min=1)
PROMPT = typer.Option(None, "--prompt-tokens", help="Its prompt length; without it any.", min=1)
NEW = typer.Option(None, "--new-tokens", help="How many tokens it generates; without it any.", min=1)
SINCE = typer.Option(None, "--since", help="From when it holds: 2026-11-20, or an age: 7d; without it from now on.")
JSON = typer.Option(False, "--json", help="Answer in JSON.")
CSV = typer.Option(False, "--csv", help="Answer in CSV.")
ALL = typer.Option(False, "--all", help="Also what held earlier.")


@app.callback(invoke_without_command=True)
def targets(context: typer.Context, every: bool = ALL, json: bool = JSON, csv: bool = CSV) -> None:
    """List quoted numbers that results are held against; record them, each with its source."""
    if context.invoked_subcommand is None:
        _list(every=every, json=json, csv=csv)


@app.command("list")
def list_targets(every: bool = ALL, json: bool = JSON, csv: bool = CSV) -> None:
    """List them, in the order of their variants."""
    _list(every=every, json=json, csv=csv)


@app.command("set")
def set_target(
    variant: str = VARIANT,
    metric: str = METRIC,
    value: float = typer.Argument(..., help="In the metric's unit."),
    source: str = typer.Option(..., "--source", help="Where it was read: a text or an address."),
    target: str = TARGET,
    batch: int | None = BATCH,
    prompt_tokens: int | None = PROMPT,
    new_tokens: int | None = NEW,
    since: str | None = SINCE,
) -> None:
    """Record a target; what held before stays known with its time.

    Of several that fit a result the most specific one counts: a name before a pattern, then the one that says more of
    the workload, then the one that names the hardware.
    """
    from datetime import UTC, datetime

    from db.targets import keep
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.output import quantity

    now = datetime.now(UTC)
    row = _row(
        variant=variant,
        metric=metric,
        value=value,
        source=source,
        target=target,
        batch=batch,
        prompt_tokens=prompt_tokens,
        new_tokens=new_tokens,
        since=_begin(since, now),
    )
    one = row.quoted(_user(), now)
    with opened() as context:
        keep(context.database, [one])
    output.note(f"{one.metric} of {one.variant} is held against {quantity(one.value, one.unit)}")


@app.command("remove")
def remove(
    variant: str = VARIANT,
    metric: str = METRIC,
    target: str = TARGET,
    batch: int | None = BATCH,
    prompt_tokens: int | None = PROMPT,
    new_tokens: int | None = NEW,
) -> None:
    """Forget a target, given just as it was recorded, and what it was earlier."""
    from db import targets as quoted
    from jobs.errors import NotFound
    from orchestrator import output
    from orchestrator.context import opened

    with opened() as context:
        count = quoted.remove(
            context.database,
            variant=variant,
            target=target,
            metric=metric,
            batch=batch,
            prompt_tokens=prompt_tokens,
            new_tokens=new_tokens,
        )
    if not count:
        raise NotFound("target", " ".join((variant, metric, target)).strip())
    output.note(f"removed: {output.count(count, 'target')}")


@app.command("import")
def import_targets(
    file: Path = typer.Argument(..., help="CSV, JSON or Markdown; `haloctl targets --json` and --csv print such."),
    source: str | None = typer.Option(None, "--source", help="Where the page, or rows without a source, were read."),
    target: str = TARGET,
    batch: int | None = BATCH,
    prompt_tokens: int | None = PROMPT,
    new_tokens: int | None = NEW,
    since: str | None = SINCE,
    tp: int = typer.Option(1, "--tp", help="Of a page's variants whose names don't say their TP.", min=1),
) -> None:
    """Record all targets of a file; options are for what its rows leave open.

    Columns are variant, metric, value and source, and if need be target, batch, prompt_tokens, new_tokens, since. In a
    tracker's page a column such as `Target(vLLM-PyTorch)` with `(TTFT, ITL)` is read.
    """
    from datetime import UTC, datetime

    from db.targets import keep
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.files import target_files

    now = datetime.now(UTC)
    options = {
        "source": source,
        "target": target,
        "batch": batch,
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "since": _begin(since, now),
    }
    defaults = {name: value for name, value in options.items() if value}
    found = target_files.read(file, defaults, _user(), now, tp)
    with opened() as context:
        kept = keep(context.database, found)
    output.note(f"{output.count(len(found), 'target')} read, {kept} of them new")


def _row(**given: Any) -> "TargetRow":
    from pydantic import ValidationError

    from jobs.errors import BadSetting
    from orchestrator.files.target_files import TargetRow, in_words

    try:
        return TargetRow(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        name = key.upper() if key in ("variant", "metric", "value") else "--" + key.replace("_", "-")
        raise BadSetting(name, in_words(first["type"], key, first["msg"])) from error


def _begin(since: str | None, now: Any) -> Any:
    from orchestrator.showing.rows import point_in_time

    return point_in_time(since, now) if since else None


def _user() -> str:
    import getpass

    return getpass.getuser()


def _list(*, every: bool, json: bool, csv: bool) -> None:
    from db.targets import in_force, quoted_targets
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.showing import target_rows

    with opened() as context:
        found = quoted_targets(context.database)
    rows = [target_rows.as_json(one) for one in (found if every else in_force(found))]
    if json:
        output.as_json(rows)
    elif csv:
        output.as_csv(rows, target_rows.CSV_COLUMNS)
    elif not rows:
        output.note("no targets yet: `haloctl targets set VARIANT METRIC VALUE --source TEXT` records one")
    else:
        output.table(target_rows.COLUMNS, map(target_rows.line, rows), right=target_rows.RIGHT)
