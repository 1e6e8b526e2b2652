"""`haloctl verify`."""

from typing import TYPE_CHECKING

from orchestrator.commands import options

if TYPE_CHECKING:
    from orchestrator.reruns.verification import VerificationResult


def verify(
    name: options.TaskOrAttempt,
    timeout: options.Timeout = None,
    json: options.Json = False,
) -> None:
    """Run a task again and compare the results.

    It runs on the same node and device, under the same toolchain, with cached inputs. Timings agree when the ratio of
    their medians is within the noise, files when they are equal. It exits with 3 when anything disagrees.
    """
    import time

    from jobs.errors import ResultsDiffer
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.follow import waiting
    from orchestrator.reruns import verification
    from orchestrator.views.attempt_lookup import find_attempt

    deadline = None if timeout is None else time.monotonic() + timeout
    with open_context() as context:
        attempt = find_attempt(context, name)
        job = verification.start_verification(context, attempt)
        output.print_message(f"job {job}: runs {attempt.stage} of attempt {attempt.id} again")
        with waiting.follower(context, cancels_when_interrupted=True) as wait:
            state = wait(job, deadline)
        result = verification.verification_result(context, attempt, job, state)
    if json:
        output.print_json(verification.as_json(result))
    else:
        _print(result)
    if not result.agrees:
        raise ResultsDiffer(result.new.task, verification.disagreement_text(result))


def _print(result: "VerificationResult") -> None:
    from orchestrator import output
    from orchestrator.reruns import verification
    from orchestrator.tables import TextTable
    from orchestrator.views import comparison_rows

    if result.metrics:
        output.print_table(comparison_rows.verify_table(result.metrics))
    if result.files:
        files = [(file.name, file.new or "", file.verdict) for file in result.files]
        output.print_table(TextTable(("file", "sha256", ""), files))
    for text in verification.notes(result):
        output.print_message(text)
    if result.agrees:
        output.print_line(f"agrees: task {result.new.task} has the results of attempt {result.old.id}")
