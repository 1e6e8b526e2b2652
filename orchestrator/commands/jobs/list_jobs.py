"""`haloctl list`."""

from orchestrator.commands import options


def list_jobs(
    toolchain: options.Toolchain = None,
    limit: options.Limit = 20,
    json: options.Json = False,
    csv: options.Csv = False,
) -> None:
    """List jobs, newest first."""
    from db.reads import reports
    from orchestrator.context import open_context
    from orchestrator.views import rows
    from orchestrator.views.formats import OutputFormat, nothing_found

    output_format = OutputFormat(json, csv)
    with open_context() as context:
        jobs = [rows.job_to_json(job) for job in reports.jobs(context.database, limit or None, toolchain)]
    message = nothing_found("jobs", toolchain)
    output_format.print_rows(jobs, rows.JOB_COLUMNS, lambda: rows.build_job_table(jobs), message)
