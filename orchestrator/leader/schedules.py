"""Submits scheduled jobs when they are due."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from db.connection.engine import Database
from db.reads import machines
from db.writes import schedules
from db.writes.schedules import IfMissed, Schedule, ScheduleOutcome, ScheduleRun
from jobs.errors import HaloError, Unreachable
from jobs.job_file.job_checks import extent_problem, places_problem
from jobs.job_file.spec import JobSpec
from jobs.plan import Plan, plan
from jobs.state import internal_failure
from jobs.toolchains import ToolchainSpec
from jobs.variants import BenchmarkPlacement
from orchestrator import known_nodes
from orchestrator.leader import cron
from orchestrator.leader.isolation import failures_of_each
from workers import daemon_log

logger = daemon_log.logger(__name__)

LATE = timedelta(minutes=1)  #: a time that is handled later than this was missed

NOBODY_LED = "no head led when it was due"

Toolchains = Callable[[], Mapping[str, ToolchainSpec]]


@dataclass(frozen=True)
class Schedules:
    """The schedules of a database."""

    database: Database
    toolchains: Toolchains

    def submit_due(self, now: datetime) -> list[str]:
        """Submit what is due, each schedule once, and record what was missed; return the jobs.

        A schedule for which that raises is paused.
        """
        jobs: list[str] = []

        def handle(name: str) -> None:
            schedule = schedules.find_due(self.database, name, now)
            for run in self._handle_due(schedule, now) if schedule else ():
                level = logging.INFO if run.job else logging.WARNING
                logger.log(level, "schedule %s: %s", name, format_run(run), job=run.job)
                jobs.extend([run.job] if run.job else [])

        for name, failure in failures_of_each(schedules.due(self.database, now), handle):
            schedules.pause_broken(self.database, name, now, failure.message)
            logger.error("schedule %s: paused: %s", name, failure.message)
        return jobs

    def _handle_due(self, schedule: Schedule, now: datetime) -> list[ScheduleRun]:
        assert schedule.next_at is not None
        due = cron.due(schedule.cron, schedule.timezone, schedule.next_at, now)
        came, is_run = decide(due, schedule.if_missed, now)
        made: Plan | None = None
        if is_run:
            try:
                made = self._plan(schedule)
            except Unreachable:
                raise
            except Exception as error:
                is_known = isinstance(error, HaloError | ValueError | LookupError)
                reason = str(error).splitlines()[0] if is_known and str(error) else internal_failure(error).message
                came = [*came[:-1], ScheduleRun(due.latest, now, ScheduleOutcome.FAILED, detail=reason)]
        return schedules.record_runs(self.database, schedule, due.next, came, made)

    def _plan(self, schedule: Schedule) -> Plan:
        """Plan a job as `submit` would now, with the current nodes and toolchains."""
        spec = JobSpec.model_validate(schedule.spec)
        if problem := extent_problem(spec):
            raise ValueError(problem.message)
        is_placed = spec.benchmark.on is not BenchmarkPlacement.ANY
        nodes = known_nodes.up_nodes_of(machines.nodes(self.database)) if is_placed else []
        if is_placed and (problem := places_problem(spec, nodes)):
            raise ValueError(problem.message)
        return plan(spec, schedule.model, nodes, self.toolchains())


def format_run(run: ScheduleRun) -> str:
    """Format a run as `submitted as job 0a1b2c3d` or `missed 3 times: no head led when it was due`."""
    text = f"submitted as job {run.job}" if run.job else run.outcome.value
    times = f" {run.count} times" if run.count > 1 else ""
    return text + times + (f": {run.detail}" if run.detail else "")


def decide(due: cron.Due, if_missed: IfMissed, now: datetime) -> tuple[Sequence[ScheduleRun], bool]:
    """Return the runs to record, and whether the last of them is a job to submit."""
    is_late = now - due.latest > LATE
    is_run = not is_late or if_missed is IfMissed.RUN
    missed = due.missed if is_run else (*due.missed, due.latest)
    noted = [ScheduleRun(missed[0], now, ScheduleOutcome.MISSED, len(missed), detail=NOBODY_LED)] if missed else []
    if is_run:
        noted.append(
            ScheduleRun(due.latest, now, ScheduleOutcome.SUBMITTED, detail="late: " + NOBODY_LED if is_late else "")
        )
    return noted, is_run
