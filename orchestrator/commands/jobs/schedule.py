"""`haloctl schedule`."""

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.commands import options
from orchestrator.commands.groups import ListByDefault

if TYPE_CHECKING:
    from db.writes import schedules
    from orchestrator.context import Context

app = typer.Typer(cls=ListByDefault, help="List and edit schedules, by which the head submits jobs.")

Name = Annotated[str, typer.Argument(help="Name of a schedule.", metavar="NAME")]


@app.command("list")
def list_schedules(json: options.Json = False, csv: options.Csv = False) -> None:
    """List schedules with their latest runs."""
    from db.writes import schedules
    from orchestrator.context import open_context
    from orchestrator.views import schedule_rows
    from orchestrator.views.formats import OutputFormat

    output_format = OutputFormat(json, csv)
    with open_context() as context:
        rows = [
            schedule_rows.to_json(schedule, schedules.runs(context.database, schedule.name, 1))
            for schedule in schedules.schedules(context.database)
        ]
        if rows:
            _warn_without_head(context)
    message = "no schedules yet: run `haloctl schedule add FILE --cron '0 2 * * *'`"
    output_format.print_rows(rows, schedule_rows.CSV_COLUMNS, lambda: schedule_rows.build_table(rows), message)


@app.command("add")
def add(
    file: options.JobFile,
    cron: Annotated[
        str, typer.Option("--cron", help="Minute, hour, day, month, weekday: '0 2 * * *' is 02:00 every day.")
    ],
    name: Annotated[str | None, typer.Option("--name", help="Name of the schedule; the file's by default.")] = None,
    timezone: Annotated[str, typer.Option("--timezone", help="Time zone of --cron: Europe/Berlin, ...")] = "UTC",
    if_missed: Annotated[
        str, typer.Option("--if-missed", help="For times without a head: `run` the latest one late, or `skip` all.")
    ] = "run",
) -> None:
    """Add a schedule for a job file.

    The file is checked as by `submit` and stored with its model as they are now; later changes of the file have no
    effect. Toolchains are resolved for each run.
    """
    from datetime import UTC, datetime

    from db.writes import schedules
    from orchestrator.context import open_context
    from orchestrator.settings import from_environment, make_data_folder
    from orchestrator.views import schedule_rows

    settings = from_environment()
    make_data_folder(settings)
    schedule = schedule_rows.build_schedule(file, cron, name, timezone, if_missed, settings, datetime.now(UTC))
    with open_context() as context:
        schedules.add(context.database, schedule)
        _warn_without_head(context)
    _print_times(schedule)


@app.command("show")
def show(name: Name, limit: options.Limit = 20, json: options.Json = False) -> None:
    """Show a schedule with its job file and its runs."""
    from db.writes import schedules
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.views import schedule_rows

    with open_context() as context:
        schedule = schedules.schedule(context.database, name)
        runs = schedules.runs(context.database, name, limit or None)
    if json:
        output.print_json(schedule_rows.to_json(schedule, runs))
        return
    for line in schedule_rows.describe(schedule):
        output.print_line(line)
    if runs:
        output.print_line("")
        output.print_table(schedule_rows.build_run_table(runs))


@app.command("remove")
def remove(name: Name) -> None:
    """Remove a schedule; the jobs that it submitted stay."""
    from db.writes import schedules
    from orchestrator import output
    from orchestrator.context import open_context

    with open_context() as context:
        schedules.remove(context.database, name)
    output.print_message(f"schedule {name}: removed")


@app.command("pause")
def pause(name: Name) -> None:
    """Pause a schedule; its times until `resume` are not missed."""
    from db.writes import schedules
    from orchestrator import output
    from orchestrator.context import open_context

    with open_context() as context:
        schedules.pause(context.database, name)
    output.print_message(f"schedule {name}: paused; `haloctl schedule resume {name}` continues it")


@app.command("resume")
def resume(name: Name) -> None:
    """Continue a paused schedule at its next time."""
    from datetime import UTC, datetime

    from db.writes import schedules
    from orchestrator.context import open_context
    from orchestrator.leader import cron

    with open_context() as context:
        schedule = schedules.schedule(context.database, name)
        next_at = cron.next_after(schedule.cron, schedule.timezone, datetime.now(UTC))
        schedules.resume(context.database, name, next_at)
        _warn_without_head(context)
        _print_times(schedules.schedule(context.database, name))


def _print_times(schedule: "schedules.Schedule") -> None:
    from orchestrator import output
    from orchestrator.views import schedule_rows

    times, next_time = schedule_rows.format_cron(schedule), schedule_rows.format_next_time(schedule)
    output.print_message(f"schedule {schedule.name}: {times}; next {next_time}")


def _warn_without_head(context: "Context") -> None:
    from db.writes.terms import is_led_by_heads
    from orchestrator import output

    if not is_led_by_heads(context.database) or not context.database.leader_lock().is_held():
        output.print_message("no head runs: start `haloctl head`, which submits the jobs")
