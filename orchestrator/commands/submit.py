"""`haloctl submit`."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from orchestrator.submitting import submission

EACH = "each"


def submit(
    file: str = typer.Argument(
        help="A job file, or the name of a recipe: demo, tiny-llama, engines.", metavar="FILE|RECIPE"
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print every task and its commands; submit nothing."),
    wait: bool = typer.Option(False, "--wait", help="Run until nothing is left that can run, then print the matrix."),
    cache: bool = typer.Option(True, "--cache/--no-cache", help="Take over what earlier jobs computed, or not."),
    start: str | None = typer.Option(
        None, "--from", help="Run this stage and those after it, whatever was computed before.", metavar="STAGE"
    ),
    reuse_measurements: bool = typer.Option(
        False, "--reuse-measurements", help="Take over what earlier jobs measured, too."
    ),
    priority: int | None = typer.Option(
        None, "--priority", help="Higher goes first; the job file's instead.", min=-1000, max=1000
    ),
    nodes: str | None = typer.Option(None, "--nodes", help="`each`: the benchmark on every node.", metavar=EACH),
    devices: str | None = typer.Option(None, "--devices", help="`each`: the benchmark on every GPU.", metavar=EACH),
    json: bool = typer.Option(False, "--json", help="Answer in JSON."),
) -> None:
    """Submit a job file or a recipe.

    Its variants and stages become tasks; what is the same for two variants is done once.
    """
    from contextlib import nullcontext, suppress
    from dataclasses import replace

    from jobs.errors import StorageUnusable
    from orchestrator import output
    from orchestrator.settings import from_environment, make_data_folder
    from orchestrator.submitting import submission

    settings = from_environment()
    with suppress(StorageUnusable) if dry_run else nullcontext():  # a plan goes without what it could keep there
        make_data_folder(settings)
    _expect_one_wish(cache=cache, start=start, reuse_measurements=reuse_measurements)
    prepared = submission.prepare(file, settings, replace(_asked(priority, nodes, devices), start=start))
    if dry_run:
        if json:
            output.as_json(submission.dry_run_json(prepared))
        for line in () if json else submission.dry_run_lines(prepared):
            output.answer(line)
        return
    _submit(prepared, wait=wait, reuse=cache, reuse_measurements=reuse_measurements, json=json)


def _expect_one_wish(*, cache: bool, start: str | None, reuse_measurements: bool) -> None:
    """Raise BadSetting where two options contradict each other; measurements come last, so they follow any stage."""
    from jobs.errors import BadSetting

    wishes = {"--no-cache": not cache, "--from": start is not None, "--reuse-measurements": reuse_measurements}
    given = [name for name, is_given in wishes.items() if is_given]
    if len(given) > 1:
        raise BadSetting(", ".join(given), "give one of them: what runs again is not taken from the cache")


def _asked(priority: int | None, nodes: str | None, devices: str | None) -> "submission.Asked":
    from jobs.errors import BadSetting
    from jobs.variants import On
    from orchestrator.submitting.submission import Asked

    given = {name: word for name, word in (("--nodes", nodes), ("--devices", devices)) if word is not None}
    for name, word in given.items():
        if word != EACH:
            raise BadSetting(name, f"should be {EACH}, not {word!r}")
    if len(given) > 1:
        raise BadSetting("--nodes, --devices", "give one of them: each device is on some node")
    if nodes:
        return Asked(priority, On.EACH_NODE, "--nodes each")
    return Asked(priority, On.EACH_DEVICE, "--devices each") if devices else Asked(priority)


def _submit(prepared: "submission.Prepared", *, wait: bool, reuse: bool, reuse_measurements: bool, json: bool) -> None:
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.submitting import submission, waiting

    with opened() as context:
        job = submission.store_job(
            context.store,
            prepared.spec,
            prepared.model,
            prepared.plan,
            reuse=reuse,
            reuse_measurements=reuse_measurements,
        )
        if wait:
            output.note(f"job {job}: {submission.extent(prepared.plan)}")
            waiting.wait_for(context, job, json=json, timeout_s=None, cancels_when_interrupted=True)
        elif json:
            output.as_json({"job": job, "tasks": len(prepared.plan.tasks)})
        else:
            output.answer(job)
            output.note(f"submitted; `haloctl wait {job}` runs it, or watches it where a head runs already")
