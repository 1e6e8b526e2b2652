"""`haloctl list`."""

from typing import Any

import typer


def list_jobs(
    limit: int = typer.Option(20, "--limit", "-n", help="How many, newest first; 0 for all.", min=0),
    toolchain: str = typer.Option(None, "--toolchain", help="Those with variants under it: a name, or 'iree-*'."),
    json: bool = typer.Option(False, "--json", help="Answer in JSON."),
    csv: bool = typer.Option(False, "--csv", help="Answer in CSV."),
) -> None:
    """List jobs, newest first."""
    from db import reports
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.showing import rows

    with opened() as context:
        found = [rows.job(job) for job in reports.jobs(context.database, limit or None, toolchain)]
    if json:
        output.as_json(found)
    elif csv:
        output.as_csv(found, rows.JOB_COLUMNS)
    elif not found:
        output.note("no jobs yet: `haloctl submit demo --wait` runs a first one")
    else:
        has_others = any(job["origin"] for job in found)
        output.table(
            ("job", "state", "done", "name", "by", "when", *(["origin"] if has_others else [])),
            [_line(job, with_origin=has_others) for job in found],
            right=("done",),
        )


def _line(job: dict[str, Any], *, with_origin: bool) -> tuple[str, ...]:
    from orchestrator.showing.rows import when

    done = f"{job['done']}/{job['tasks']}"
    told = (job["job"], job["state"], done, job["name"], job["submitted_by"], when(job["submitted_at"]))
    return (*told, job["origin"]) if with_origin else told
