"""`haloctl submit`."""

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.commands import options

if TYPE_CHECKING:
    from orchestrator.submission import preparation, submit_options


def submit(
    file: Annotated[
        str,
        typer.Argument(help="A job file, or the name of a recipe: demo, tiny-llama, engines.", metavar="FILE|RECIPE"),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the tasks and their commands only.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the job, then print the matrix.")] = False,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Reuse the outputs of earlier jobs, or run everything.")
    ] = True,
    start: Annotated[
        str | None,
        typer.Option("--from", help="Run this stage and all later ones, even if they are cached.", metavar="STAGE"),
    ] = None,
    reuse_measurements: Annotated[
        bool, typer.Option("--reuse-measurements", help="Reuse the measurements of earlier jobs, too.")
    ] = False,
    priority: Annotated[
        int | None,
        typer.Option("--priority", help="Overrides the job file's; higher runs first.", min=-1000, max=1000),
    ] = None,
    nodes: Annotated[
        str | None, typer.Option("--nodes", help="`each`: run the benchmark on every node.", metavar="each")
    ] = None,
    devices: Annotated[
        str | None, typer.Option("--devices", help="`each`: run the benchmark on every GPU.", metavar="each")
    ] = None,
    json: options.Json = False,
) -> None:
    """Submit a job file or a recipe.

    Its variants and stages become tasks; a task that two variants share runs once.
    """
    from contextlib import nullcontext, suppress

    from jobs.errors import StorageUnusable
    from orchestrator import output
    from orchestrator.settings import from_environment, make_data_folder
    from orchestrator.submission import plan_text, preparation
    from orchestrator.submission.submit_options import parse_cache_options, parse_options

    settings = from_environment()
    with suppress(StorageUnusable) if dry_run else nullcontext():  # a plan needs no cache folder
        make_data_folder(settings)
    cached = parse_cache_options(cache=cache, start=start, reuse_measurements=reuse_measurements)
    prepared = preparation.prepare(file, settings, parse_options(priority, nodes, devices, start))
    if not dry_run:
        if wait:
            output.warn_of_held_back_variables()
        _submit(prepared, cached, wait=wait, json=json)
    elif json:
        output.print_json(plan_text.dry_run_json(prepared))
    else:
        for line in plan_text.dry_run_lines(prepared):
            output.print_line(line)


def _submit(
    prepared: "preparation.PreparedJob", cached: "submit_options.CacheOptions", *, wait: bool, json: bool
) -> None:
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.follow import waiting
    from orchestrator.submission import plan_text, preparation

    with open_context() as context:
        job = preparation.store_job(context.store, prepared.spec, prepared.model, prepared.plan, cached)
        if wait:
            output.print_message(f"job {job}: {plan_text.format_extent(prepared.plan)}")
            waiting.wait_for(context, job, json=json, timeout_s=None, cancels_when_interrupted=True)
        elif json:
            output.print_json({"job": job, "tasks": len(prepared.plan.tasks)})
        else:
            output.print_line(job)
            output.print_message(f"submitted; run `haloctl wait {job}` to follow it, and to run it without a head")
