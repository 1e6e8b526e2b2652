"""What a head submits by itself, when it is due."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from db import machines, schedules
from db.engine import Database
from db.schedules import IfMissed, Outcome, Run, Schedule
from jobs.errors import HaloError
from jobs.plan import Plan, places_problem, plan
from jobs.spec import JobSpec
from jobs.toolchains import Row
from jobs.variants import On
from orchestrator import known_nodes
from orchestrator.leading import cron

LATE = timedelta(minutes=1)  #: a time that a head comes to later than this was missed

NOBODY_LED = "no head led when it was due"

Toolchains = Callable[[], Mapping[str, Row]]


@dataclass(frozen=True)
class Schedules:
    """The jobs of a database that are submitted again and again."""

    database: Database
    toolchains: Toolchains
    say: Callable[[str], None] = lambda text: None  #: is told in a line of what was submitted, missed or failed

    def submit_due(self, now: datetime) -> list[str]:
        """Submit what is due, each once, and note what was missed; returns the jobs."""
        jobs = []
        for found in schedules.due(self.database, now):
            for run in self._come(found, now):
                self.say(f"schedule {found.name}: {in_words(run)}")
                jobs += [run.job] if run.job else []
        return jobs

    def _come(self, found: Schedule, now: datetime) -> list[Run]:
        assert found.next_at is not None
        due = cron.due(found.cron, found.timezone, found.next_at, now)
        came, is_run = decide(due, found.if_missed, now)
        made: Plan | None = None
        if is_run:
            try:
                made = self._plan(found)
            except (HaloError, ValueError, LookupError) as error:
                reason = str(error).splitlines()[0]
                came = [*came[:-1], Run(due.latest, now, Outcome.FAILED, detail=reason)]
        return schedules.come(self.database, found, due.next, came, made)

    def _plan(self, found: Schedule) -> Plan:
        """As `submit` would plan it now: on the nodes and with the toolchains that there are."""
        spec = JobSpec.model_validate(found.spec)
        nodes = [] if spec.benchmark.on is On.ANY else known_nodes.up_among(machines.nodes(self.database))
        problem = None if spec.benchmark.on is On.ANY else places_problem(spec, nodes)
        if problem:
            raise ValueError(problem)
        return plan(spec, found.model, nodes, self.toolchains())


def in_words(run: Run) -> str:
    """`submitted as job 0a1b2c3d`, `missed 3 times: no head led when it was due`."""
    told = f"submitted as job {run.job}" if run.job else run.outcome.value
    times = f" {run.count} times" if run.count > 1 else ""
    return told + times + (f": {run.detail}" if run.detail else "")


def decide(due: cron.Due, if_missed: IfMissed, now: datetime) -> tuple[Sequence[Run], bool]:
    """What is to be noted, and whether the last of it is a job to be submitted."""
    is_late = now - due.latest > LATE
    is_run = not is_late or if_missed is IfMissed.RUN
    missed = due.missed if is_run else (*due.missed, due.latest)
    noted = [Run(missed[0], now, Outcome.MISSED, len(missed), detail=NOBODY_LED)] if missed else []
    if is_run:
        noted.append(Run(due.latest, now, Outcome.SUBMITTED, detail="late: " + NOBODY_LED if is_late else ""))
    return noted, is_run
