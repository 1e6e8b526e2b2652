"""One attempt, from its inputs to its result."""

import json
import time
import traceback
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from math import isfinite
from pathlib import Path

from jobs.errors import ArtifactLost, StorageUnusable
from jobs.stages import stage_of
from jobs.stages.base import INPUTS, OUTPUTS, Stage
from jobs.state import Failure, FailureKind
from jobs.task import Artifact, Attempt, Command, Measurement, Outcome, TaskResult
from jobs.toolchains import Toolchain
from workers import failures, fitness
from workers.artifacts import ArtifactStore
from workers.environment import MissingTool, environment, gang_variables, resolve
from workers.folders import checked, empty_outputs, log_path, working_folder
from workers.measuring import measured
from workers.process_metrics import observed_measurements
from workers.processes import Cancellation, End, Ended, Guarded, Lease
from workers.toolchains.environments import Environments

PATIENCE_S = 300.0  #: with a store that can't be reached when outputs are to be published
TRY_AGAIN_S = 1.0

#: Failures after which what was made is kept: the numbers are wrong, and somebody will want to see them.
SHOWN_FAILURES = frozenset({FailureKind.WRONG_NUMBERS})


def run(
    attempt: Attempt,
    data: Path,
    store: ArtifactStore,
    toolchain: Toolchain,
    cancellation: Cancellation,
    lease: Lease | None = None,
) -> TaskResult:
    """Carry an attempt out; whatever goes wrong with its tools or this machine is a failure in the result.

    It runs under the toolchain that it asks for, which must have been built in the data folder, or else under the
    given one. Its processes end when nobody renews the lease.
    """
    started = time.monotonic()
    with Environments(data).use(attempt.toolchain) if attempt.toolchain else nullcontext(toolchain) as under:
        if under is None:
            message = f"toolchain {attempt.toolchain[:16]} is not built on this node any more"
            return TaskResult(attempt.id, attempt.epoch, Failure(FailureKind.NODE_UNFIT, message))
        result = TaskResult(
            attempt.id,
            attempt.epoch,
            failure=None,
            environment=environment(attempt.devices, attempt.cpus, tools=under.tools) | gang_variables(attempt.gang),
            versions=under.versions,
        )
        if unfit := fitness.before(attempt, cancellation):
            failure = failures.of_unfit(map(fitness.told, unfit))
            return replace(result, failure=failure, unfit=unfit, wall_s=time.monotonic() - started)
        has_begun = not cancellation.is_wished
        result = _carried_out(result, attempt, data, store, under, cancellation, lease)
    unfit = fitness.after(attempt) if has_begun else ()
    return replace(
        result,
        artifacts=(*result.artifacts, *_kept_log(log_path(data, attempt.id), store)),
        warnings=(*result.warnings, *map(fitness.told, unfit)),
        unfit=unfit,
        wall_s=time.monotonic() - started,
    )


def _carried_out(
    result: TaskResult,
    attempt: Attempt,
    data: Path,
    store: ArtifactStore,
    toolchain: Toolchain,
    cancellation: Cancellation,
    lease: Lease | None,
) -> TaskResult:
    """The result, completed by what came of the attempt's commands."""
    log = log_path(data, attempt.id)
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with working_folder(data, attempt.id) as folder:
            place_inputs(attempt.inputs, store, folder)
            stage = stage_of(attempt.stage, attempt.settings)

            def carry_out(timeout_s: float) -> tuple[Ended, Outcome]:
                empty_outputs(folder)
                this = replace(attempt, timeout_s=timeout_s)
                ended = _run_commands(this, result.environment, folder, log, toolchain, cancellation, lease)
                return ended, _outcome(this, ended, folder, log)

            if stage.is_measured:
                ended, outcome = measured(attempt, carry_out, toolchain.versions, cancellation)
            else:
                ended, outcome = carry_out(attempt.timeout_s)
            result = replace(result, processes=tuple(ran.process for ran in ended.ran))
            artifacts = _publish(stage, folder, store, cancellation) if _is_shown(outcome.failure) else ()
        return replace(
            result,
            failure=outcome.failure,
            artifacts=artifacts,
            measurements=outcome.measurements,
            warnings=outcome.warnings,
        )
    except InputsLost as error:
        return replace(result, failure=failures.of_lost(error.files), lost=tuple(one.artifact for one in error.files))
    except MissingTool as error:
        return replace(result, failure=Failure(FailureKind.TOOLCHAIN, str(error)))
    except StorageUnusable as error:
        return replace(result, failure=Failure(FailureKind.NODE_UNFIT, str(error)))
    except OSError as error:
        return replace(result, failure=failures.of_machine(error))


class InputsLost(Exception):
    """The store lacks what earlier stages made, or has it damaged."""

    def __init__(self, files: tuple[failures.LostFile, ...]) -> None:
        super().__init__(files)
        self.files = files


def place_inputs(inputs: Mapping[str, Iterable[Artifact]], store: ArtifactStore, folder: Path) -> None:
    """Put what earlier stages made at inputs/<stage>/<name>; raises InputsLost with all that the store lacks."""
    lost = []
    for stage, artifacts in inputs.items():
        for artifact in artifacts:
            try:
                store.place(artifact, folder / INPUTS / checked(stage) / checked(artifact.name))
            except ArtifactLost as error:
                lost.append(failures.LostFile(stage, artifact, error.how))
    if lost:
        raise InputsLost(tuple(lost))


def kind_of(name: str, kinds: Mapping[str, str]) -> str | None:
    """An output's kind of artifact, by the longest of the endings that fits; None: not kept."""
    endings = [ending for ending in kinds if name.endswith(ending)]
    return kinds[max(endings, key=len)] if endings else None


def _run_commands(
    attempt: Attempt,
    seen: Mapping[str, str],
    folder: Path,
    log: Path,
    toolchain: Toolchain,
    cancellation: Cancellation,
    lease: Lease | None,
) -> Ended:
    if cancellation.is_wished:
        return Ended(End.CANCELLED, ())
    seen = {**seen, "TMPDIR": str(folder)}  # what a killed tool leaves there goes with the folder
    commands = [Command(*resolve(command, seen, toolchain)) for command in attempt.commands]
    with Guarded(commands, folder, log, attempt.timeout_s, attempt.id, lease) as guarded:
        cancellation.calls(guarded.cancel)
        return guarded.wait()


def _outcome(attempt: Attempt, ended: Ended, folder: Path, log: Path) -> Outcome:
    """What the commands' ends, their outputs and their processes say together."""
    said = [failures.read_log(log, ran.log_start, ran.log_end) for ran in ended.ran]
    failure = failures.of_commands(ended, attempt.commands, said[-1] if said else "", attempt.timeout_s)
    if failure:
        return Outcome(failure=failure)
    if attempt.gang and attempt.gang.rank > 0:  # the report is the first node's, and tells of all of them
        return Outcome()
    outcome = _parse(attempt, folder, "\n".join(said))
    if not _is_shown(outcome.failure):
        return outcome
    observed = [(ran.process, text) for ran, text in zip(ended.ran, said, strict=True)]
    more = observed_measurements(attempt.stage, attempt.settings, observed)
    return replace(outcome, measurements=(*outcome.measurements, *more))


def _parse(attempt: Attempt, folder: Path, log: str) -> Outcome:
    """What the stage reads from its outputs; a report that it can't read is a failure like any other."""
    try:
        outcome = stage_of(attempt.stage, attempt.settings).parse(attempt.settings, folder)
        for measurement in outcome.measurements:
            _expect_numbers(measurement)
        return outcome
    except (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return Outcome(failure=failures.of_outputs(attempt.stage, error, traceback.format_exc(), log))


def _expect_numbers(measurement: Measurement) -> None:
    """Raise ValueError for what no database keeps: no sample at all, one that is not finite, one in the context."""
    if not measurement.samples or not all(map(isfinite, measurement.samples)):
        raise ValueError(f"{measurement.metric} should be finite numbers, and is {list(measurement.samples)}")
    json.dumps(dict(measurement.context), allow_nan=False)


def _is_shown(failure: Failure | None) -> bool:
    return failure is None or failure.kind in SHOWN_FAILURES


def _publish(stage: Stage, folder: Path, store: ArtifactStore, cancellation: Cancellation) -> tuple[Artifact, ...]:
    """Put the outputs that the stage keeps into the store, which may be away for a while: they took longer to make."""
    files = sorted(path for path in (folder / OUTPUTS).iterdir() if path.is_file() and not path.is_symlink())
    kinds = [(path, kind_of(path.name, stage.artifacts)) for path in files]
    give_up_at = time.monotonic() + PATIENCE_S
    while True:
        try:
            return tuple(store.put(path, kind) for path, kind in kinds if kind)
        except StorageUnusable:
            if cancellation.is_wished or time.monotonic() > give_up_at:
                raise
        time.sleep(TRY_AGAIN_S)  # nothing tells that a store is back


def _kept_log(log: Path, store: ArtifactStore) -> tuple[Artifact, ...]:
    """The log as an artifact; without room for that it still lies where it was written."""
    with suppress(OSError, StorageUnusable):
        return (store.put(log, "log"),)
    return ()
