"""Where what a gate compares a task with was measured before: a run tells something beside those of its own device."""

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import Connection, select

from db import tables
from db.identities import SUCCEEDED
from db.imported import DIGEST
from db.values import places_of
from jobs.metrics import METRICS
from jobs.spec import Gate
from jobs.task import Place
from jobs.toolchains import DEFAULT

LATELY = 20  #: runs that are looked at, the newest ones

Spots = tuple[tuple[Place, ...], ...]


def favoured(connection: Connection, jobs: Sequence[str]) -> dict[str, Spots]:
    """By task of these jobs, where the good runs were that it will be held against: where the most were comes first.

    Tasks that say themselves where they run, and those that nothing is known of, are left out.
    """
    columns = tables.jobs.c
    rows = connection.execute(select(columns.id, columns.spec).where(columns.id.in_(jobs))).all()
    gates = {row.id: Gate.model_validate(row.spec["gate"]) for row in rows if row.spec.get("gate")}
    told: dict[tuple[str, str, str], Spots] = {}
    found: dict[str, Spots] = {}
    for job, gate in gates.items():
        for task, *cell in _judged(connection, job, gate) if gate.against != "target" else ():
            key = (cell[0], cell[1], cell[2])
            if key not in told:
                told[key] = _spots(connection, *key)
            if told[key]:
                found[task] = told[key]
    return found


def _judged(connection: Connection, job: str, gate: Gate) -> list[tuple[str, str, str, str]]:
    """The job's tasks that are judged, each with variant, target and stage of what it is held against."""
    cells, stages = tables.cells.c, sorted({METRICS[metric].stage for metric in gate.metrics})
    query = (
        select(cells.task, cells.variant, cells.target, cells.stage, cells.toolchain)
        .join(tables.tasks, tables.tasks.c.id == cells.task)
        .where(cells.job == job, cells.stage.in_(stages), tables.tasks.c.pin.is_(None))
        .order_by(cells.position.desc())
    )
    found = {}
    for row in connection.execute(query):
        name = row.variant
        if gate.toolchain is not None:
            plain = name.removesuffix(f"-{row.toolchain}")
            name = plain if gate.toolchain == DEFAULT else f"{plain}-{gate.toolchain}"
        found[row.task] = (row.task, name, row.target, row.stage)
    return list(found.values())


def _spots(connection: Connection, variant: str, target: str, stage: str) -> Spots:
    cells, attempts = tables.cells.c, tables.attempts.c
    query = (
        select(attempts.places)
        .join(tables.cells, cells.task == attempts.task)
        .where(cells.variant == variant, cells.target == target, cells.stage == stage)
        .where(attempts.outcome == SUCCEEDED, attempts.digest.not_like(f"{DIGEST}%"))
        .order_by(cells.submitted_at.desc(), attempts.id.desc())
        .limit(LATELY)
    )
    counts = Counter(places_of(row.places) for row in connection.execute(query))
    return tuple(places for places, _ in counts.most_common())
