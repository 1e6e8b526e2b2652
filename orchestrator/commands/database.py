"""`haloctl db`."""

from pathlib import Path

import typer

app = typer.Typer(help="Look after the database.", no_args_is_help=True)


@app.command("upgrade")
def upgrade() -> None:
    """Bring the database to the schema of this haloctl; creates it when it does not exist."""
    from db.engine import upgrade as bring_up
    from orchestrator import output
    from orchestrator.settings import from_environment, make_data_folder

    settings = from_environment()
    make_data_folder(settings)
    output.answer(f"the database is at revision {bring_up(settings.database_url)}")


@app.command("check")
def check(json: bool = typer.Option(False, "--json", help="Answer in JSON.")) -> None:
    """Look for what can't be: lost or doubled events, results, and devices. Exits with 5 when something is found."""
    from dataclasses import asdict

    from db import audit
    from db.engine import open_database
    from jobs.errors import RulesBroken
    from orchestrator import output
    from orchestrator.settings import from_environment

    with open_database(from_environment().database_url, create=False) as database:
        extent = audit.extent(database)
        found = list(audit.violations(database))
    if json:
        output.as_json({**asdict(extent), "violations": [asdict(one) for one in found]})
    else:
        for one in found:
            output.answer(f"{one.about}: {one.message}")
    if found:
        raise RulesBroken(len(found))
    if not json:
        output.answer(
            f"all is as it should be: {extent.tasks} tasks, {extent.attempts} attempts, {extent.events} events"
        )


@app.command("export")
def export(
    file: Path = typer.Argument(..., help="Where to; compressed where it ends in .gz. It must not exist yet."),
) -> None:
    """Write the whole database into one file, as of one moment, for `db import` into SQLite or Postgres.

    The files in the artifact store are not in it, and no password is.
    """
    from db.engine import open_database
    from orchestrator import output
    from orchestrator.files import database_files
    from orchestrator.settings import from_environment

    with open_database(from_environment().database_url, create=False) as database:
        count = database_files.write(database, file)
    output.note(f"{file}: {output.count(count, 'row')}, {output.size(file.stat().st_size)}")


@app.command("import")
def import_database(
    file: Path = typer.Argument(..., help="What `db export` wrote."),
) -> None:
    """Fill an empty database, which is made where there is none, with what `db export` wrote: all of it, or nothing."""
    from db.engine import open_database
    from orchestrator import output
    from orchestrator.files import database_files
    from orchestrator.settings import from_environment, make_data_folder

    settings = from_environment()
    make_data_folder(settings)
    with open_database(settings.database_url, create=True) as database:
        counts = database_files.read(database, file)
    for name, count in counts.items():
        output.answer(f"{name:16}{count}")
