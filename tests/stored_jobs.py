"""Jobs to put into a database, and steps that bring their tasks where a test wants them."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import select

from db.connection.engine import Database
from db.schema.ids import epoch_of
from db.schema.tables import metadata
from db.store import CacheHit, NewAttempt, OpenTask, Store, Submission
from jobs.job_file.spec import JobSpec
from jobs.plan import plan
from jobs.stages.base import Model
from jobs.state import Failure, FailureKind, TaskState
from jobs.task import Artifact, Attempt, Command, Device, Measurement, Pin, Place, Process, TaskResult
from jobs.toolchains import Toolchain

NOON = datetime(2025, 11, 21, 12, tzinfo=UTC)
TINY = Model("tiny-llama", "tiny-llama", "d" * 64, 1_300_000)
TOOLCHAIN = Toolchain("default", {"torch": "2.13.0"}, host_cpu="znver4", programs="p" * 64)
DIGEST = "f" * 64
LOST = Failure(FailureKind.NODE_LOST, "node a is gone")
BROKEN = Failure(FailureKind.TOOL_FAILED, "model.mlir:7:3: error: no", "the log's end")
LOG = Artifact("log", "log", "1" * 64, 10)
VMFB = Artifact("model.vmfb", "vmfb", "2" * 64, 1 << 40)
NUMBERS = (
    Measurement("ttft_ms", (3.0, 1.0, 2.5), {"batch": 1, "prompt_tokens": 64, "warmup_ms": [9.0]}),
    Measurement("compile_s", (12.0,)),
)


class Clock:
    """A time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def passes(self, **by: float) -> None:
        self.now += timedelta(**by)


def spec_of(**changes: Any) -> JobSpec:
    return JobSpec.model_validate({"name": "tiny", "model": "tiny-llama"} | changes)


def submit(
    store: Store,
    *,
    model: Model = TINY,
    priority: int = 0,
    job_timeout_s: float | None = None,
    submitted_by: str = "ada",
    pin: Pin | None = None,
    reuse_measurements: bool = False,
    **changes: Any,
) -> str:
    """Submit a job; by default one variant for cpu, five tasks: export, compile, invoke, numerics, benchmark."""
    spec = spec_of(**changes)
    made = plan(spec, model)
    return store.submit(
        Submission(
            plan=replace(made, tasks=tuple(replace(task, pin=pin) for task in made.tasks)),
            name=spec.name,
            spec=spec.model_dump(mode="json"),
            model=model,
            submitted_by=submitted_by,
            timeout_s=spec.timeout,
            reuse=True,
            reuse_measurements=reuse_measurements,
            priority=priority,
            job_timeout_s=job_timeout_s,
        )
    )


def open_task(store: Store, task: str) -> OpenTask:
    return next(row for row in store.snapshot().tasks if row.id == task)


DEVICES = (Device("cpu", 0, "s0"), Device("cpu", 1, "s1"))


def attempt_of(task: OpenTask, devices: tuple[Device, ...] = DEVICES) -> Attempt:
    epoch = task.epoch + 1
    return Attempt(
        id=f"{task.id}-{epoch}",
        epoch=epoch,
        stage=task.stage,
        settings=task.settings,
        commands=(Command(("iree-compile", "a b"), {"OMP_NUM_THREADS": "1"}),),
        inputs={"export": (Artifact("model.mlir", "mlir", "3" * 64, 5),)},
        places=(Place("a", devices),),
        timeout_s=60.0,
    )


def begun(attempt: Attempt, term: int | None = None, digest: str = DIGEST) -> NewAttempt:
    return NewAttempt(attempt, TOOLCHAIN, digest, term)


def start(store: Store, task: str, digest: str = DIGEST, term: int | None = None) -> Attempt:
    """Queue a task if need be, and start it."""
    store.queue([task])
    attempt = attempt_of(open_task(store, task))
    assert store.start([begun(attempt, term, digest)]) == {attempt.id}
    return attempt


def result_of(
    attempt: Attempt,
    failure: Failure | None = None,
    measurements: Sequence[Measurement] = NUMBERS,
    warnings: Sequence[str] = ("no v_mfma in decode",),
    duration_s: float | None = 0.5,
) -> TaskResult:
    return TaskResult(
        attempt=attempt.id,
        epoch=attempt.epoch,
        failure=failure,
        artifacts=(LOG,) if failure else (LOG, VMFB),
        measurements=tuple(measurements),
        warnings=tuple(warnings),
        processes=(Process(("iree-compile", "a b"), 1 if failure else 0, 0.5, 1 << 33),),
        environment={"PATH": "/bin"},
        versions={"torch": "2.13.1"},
        duration_s=duration_s,
    )


def finish(store: Store, result: TaskResult) -> TaskState | None:
    """Store the result of a task; None when the attempt was given up or is stored already."""
    return store.finish([result]).get(result.attempt)


def give_back(store: Store, attempt: str, failure: Failure = LOST) -> TaskState | None:
    """End an attempt without a result, as heads do; returns the same as `finish`."""
    return finish(store, TaskResult(attempt, epoch_of(attempt), failure))


def succeed(store: Store, task: str, digest: str = DIGEST, measurements: Sequence[Measurement] = NUMBERS) -> None:
    finish(store, result_of(start(store, task, digest), measurements=measurements))


def fail(store: Store, task: str, failure: Failure = BROKEN) -> None:
    finish(store, result_of(start(store, task), failure))


def bring(store: Store, task: str, state: TaskState) -> None:
    """Bring a pending task to a state by the usual transitions."""
    ways: dict[TaskState, list[Any]] = {
        TaskState.PENDING: [],
        TaskState.QUEUED: [lambda: store.queue([task])],
        TaskState.RUNNING: [lambda: start(store, task)],
        TaskState.CANCELLING: [lambda: start(store, task), lambda: store.request_cancel(task)],
        TaskState.SUCCEEDED: [lambda: succeed(store, task)],
        TaskState.CACHED: [lambda: _take_over(store, task)],
        TaskState.FAILED: [lambda: fail(store, task)],
        TaskState.BLOCKED: [lambda: store.block({task: "export failed"})],
        TaskState.CANCELLED: [lambda: store.request_cancel(task)],
    }
    for step in ways[state]:
        step()


def _take_over(store: Store, task: str) -> None:
    earlier = f"{submit(store)}-01"
    succeed(store, earlier, "e" * 64)
    store.queue([task])
    store.record_cache_hits([CacheHit(task, "e" * 64, earlier)])


def everything(database: Database) -> dict[str, list[tuple[Any, ...]]]:
    """All rows of all tables: equal before and after what must change nothing."""
    with database.reading() as connection:
        return {
            table.name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for table in metadata.sorted_tables
        }
