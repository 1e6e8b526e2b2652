"""`haloctl db`."""

import typer

app = typer.Typer(help="Look after the database.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `upgrade` a command of its own."""


@app.command("upgrade")
def upgrade() -> None:
    """Bring the database to the schema of this haloctl; creates it when it does not exist."""
    from db.engine import upgrade as bring_up
    from orchestrator import output
    from orchestrator.settings import from_environment, make_data_folder

    settings = from_environment()
    make_data_folder(settings)
    output.answer(f"the database is at revision {bring_up(settings.database_url)}")
