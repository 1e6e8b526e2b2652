"""The probes of a bisection: jobs of one variant under a toolchain or two, and what is read from them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from db.reads import replanning, reports
from db.reads.earlier_measurements import measurements_of
from db.reads.reports import TaskRow
from jobs.errors import BadSetting
from jobs.job_file.spec import JobSpec
from jobs.plan import Plan, plan, unpinned_variants
from jobs.stages.base import Model
from jobs.state import ACTIVE, OPEN, TaskState
from jobs.task import Pin
from jobs.toolchains import ToolchainSpec
from jobs.variants import Variant
from orchestrator.context import Context
from orchestrator.follow.waiting import FollowJob
from orchestrator.formatting import format_duration
from orchestrator.reruns.bisection import Mark
from orchestrator.reruns.predicates import (
    BLAMING,
    Key,
    Predicate,
    ProbeJudgement,
    judge_metric,
    judge_stage,
    stages_for,
    work_for,
)
from orchestrator.reruns.verification import pin_of, toolchain_problem
from orchestrator.submission.preparation import store_job
from orchestrator.submission.single_variant import spec_of_variant

MIN_ROUNDS = 4  #: an interval of fewer says little
MAX_PROBE_AGE = timedelta(days=1)  #: up to which an interrupted bisection's probes are used again


@dataclass(frozen=True)
class BisectionRequest:
    """What a bisection searches, and by which job."""

    spec: JobSpec
    model: Model
    variant: Variant
    predicate: Predicate
    rows: Mapping[str, ToolchainSpec]
    max_rounds: int

    @property
    def stages(self) -> list[str]:
        """The stages that the predicate needs."""
        return stages_for(self.predicate, self.variant.engine, self.spec.stages)


@dataclass(frozen=True)
class ProbeResult:
    """The probe of one toolchain."""

    toolchain: str
    ran: str  #: `export cached, compile 42 s`
    judgement: ProbeJudgement
    jobs: tuple[str, ...]
    wall_s: float

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "toolchain": self.toolchain,
            "ran": self.ran,
            "verdict": self.judgement.mark.value,
            "why": self.judgement.why,
            "jobs": list(self.jobs),
            "seconds": round(self.wall_s, 1),
        }

    def line(self) -> tuple[str, ...]:
        """Return its line of a table for people."""
        judgement = self.judgement
        return (
            self.toolchain,
            self.ran,
            judgement.mark.value,
            ", ".join(self.jobs),
            format_duration(self.wall_s),
            judgement.why,
        )


def chosen_variant(spec: JobSpec, model: Model, name: str | None) -> Variant:
    """Return the job's first variant, or the one with this name whatever its toolchain; raise BadSetting."""
    variants = [variant for single in model.all for variant in unpinned_variants(spec, single)]
    named = [variant for variant in variants if name in (None, variant.name, variant.plain_name)]
    if not named:
        names = ", ".join(dict.fromkeys(variant.plain_name for variant in variants))
        raise BadSetting("--variant", f"the job has no variant {name!r}: it has {names}")
    return named[0]


def probe_spec(request: BisectionRequest, toolchains: Sequence[str], name: str) -> JobSpec:
    """Return the job with only the variant, under these toolchains, and only the stages that are needed."""
    variants = {"toolchain": list(toolchains)}
    return spec_of_variant(request.spec, request.variant, request.model, request.stages, name=name, variants=variants)


def probe_plan(request: BisectionRequest, spec: JobSpec, pin: Pin | None) -> Plan:
    """Plan its tasks; those that measure the predicate's metric run in one place and never come from the cache."""
    planned = plan(spec, request.model, (), request.rows)
    if not request.predicate.metric:
        return planned
    stage = request.predicate.stage
    tasks = (replace(task, is_fresh=True, pin=pin) if task.stage == stage else task for task in planned.tasks)
    return replace(planned, tasks=tuple(tasks))


@dataclass
class Prober:
    """Probes one toolchain after another."""

    context: Context
    request: BisectionRequest
    good: str
    wait: FollowJob
    _pin: Pin | None = None  #: where all are measured: where the good one was
    probes: list[ProbeResult] = field(default_factory=list)

    def probe(self, toolchain: str) -> Mark:
        """Run what tells about a toolchain and return its mark; `probes` has the details."""
        began = time.monotonic()
        if self.request.predicate.metric and toolchain != self.good:
            judgement, jobs = self._measure(toolchain)
        else:
            judgement, jobs = self._run_alone(toolchain)
        tasks = [task for job in jobs for task in self._tasks(job, toolchain)]
        self.probes.append(ProbeResult(toolchain, _ran(tasks), judgement, jobs, time.monotonic() - began))
        return judgement.mark

    def _run_alone(self, toolchain: str) -> tuple[ProbeJudgement, tuple[str, ...]]:
        """Probe a stage, or measure the good toolchain first, which decides where the others are measured."""
        name = f"bisect {self.request.variant.plain_name} {toolchain}"
        job = self._job(name, (toolchain,))
        tasks = reports.tasks(self.context.database, job)
        judgement = judge_stage(self.request.predicate, tasks, self._values(tasks[-1]))
        if toolchain == self.good and self.request.predicate.metric and judgement.mark is Mark.GOOD:
            self._pin = pin_of(reports.attempt(self.context.database, str(tasks[-1].attempt)))
            judgement = ProbeJudgement(Mark.GOOD, "what the others are compared with")
        return judgement, (job,)

    def _measure(self, toolchain: str) -> tuple[ProbeJudgement, tuple[str, ...]]:
        """Measure good and candidate interleaved (AB, BA, AB, ...), each in a fresh process, until it is decided."""
        jobs: list[str] = []
        pairs: dict[Key, list[tuple[float, float]]] = {}
        min_rounds = 1 if self.request.predicate.is_deterministic else MIN_ROUNDS
        max_rounds = 1 if self.request.predicate.is_deterministic else max(self.request.max_rounds, min_rounds)
        for number in range(1, max_rounds + 1):
            order = (self.good, toolchain) if number % 2 else (toolchain, self.good)
            job = self._job(f"bisect {self.request.variant.plain_name} {toolchain} against {self.good} {number}", order)
            jobs.append(job)
            tasks = {name: self._tasks(job, name) for name in order}
            for name in (self.good, toolchain):
                judgement = judge_stage(self.request.predicate, tasks[name])
                if judgement.mark is not Mark.GOOD:
                    return judgement, tuple(jobs)
            medians = [self._medians(tasks[name][-1]) for name in (self.good, toolchain)]
            for key in filter(medians[1].__contains__, medians[0]):
                pairs.setdefault(key, []).append((medians[0][key], medians[1][key]))
            is_last = number == max_rounds
            if number >= min_rounds and (decided := judge_metric(self.request.predicate, pairs, is_last=is_last)):
                return decided, tuple(jobs)
        raise AssertionError("the last round decides")

    def _values(self, task: TaskRow) -> list[tuple[str, float]]:
        """Return the medians of a task's metrics, in each workload."""
        measurements = measurements_of(self.context.database, task.attempt) if task.attempt else ()
        return [(measurement.metric, measurement.median) for measurement in measurements]

    def _medians(self, task: TaskRow) -> dict[Key, float]:
        metric = self.request.predicate.metric
        return {
            measurement.key[1:]: measurement.median
            for measurement in measurements_of(self.context.database, str(task.attempt))
            if measurement.metric == metric
        }

    def _tasks(self, job: str, toolchain: str) -> list[TaskRow]:
        return work_for(toolchain, self.request.predicate.stage, reports.tasks(self.context.database, job))

    def _job(self, name: str, toolchains: Sequence[str]) -> str:
        """Return a job that ran to its end: an earlier one of the same bisection if still valid, else a new one."""
        spec = probe_spec(self.request, toolchains, name)
        job = self._earlier(spec) or self._submit(spec)
        if any(task.state in OPEN | ACTIVE for task in reports.tasks(self.context.database, job)):
            self.wait(job)
        return job

    def _earlier(self, spec: JobSpec) -> str | None:
        wanted = spec.model_dump(mode="json")
        for job in replanning.jobs_named(self.context.database, spec.name):
            is_recent = datetime.now(UTC) - reports.job(self.context.database, job).submitted_at < MAX_PROBE_AGE
            if is_recent and reports.job_spec(self.context.database, job) == wanted:
                tasks = reports.tasks(self.context.database, job)
                if all(_is_conclusive(task) and self._has_same_toolchain(task) for task in tasks):
                    return job
        return None

    def _has_same_toolchain(self, task: TaskRow) -> bool:
        """Whether its toolchain's name still means what it ran under."""
        if task.attempt is None:
            return True
        return toolchain_problem(self.context, reports.attempt(self.context.database, task.attempt)) is None

    def _submit(self, spec: JobSpec) -> str:
        return store_job(self.context.store, spec, self.request.model, probe_plan(self.request, spec, self._pin))


def _is_conclusive(task: TaskRow) -> bool:
    """Whether running it again would tell nothing new."""
    if task.state is TaskState.FAILED:
        return task.failure is not None and task.failure.kind in BLAMING
    return task.state is not TaskState.CANCELLED


def _ran(tasks: Sequence[TaskRow]) -> str:
    """Return `export cached, compile 42 s`: what ran for a probe, over all its rounds."""
    duration_by_stage_s: dict[str, float] = {}
    for task in tasks:
        took_s = 0.0 if task.cached_from else task.duration_s or 0.0
        duration_by_stage_s[task.stage] = duration_by_stage_s.get(task.stage, 0.0) + took_s
    return ", ".join(
        f"{stage} {format_duration(took_s) if took_s else 'cached'}" for stage, took_s in duration_by_stage_s.items()
    )
