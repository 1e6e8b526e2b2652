"""Probes of a bisection: jobs of one variant under a toolchain or two, and what is read from them."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from db import replanning, reports
from db.measured import measured
from db.reports import TaskRow
from jobs.errors import BadSetting
from jobs.plan import Plan, plan, unplaced
from jobs.spec import JobSpec
from jobs.stages.base import Model
from jobs.state import ACTIVE, OPEN, TaskState
from jobs.task import Pin
from jobs.toolchains import Row
from jobs.variants import Variant
from orchestrator.context import Context
from orchestrator.output import seconds
from orchestrator.repeating.bisection import Verdict
from orchestrator.repeating.predicates import (
    BLAMING,
    Judgement,
    Key,
    Predicate,
    judge_metric,
    judge_stage,
    stages_for,
    work_for,
)
from orchestrator.repeating.verification import pin_of, toolchain_problem
from orchestrator.submitting.submission import store_job
from orchestrator.submitting.waiting import Wait

ROUNDS_LEAST = 4  #: an interval of fewer says little
FRESH = timedelta(days=1)  #: an earlier bisection's probes are its own again for so long


@dataclass(frozen=True)
class Asked:
    """What a bisection is about."""

    spec: JobSpec
    model: Model
    variant: Variant
    predicate: Predicate
    rows: Mapping[str, Row]
    rounds_most: int

    @property
    def stages(self) -> list[str]:
        """Those that the predicate takes."""
        return stages_for(self.predicate, self.variant.engine, self.spec.stages)


@dataclass(frozen=True)
class Probe:
    """One toolchain that was looked at."""

    toolchain: str
    ran: str  #: `export cached, compile 42 s`
    judgement: Judgement
    jobs: tuple[str, ...]
    wall_s: float

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "toolchain": self.toolchain,
            "ran": self.ran,
            "verdict": self.judgement.verdict.value,
            "why": self.judgement.why,
            "jobs": list(self.jobs),
            "seconds": round(self.wall_s, 1),
        }

    def line(self) -> tuple[str, ...]:
        """For people."""
        judgement = self.judgement
        return (
            self.toolchain,
            self.ran,
            judgement.verdict.value,
            ", ".join(self.jobs),
            seconds(self.wall_s),
            judgement.why,
        )


def chosen_variant(spec: JobSpec, model: Model, name: str | None) -> Variant:
    """The first of a job's variants, or the one that is called so; its toolchain does not matter."""
    variants = [variant for one in model.all for variant in unplaced(spec, one)]
    found = [variant for variant in variants if name in (None, variant.name, variant.plain_name)]
    if not found:
        names = ", ".join(dict.fromkeys(variant.plain_name for variant in variants))
        raise BadSetting("--variant", f"the job has no variant {name!r}: it has {names}")
    return found[0]


def probe_spec(asked: Asked, toolchains: Sequence[str], name: str) -> JobSpec:
    """The job with one variant alone, under these toolchains, and no more stages than it takes."""
    variant = asked.variant
    given = asked.spec.model_dump(mode="json")
    variants = {
        **variant.axes,
        "target": variant.target,
        "toolchain": list(toolchains),
    }
    benchmark = {**given["benchmark"], "on": "any"}
    model = asked.model.text
    changes = {
        "model": [model],
        "name": name,
        "stages": asked.stages,
        "variants": variants,
        "benchmark": benchmark,
        "gate": None,
    }
    return JobSpec.model_validate({**given, **changes})


def probe_plan(asked: Asked, spec: JobSpec, pin: Pin | None) -> Plan:
    """Its tasks: those that measure the predicate's metric run anew, in one place."""
    made = plan(spec, asked.model, (), asked.rows)
    if not asked.predicate.metric:
        return made
    stage = asked.predicate.stage
    tasks = (replace(task, is_fresh=True, pin=pin) if task.stage == stage else task for task in made.tasks)
    return replace(made, tasks=tuple(tasks))


@dataclass
class Prober:
    """Looks at one toolchain after another."""

    context: Context
    asked: Asked
    good: str
    wait: Wait
    _pin: Pin | None = None  #: where everything is measured: where the good one was
    probes: list[Probe] = field(default_factory=list)

    def probe(self, toolchain: str) -> Verdict:
        """Its verdict; how that came about is in `probes`."""
        began = time.monotonic()
        if self.asked.predicate.metric and toolchain != self.good:
            judgement, jobs = self._measure(toolchain)
        else:
            judgement, jobs = self._run_alone(toolchain)
        tasks = [task for job in jobs for task in self._tasks(job, toolchain)]
        self.probes.append(Probe(toolchain, _ran(tasks), judgement, jobs, time.monotonic() - began))
        return judgement.verdict

    def _run_alone(self, toolchain: str) -> tuple[Judgement, tuple[str, ...]]:
        """A stage's probe, or the first measurement of the good one, which says where the others are made."""
        name = f"bisect {self.asked.variant.plain_name} {toolchain}"
        job = self._job(name, (toolchain,))
        tasks = reports.tasks(self.context.database, job)
        judgement = judge_stage(self.asked.predicate, tasks)
        if toolchain == self.good and self.asked.predicate.metric and judgement.verdict is Verdict.GOOD:
            self._pin = pin_of(reports.attempt(self.context.database, str(tasks[-1].attempt)))
            judgement = Judgement(Verdict.GOOD, "what the others are compared with")
        return judgement, (job,)

    def _measure(self, toolchain: str) -> tuple[Judgement, tuple[str, ...]]:
        """Good and candidate in turns, each in a fresh process, until it is decided: AB, BA, AB, ..."""
        jobs: list[str] = []
        pairs: dict[Key, list[tuple[float, float]]] = {}
        least = 1 if self.asked.predicate.is_steady else ROUNDS_LEAST
        most = 1 if self.asked.predicate.is_steady else max(self.asked.rounds_most, least)
        for number in range(1, most + 1):
            order = (self.good, toolchain) if number % 2 else (toolchain, self.good)
            job = self._job(f"bisect {self.asked.variant.plain_name} {toolchain} against {self.good} {number}", order)
            jobs.append(job)
            tasks = {name: self._tasks(job, name) for name in order}
            for name in (self.good, toolchain):
                judgement = judge_stage(self.asked.predicate, tasks[name])
                if judgement.verdict is not Verdict.GOOD:
                    return judgement, tuple(jobs)
            medians = [self._medians(tasks[name][-1]) for name in (self.good, toolchain)]
            for key in filter(medians[1].__contains__, medians[0]):
                pairs.setdefault(key, []).append((medians[0][key], medians[1][key]))
            if number >= least and (decided := judge_metric(self.asked.predicate, pairs, is_last=number == most)):
                return decided, tuple(jobs)
        raise AssertionError("the last round decides")

    def _medians(self, task: TaskRow) -> dict[Key, float]:
        found = measured(self.context.database, str(task.attempt))
        metric = self.asked.predicate.metric
        return {(one.batch, one.prompt_tokens): one.median for one in found if one.metric == metric}

    def _tasks(self, job: str, toolchain: str) -> list[TaskRow]:
        return work_for(toolchain, self.asked.predicate.stage, reports.tasks(self.context.database, job))

    def _job(self, name: str, toolchains: Sequence[str]) -> str:
        """A job that was run to its end: an earlier one of the same bisection where that will do."""
        spec = probe_spec(self.asked, toolchains, name)
        job = self._earlier(spec) or self._submit(spec)
        if any(task.state in OPEN | ACTIVE for task in reports.tasks(self.context.database, job)):
            self.wait(job)
        return job

    def _earlier(self, spec: JobSpec) -> str | None:
        wanted = spec.model_dump(mode="json")
        for job in replanning.jobs_named(self.context.database, spec.name):
            is_recent = datetime.now(UTC) - reports.job(self.context.database, job).submitted_at < FRESH
            if is_recent and reports.job_spec(self.context.database, job) == wanted:
                tasks = reports.tasks(self.context.database, job)
                if all(_says_something(task) and self._is_as_now(task) for task in tasks):
                    return job
        return None

    def _is_as_now(self, task: TaskRow) -> bool:
        """Whether its toolchain's name still stands for what it ran under."""
        if task.attempt is None:
            return True
        return toolchain_problem(self.context, reports.attempt(self.context.database, task.attempt)) is None

    def _submit(self, spec: JobSpec) -> str:
        return store_job(self.context.store, spec, self.asked.model, probe_plan(self.asked, spec, self._pin))


def _says_something(task: TaskRow) -> bool:
    """Whether nothing is to be had from running it again."""
    if task.state is TaskState.FAILED:
        return task.failure is not None and task.failure.kind in BLAMING
    return task.state is not TaskState.CANCELLED


def _ran(tasks: Sequence[TaskRow]) -> str:
    """What was done for a probe: `export cached, compile 42 s`; of several rounds together."""
    took: dict[str, float] = {}
    for task in tasks:
        is_own = task.attempts > 0 and task.started_at is not None and task.ended_at is not None
        took.setdefault(task.stage, 0.0)
        if is_own and not task.cached_from:
            took[task.stage] += (task.ended_at - task.started_at).total_seconds()  # type: ignore[operator]
    return ", ".join(f"{stage} {seconds(wall_s) if wall_s else 'cached'}" for stage, wall_s in took.items())
