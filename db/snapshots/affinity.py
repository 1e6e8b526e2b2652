"""The devices that tasks of gated jobs prefer: those of the earlier runs that the gate compares them with."""

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import Connection, select

from db.reads.identities import SUCCEEDED
from db.schema import tables
from db.schema.imported import DIGEST
from db.schema.values import places_of
from jobs.metrics import stage_of_metric
from jobs.sections import GateSection
from jobs.task import Place
from jobs.toolchains import DEFAULT

RECENT_RUNS = 20  #: how many of the newest runs count

Alternatives = tuple[tuple[Place, ...], ...]


def preferred_places(connection: Connection, jobs: Sequence[str]) -> dict[str, Alternatives]:
    """Return, by task of these jobs, the places of the good runs that it will be compared with, the most used first.

    Pinned tasks and tasks without earlier runs are left out.
    """
    columns = tables.jobs.c
    rows = connection.execute(select(columns.id, columns.spec).where(columns.id.in_(jobs))).all()
    gates = {row.id: GateSection.model_validate(row.spec["gate"]) for row in rows if row.spec.get("gate")}
    places_by_cell: dict[tuple[str, str, str], Alternatives] = {}
    preferred: dict[str, Alternatives] = {}
    for job, gate in gates.items():
        for task, *cell in _gated_tasks(connection, job, gate) if gate.against != "target" else ():
            key = (cell[0], cell[1], cell[2])
            if key not in places_by_cell:
                places_by_cell[key] = _places_of_runs(connection, *key)
            if places_by_cell[key]:
                preferred[task] = places_by_cell[key]
    return preferred


def _gated_tasks(connection: Connection, job: str, gate: GateSection) -> list[tuple[str, str, str, str]]:
    """Return the job's gated tasks, each with variant, target and stage of the runs that it is compared with."""
    cells, stages = tables.cells.c, sorted(map(stage_of_metric, gate.timings))
    query = (
        select(cells.task, cells.variant, cells.target, cells.stage, cells.toolchain)
        .join(tables.tasks, tables.tasks.c.id == cells.task)
        .where(cells.job == job, cells.stage.in_(stages), tables.tasks.c.pin.is_(None))
        .order_by(cells.position.desc())
    )
    gated = {}
    for row in connection.execute(query):
        name = row.variant
        if gate.toolchain is not None:
            plain = name.removesuffix(f"-{row.toolchain}")
            name = plain if gate.toolchain == DEFAULT else f"{plain}-{gate.toolchain}"
        gated[row.task] = (row.task, name, row.target, row.stage)
    return list(gated.values())


def _places_of_runs(connection: Connection, variant: str, target: str, stage: str) -> Alternatives:
    cells, attempts = tables.cells.c, tables.attempts.c
    query = (
        select(attempts.places)
        .join(tables.cells, cells.task == attempts.task)
        .where(cells.variant == variant, cells.target == target, cells.stage == stage)
        .where(attempts.outcome == SUCCEEDED, attempts.digest.not_like(f"{DIGEST}%"))
        .order_by(cells.submitted_at.desc(), attempts.id.desc())
        .limit(RECENT_RUNS)
    )
    counts = Counter(places_of(row.places) for row in connection.execute(query))
    return tuple(places for places, _ in counts.most_common())
