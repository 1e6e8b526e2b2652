"""`haloctl db`."""

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.commands import options

app = typer.Typer(help="Create, upgrade, check, copy and prune the database.", no_args_is_help=True)


@app.command("upgrade")
def upgrade() -> None:
    """Create the database, or upgrade it to the schema of this release."""
    from db.connection.engine import upgrade as upgrade_schema
    from orchestrator import output
    from orchestrator.settings import from_environment, make_data_folder

    settings = from_environment()
    make_data_folder(settings)
    output.print_line(f"the database is at revision {upgrade_schema(settings.database_url)}")


@app.command("check")
def check(json: options.Json = False) -> None:
    """Check the database for violated invariants.

    It finds lost or duplicate events, results and devices, and exits with 5 when there are any.
    """
    from dataclasses import asdict

    from db.connection.engine import open_database
    from db.reads import audit
    from jobs.errors import InvariantsViolated
    from orchestrator import output
    from orchestrator.settings import from_environment

    with open_database(from_environment().database_url, create=False) as database:
        extent = audit.extent(database)
        violations = list(audit.violations(database))
    if json:
        output.print_json({**asdict(extent), "violations": [asdict(violation) for violation in violations]})
    else:
        for violation in violations:
            output.print_line(f"{violation.about}: {violation.message}")
    if violations:
        raise InvariantsViolated(len(violations))
    if not json:
        counts = f"{extent.tasks} tasks, {extent.attempts} attempts, {extent.events} events"
        output.print_line(f"no invariant is violated: {counts}")


@app.command("export")
def export(
    file: Annotated[Path, typer.Argument(help="A new file; compressed if it ends in .gz.", metavar="FILE")],
) -> None:
    """Write the database into a file for `db import`.

    The file is a snapshot that SQLite and Postgres can import. It contains neither the files of the artifact store nor
    passwords.
    """
    from db.connection.engine import open_database
    from orchestrator import output
    from orchestrator.formatting import format_bytes, format_count
    from orchestrator.imports import database_files
    from orchestrator.settings import from_environment

    with open_database(from_environment().database_url, create=False) as database:
        count = database_files.write(database, file)
    output.print_message(f"{file}: {format_count(count, 'row')}, {format_bytes(file.stat().st_size)}")


@app.command("prune")
def prune(
    older_than: Annotated[
        str, typer.Option("--older-than", help="Of jobs that ended this long ago: 90d, 12h.", metavar="AGE")
    ],
    archive: Annotated[
        Path | None,
        typer.Option("--archive", help="The file to export to first; default: a new one in <data>/archives."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Prune; otherwise print what would be dropped only.")] = False,
    json: options.Json = False,
) -> None:
    """Drop what nobody asks for of old jobs: events, and ends of logs of replaced attempts.

    Results, outcomes and files stay. First the whole database is exported, to a file that `db import` reads.
    """
    from dataclasses import asdict
    from datetime import UTC, datetime

    from db.connection.engine import open_database
    from db.writes import pruning
    from orchestrator import output, times
    from orchestrator.formatting import format_count
    from orchestrator.imports import database_files
    from orchestrator.settings import from_environment

    settings, now = from_environment(), datetime.now(UTC)
    before = times.parse_time(older_than, now, "--older-than")
    with open_database(settings.database_url, create=False) as database:
        jobs, rows = pruning.find_prunable(database, before)
        is_pruned = yes and rows != pruning.PrunedRows()
        if is_pruned:
            archive = archive or database_files.new_archive(settings.data, now)
            database_files.write(database, archive)
            rows = pruning.prune(database, jobs, before, str(archive.absolute()))
    if json:
        output.print_json({**asdict(rows), "archive": str(archive) if is_pruned else None, "is_dry_run": not yes})
        return
    events, of_jobs = format_count(rows.events, "event"), format_count(rows.jobs, "job")
    tails, changes = format_count(rows.log_tails, "end of a log"), format_count(rows.node_changes, "up or down")
    verb = "dropped" if yes else "would drop"
    output.print_message(f"{verb} {events} and {tails} of {of_jobs}, and {changes} of nodes")
    if is_pruned:
        output.print_message(f"{archive}: the whole database as it was before, for `haloctl db import`")
    elif not yes:
        output.print_message("nothing was changed: run it again with --yes")


@app.command("import")
def import_database(
    file: Annotated[Path, typer.Argument(help="A file of `db export`.", metavar="FILE")],
) -> None:
    """Fill an empty or new database from a file of `db export`.

    It imports everything or nothing.
    """
    from db.connection.engine import open_database
    from orchestrator import output
    from orchestrator.imports import database_files
    from orchestrator.settings import from_environment, make_data_folder

    settings = from_environment()
    make_data_folder(settings)
    with open_database(settings.database_url, create=True) as database:
        counts = database_files.read(database, file)
    for table, count in counts.items():
        output.print_line(f"{table:16}{count}")
