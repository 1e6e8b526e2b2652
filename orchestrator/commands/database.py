"""`haloctl db`."""

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
