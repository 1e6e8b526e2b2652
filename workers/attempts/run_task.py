"""Runs one attempt of a task, from its inputs to its result."""

import json
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path

from jobs.environment_variables import conditions
from jobs.errors import ArtifactLost, BadSetting, StorageUnusable
from jobs.exporters import stage_of
from jobs.paths import path_below
from jobs.stages.base import INPUTS, OUTPUTS, Stage
from jobs.state import POLICIES, Failure, FailureKind
from jobs.task import Artifact, Attempt, Command, Measurement, Outcome, TaskResult
from jobs.toolchains import Toolchain
from workers import failures
from workers.artifacts import ArtifactStore
from workers.attempts.archives import pack
from workers.attempts.folders import empty_outputs, log_path, take_outputs, working_folder
from workers.attempts.isolation import isolation_of
from workers.attempts.publishing import Publisher
from workers.environment import (
    MissingTool,
    gang_variables,
    resolve_command,
    service_secrets,
    site_variables,
    stage_environment,
)
from workers.inputs.content_digests import ContentDigests, Stopped
from workers.inputs.planned_inputs import InputChanged, check_inputs, is_unchanged
from workers.machine import fitness
from workers.measurement.measuring import Measure, run_measured
from workers.processes.cancellation import Cancellation
from workers.processes.client import CommandResult, EndReason, RunResult, SupervisedRun
from workers.processes.lease import Lease
from workers.processes.stage_user import StageUser, stage_user
from workers.processes.supervisor import TERM_GRACE_S
from workers.toolchains.environments import Environments

SERVICE_GRACE_S = 12.0  #: for requests to a server that is cancelled to end
MAX_RUNS = 3  #: of a stage whose inputs are changed, and changed back, each time that it runs

#: Failures after which outputs are kept: the numbers are wrong, and somebody will want to see them.
KINDS_WITH_OUTPUTS = frozenset({FailureKind.WRONG_NUMBERS})


def run(
    attempt: Attempt,
    data: Path,
    store: ArtifactStore,
    toolchain: Toolchain,
    cancellation: Cancellation,
    lease: Lease | None = None,
    measure: Measure = run_measured,
    report_wait: Callable[[str | None], None] = lambda _: None,
) -> TaskResult:
    """Run an attempt; whatever goes wrong with its tools, this machine or the store is a failure in the result.

    It runs under the toolchain that it asks for, which must have been built in the data folder, or else under the
    given one. Its processes end when nobody renews the lease. `report_wait` is told why its files wait for the store,
    and None when they do no more.
    """
    started = time.monotonic()
    try:
        user = stage_user()
    except BadSetting as error:
        return TaskResult(attempt.id, attempt.epoch, Failure(FailureKind.NODE_UNFIT, str(error)))
    built = Environments(data).use(attempt.toolchain) if attempt.toolchain else nullcontext(toolchain)
    with built as attempt_toolchain:
        if attempt_toolchain is None:
            message = f"toolchain {attempt.toolchain[:16]} is not built on this node any more"
            return TaskResult(attempt.id, attempt.epoch, Failure(FailureKind.NODE_UNFIT, message))
        variables = stage_environment(attempt.devices, attempt.cpus, tools=attempt_toolchain.tools)
        result = TaskResult(
            attempt.id,
            attempt.epoch,
            failure=None,
            environment=variables | gang_variables(attempt.gang) | (user.variables if user else {}),
            versions=attempt_toolchain.versions,
        )
        if unfit := fitness.check_before(attempt, cancellation):
            failure = failures.of_unfit(map(fitness.describe, unfit))
            return replace(result, failure=failure, unfit=unfit, duration_s=time.monotonic() - started)
        has_begun = not cancellation.is_requested
        publisher = Publisher(store, cancellation, report_wait)
        result = _AttemptRun(attempt, data, publisher, attempt_toolchain, cancellation, lease, user, measure).run(
            result
        )
    unfit = fitness.check_after(attempt) if has_begun else ()
    return replace(
        result,
        artifacts=(*result.artifacts, *_publish_log(log_path(data, attempt.id), publisher)),
        warnings=(*result.warnings, *map(fitness.describe, unfit)),
        unfit=unfit,
        duration_s=time.monotonic() - started,
    )


@dataclass(frozen=True)
class _AttemptRun:
    """An attempt on a node that is fit for it, with all that it runs with."""

    attempt: Attempt
    data: Path
    publisher: Publisher
    toolchain: Toolchain
    cancellation: Cancellation
    lease: Lease | None
    user: StageUser | None
    measure: Measure

    @property
    def log(self) -> Path:
        return log_path(self.data, self.attempt.id)

    def run(self, result: TaskResult) -> TaskResult:
        """Return the result, completed by what came of the attempt's commands."""
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with working_folder(self.data, self.attempt.id, self.user) as folder:
                place_inputs(self.attempt.inputs, self.publisher.store, folder.parent)  # which it has a link to
                stage = stage_of(self.attempt.stage, self.attempt.settings)
                commands, outcome = self._run_with_planned_inputs(stage, folder, result.environment)
                result = replace(result, processes=tuple(command.process for command in commands))
                artifacts = self._publish(stage, folder) if _has_outputs(outcome.failure) else ()
            return replace(
                result,
                failure=outcome.failure,
                artifacts=artifacts,
                measurements=outcome.measurements,
                warnings=outcome.warnings,
            )
        except InputsLost as error:
            lost = tuple(file.artifact for file in error.files)
            return replace(result, failure=failures.of_lost(error.files), lost=lost)
        except MissingTool as error:
            return replace(result, failure=Failure(FailureKind.TOOLCHAIN, str(error)))
        except StorageUnusable as error:
            return replace(result, failure=Failure(FailureKind.STORE_UNUSABLE, str(error)))
        except OSError as error:
            return replace(result, failure=failures.of_machine(error))

    def _run_with_planned_inputs(
        self, stage: Stage, folder: Path, environment: Mapping[str, str]
    ) -> tuple[tuple[CommandResult, ...], Outcome]:
        """Run the stage between two checks of what it reads; again if that was changed and changed back meanwhile."""
        digests = ContentDigests(self.data / "cache" / "inputs")
        check = partial(check_inputs, self.attempt, environment, digests, lambda: self.cancellation.is_requested)
        commands: tuple[CommandResult, ...] = ()
        try:
            before = check()
            for _ in range(1 if self.attempt.gang else MAX_RUNS):  # all nodes of a gang would have to run it again
                commands, outcome = self._run_stage(stage, folder, environment)
                if self.cancellation.is_requested or _is_tried_again(outcome.failure):
                    return commands, outcome
                seen, before = before, check()
                if is_unchanged(seen, before):
                    return commands, outcome
            raise InputChanged(f"its inputs were changed, and changed back, while {stage.name} ran: retry it")
        except Stopped:
            return commands, Outcome(failure=Failure(FailureKind.CANCELLED, "cancelled"))
        except InputChanged as error:
            with self.log.open("a") as log:
                log.write(f"{error}\n")
            return commands, Outcome(failure=failures.of_changed_input(str(error)))

    def _run_stage(
        self, stage: Stage, folder: Path, environment: Mapping[str, str]
    ) -> tuple[tuple[CommandResult, ...], Outcome]:
        def run_commands(timeout_s: float) -> tuple[RunResult, Outcome]:
            empty_outputs(folder, self.user)
            result = self._run_commands(stage, folder, environment, timeout_s)
            take_outputs(folder, self.user)
            return result, _outcome(self.attempt, result, folder, self.log, timeout_s)

        if stage.is_measured:
            result, outcome = self.measure(self.attempt, run_commands, self.toolchain.versions, self.cancellation)
            outcome = _with_variables(outcome, self.attempt, environment)
        else:
            result, outcome = run_commands(self.attempt.timeout_s)
        return result.commands, outcome

    def _run_commands(self, stage: Stage, folder: Path, environment: Mapping[str, str], timeout_s: float) -> RunResult:
        if self.cancellation.is_requested:
            return RunResult(EndReason.CANCELLED, ())
        environment = {**environment, "TMPDIR": str(folder)}  # what a killed tool leaves there goes with the folder
        resolved = (resolve_command(command, environment, self.toolchain) for command in self.attempt.commands)
        secrets = service_secrets() if stage.is_service else {}  # which no record of the environment holds
        commands = [Command(argv, {**env, **secrets}) for argv, env in resolved]
        isolation = isolation_of(self.data, folder, environment, self.attempt.devices, self.user).to_request()
        with SupervisedRun(
            commands,
            folder,
            self.log,
            timeout_s,
            self.attempt.id,
            self.lease,
            isolation,
            grace_s=SERVICE_GRACE_S if stage.is_service else TERM_GRACE_S,
        ) as supervised_run:
            self.cancellation.on_cancel(supervised_run.cancel)
            return supervised_run.wait()

    def _publish(self, stage: Stage, folder: Path) -> tuple[Artifact, ...]:
        """Publish the outputs that the stage keeps, and the archives of what lies beside them."""
        for name, archive in stage.archives.items():
            if (problem := pack(folder, archive, folder / OUTPUTS / name)) is not None:
                with self.log.open("a") as log:
                    log.write(f"{name} is not kept: {problem}\n")
        files = sorted(path for path in (folder / OUTPUTS).iterdir() if path.is_file() and not path.is_symlink())
        endings = {**stage.artifacts, **{name: archive.kind for name, archive in stage.archives.items()}}
        kinds = [(path, kind_of(path.name, endings)) for path in files]
        return self.publisher.publish((path, kind) for path, kind in kinds if kind)


class InputsLost(Exception):
    """The store lacks artifacts of earlier stages, or has damaged ones."""

    def __init__(self, files: tuple[failures.LostFile, ...]) -> None:
        super().__init__(files)
        self.files = files


def place_inputs(inputs: Mapping[str, Iterable[Artifact]], store: ArtifactStore, folder: Path) -> None:
    """Put the artifacts of earlier stages at inputs/<stage>/<name>; raises InputsLost with all that the store lacks."""
    lost = []
    for stage, artifacts in inputs.items():
        for artifact in artifacts:
            try:
                store.place(artifact, path_below(folder, INPUTS, stage, artifact.name))
            except ArtifactLost as error:
                lost.append(failures.LostFile(stage, artifact, error.how))
    if lost:
        raise InputsLost(tuple(lost))


def kind_of(name: str, kinds: Mapping[str, str]) -> str | None:
    """Return an output's kind of artifact, by the longest ending that matches; None where it is not kept."""
    endings = [ending for ending in kinds if name.endswith(ending)]
    return kinds[max(endings, key=len)] if endings else None


def _outcome(attempt: Attempt, result: RunResult, folder: Path, log: Path, timeout_s: float) -> Outcome:
    """Return the outcome of the commands, from how they ended, their outputs and their processes."""
    texts = [failures.read_log(log, command.log_start, command.log_end) for command in result.commands]
    failure = failures.of_commands(result, attempt.commands, texts[-1] if texts else "", timeout_s)
    if failure:
        return Outcome(failure=failure)
    if attempt.gang and attempt.gang.rank > 0:  # the first node's report is about all of them
        return Outcome()
    outcome = _parse(attempt, folder, "\n".join(texts))
    if not _has_outputs(outcome.failure):
        return outcome
    observed = [(command.process, text) for command, text in zip(result.commands, texts, strict=True)]
    of_processes = stage_of(attempt.stage, attempt.settings).observe(attempt.settings, observed)
    return replace(outcome, measurements=(*outcome.measurements, *of_processes))


def _with_variables(outcome: Outcome, attempt: Attempt, environment: Mapping[str, str]) -> Outcome:
    """Add to the measurements' contexts the environment variables that may have made them what they are."""
    for command in attempt.commands:
        environment = {**environment, **command.env}
    variables = conditions(environment, site_variables())
    measurements = tuple(
        replace(measurement, context={**measurement.context, "variables": variables})
        for measurement in outcome.measurements
    )
    return replace(outcome, measurements=measurements)


def _parse(attempt: Attempt, folder: Path, log: str) -> Outcome:
    """Have the stage parse its outputs; a report that it can't read is a failure like any other."""
    try:
        outcome = stage_of(attempt.stage, attempt.settings).parse(attempt.settings, folder)
        for measurement in outcome.measurements:
            _expect_numbers(measurement)
        return outcome
    except (OSError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        return Outcome(failure=failures.of_outputs(attempt.stage, error, traceback.format_exc(), log))


def _expect_numbers(measurement: Measurement) -> None:
    """Raise ValueError for what no database stores: no samples, or NaN or infinity in them or in the context."""
    if not measurement.samples or not all(map(isfinite, measurement.samples)):
        raise ValueError(f"{measurement.metric} should be finite numbers, and is {list(measurement.samples)}")
    json.dumps(dict(measurement.context), allow_nan=False)


def _is_tried_again(failure: Failure | None) -> bool:
    """Whether a failure blames the machine or the cluster, whatever the stage has read."""
    return failure is not None and POLICIES[failure.kind].tries != 1


def _has_outputs(failure: Failure | None) -> bool:
    return failure is None or failure.kind in KINDS_WITH_OUTPUTS


def _publish_log(log: Path, publisher: Publisher) -> tuple[Artifact, ...]:
    """Publish the log as an artifact; where the store takes it not even later, it still lies where it was written."""
    with suppress(OSError, StorageUnusable):
        return publisher.publish([(log, "log")])
    return ()
