"""`haloctl schedule`."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from orchestrator.context import Context

app = typer.Typer(help="List schedules, by which the head submits jobs again and again at certain times; make them.")

NAME = typer.Argument(..., help="A schedule's name.")
JSON = typer.Option(False, "--json", help="Answer in JSON.")
CSV = typer.Option(False, "--csv", help="Answer in CSV.")


@app.command("add")
def add(
    file: str = typer.Argument(..., help="A job file, or the name of a recipe.", metavar="FILE|RECIPE"),
    cron: str = typer.Option(..., "--cron", help="Minute, hour, day, month, weekday: '0 2 * * *' is 02:00 every day."),
    name: str | None = typer.Option(None, "--name", help="What to call it; without it the file's name."),
    timezone: str = typer.Option("UTC", "--timezone", help="What the times are in: Europe/Berlin, ..."),
    if_missed: str = typer.Option(
        "run", "--if-missed", help="What to do about times at which no head led: run the latest late, or skip them all."
    ),
) -> None:
    """Check a job file as `submit` does and keep it as it is now: later changes of the file change nothing.

    Its model is that of now, too; toolchains are those of the time when it runs.
    """
    from datetime import UTC, datetime

    from db import schedules
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.settings import from_environment, make_data_folder
    from orchestrator.showing import schedule_rows

    settings = from_environment()
    make_data_folder(settings)
    made = schedule_rows.made(file, cron, name, timezone, if_missed, settings, datetime.now(UTC))
    with opened() as context:
        schedules.add(context.database, made)
        _warn_without_head(context)
    output.note(f"schedule {made.name}: {schedule_rows.times(made)}; next {schedule_rows.next_time(made)}")


@app.callback(invoke_without_command=True)
def schedule(context: typer.Context, json: bool = JSON, csv: bool = CSV) -> None:
    """List schedules, by which the head submits jobs again and again at certain times; make them."""
    if context.invoked_subcommand is None:
        _list(json=json, csv=csv)


@app.command("list")
def list_schedules(json: bool = JSON, csv: bool = CSV) -> None:
    """List them, with what came of each the last time."""
    _list(json=json, csv=csv)


def _list(*, json: bool, csv: bool) -> None:
    from db import schedules
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.showing import schedule_rows

    with opened() as context:
        rows = [
            schedule_rows.as_json(one, schedules.runs(context.database, one.name, 1))
            for one in schedules.schedules(context.database)
        ]
        if rows:
            _warn_without_head(context)
    if json:
        output.as_json(rows)
    elif csv:
        output.as_csv(rows, schedule_rows.CSV_COLUMNS)
    elif not rows:
        output.note("no schedules yet: `haloctl schedule add FILE --cron '0 2 * * *'` makes one")
    else:
        output.table(schedule_rows.COLUMNS, map(schedule_rows.line, rows))


@app.command("show")
def show(
    name: str = NAME,
    limit: int = typer.Option(20, "--limit", "-n", help="How many of its runs, latest first; 0 for all.", min=0),
    json: bool = JSON,
) -> None:
    """Show one: its job file, and what came of it."""
    from db import schedules
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.showing import schedule_rows

    with opened() as context:
        one = schedules.schedule(context.database, name)
        runs = schedules.runs(context.database, name, limit or None)
    if json:
        output.as_json(schedule_rows.as_json(one, runs))
        return
    for text in schedule_rows.facts(one):
        output.answer(text)
    if runs:
        output.answer("")
        output.table(schedule_rows.RUN_COLUMNS, [schedule_rows.run_line(run) for run in runs])


@app.command("remove")
def remove(name: str = NAME) -> None:
    """Forget one; the jobs that it submitted stay."""
    from db import schedules
    from orchestrator import output
    from orchestrator.context import opened

    with opened() as context:
        schedules.remove(context.database, name)
    output.note(f"schedule {name} is removed")


@app.command("pause")
def pause(name: str = NAME) -> None:
    """Submit nothing of one until it is resumed; what would be due meanwhile is not missed."""
    from db import schedules
    from orchestrator import output
    from orchestrator.context import opened

    with opened() as context:
        schedules.pause(context.database, name)
    output.note(f"schedule {name} is paused; `haloctl schedule resume {name}` goes on with it")


@app.command("resume")
def resume(name: str = NAME) -> None:
    """Go on with one that was paused, from its next time on."""
    from datetime import UTC, datetime

    from db import schedules
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.leading import cron
    from orchestrator.showing import schedule_rows

    with opened() as context:
        one = schedules.schedule(context.database, name)
        schedules.resume(context.database, name, cron.next_after(one.cron, one.timezone, datetime.now(UTC)))
        one = schedules.schedule(context.database, name)
        _warn_without_head(context)
    output.note(f"schedule {name}: next {schedule_rows.next_time(one)}")


def _warn_without_head(context: "Context") -> None:
    from db.terms import is_led_by_heads
    from orchestrator import output

    if not is_led_by_heads(context.database) or not context.database.leadership().is_anybodys():
        output.note("no head leads now: `haloctl head` submits what is due")
