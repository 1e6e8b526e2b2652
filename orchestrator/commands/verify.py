"""`haloctl verify`."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from orchestrator.repeating import verification


def verify(
    name: str = typer.Argument(help="A task's or an attempt's id, or the start of it.", metavar="TASK|ATTEMPT"),
    timeout: float = typer.Option(None, "--timeout", help="Stop waiting after this many seconds.", min=0),
    json: bool = typer.Option(False, "--json", help="Answer in JSON."),
) -> None:
    """Run a task again where it ran, and say whether it comes to the same.

    On the same node and device, under the same toolchain, with inputs from the cache. Timings agree when the ratio of
    their medians may lie within the noise, files when they are equal. Ends with 0 if all agree, with 3 if not.
    """
    import time

    from jobs.errors import Disagrees
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.repeating import verification
    from orchestrator.showing.chosen import attempt_named
    from orchestrator.submitting import waiting

    deadline = None if timeout is None else time.monotonic() + timeout
    with opened() as context:
        old = attempt_named(context, name)
        job = verification.job_for(context, old)
        output.note(f"job {job}: {old.stage} once more, as attempt {old.id} did it")
        with waiting.follower(context, cancels_when_interrupted=True) as wait:
            state = wait(job, deadline)
        found = verification.outcome(context, old, job, state)
    if json:
        output.as_json(verification.as_json(found))
    else:
        _print(found)
    if not found.agrees:
        raise Disagrees(found.new.task, verification.what_disagrees(found))


def _print(found: "verification.Verified") -> None:
    from orchestrator import output
    from orchestrator.repeating import agreement, verification

    if found.metrics:
        output.table(
            ("metric", "batch", "prompt", "old", "new", "ratio", "interval", "noise", ""),
            [agreement.line(agreement.as_row(one)) for one in found.metrics],
            right=("batch", "prompt", "old", "new", "ratio", "noise"),
        )
    if found.files:
        output.table(("file", "sha256", ""), [(one.name, one.new or "", one.finding) for one in found.files])
    for text in verification.notes(found):
        output.note(text)
    if found.agrees:
        output.answer(f"agrees: task {found.new.task} came to what attempt {found.old.id} came to")
