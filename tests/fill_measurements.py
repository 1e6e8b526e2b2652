"""Fills a database with years of nightly jobs: `python -m tests.fill_measurements URL 1000000`.

A first night is submitted and run as heads do; every other night is a copy of its rows with different ids, times and
samples.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from typing import Any

from sqlalchemy import Connection, func, insert, select

from db.connection.engine import Database, open_database
from db.schema import tables
from db.schema.ids import job_of
from db.store import Store
from jobs.models import safe_name
from jobs.stages.base import Model
from jobs.state import Failure, FailureKind
from jobs.task import Device, Measurement
from tests.stored_jobs import NOON, finish, result_of, start, submit

MODELS = ("llama3.1-8B", "llama3.1-70B", "llama3.1-405B", "granite-3-8B")
VARIANTS = {"precision": ["f16", "bf16"], "tp": [1, 2, 4, 8], "target": ["mi300x"]}
WORKLOADS = [(batch, prompt_tokens) for batch in (1, 4) for prompt_tokens in (128, 2048)]
DEVICES = tuple(Device("mi300x", index, f"serial{index}", 192 << 30) for index in range(8))
NIGHT = timedelta(days=1)
NOISE = 0.02  #: of a run's median, as a share of it
REPETITIONS = 5
SLOWER_SINCE, SLOWER = 0.6, 1.05  #: from that part of the nights on, the first model is so many times as slow
FAILED = Failure(FailureKind.TOOL_FAILED, "failed to legalize operation 'stream.async.dispatch'", "error: no such op")
COPIED = (tables.jobs, tables.tasks, tables.cells, tables.attempts, tables.artifacts)

Row = dict[str, Any]


@dataclass(frozen=True)
class Night:
    """One of them, and how its ids and times differ from the first's."""

    number: int
    of: int

    def id(self, stored: str) -> str:
        """A job's, or what begins with a job's: four digits are another number each night, the rest the first one's."""
        return f"{int(stored[:4], 16) ^ self.number:04x}{stored[4:]}"

    def time(self, stored: datetime | None) -> datetime | None:
        """Nights follow each other."""
        return stored and stored + self.number * NIGHT

    @property
    def is_slower(self) -> bool:
        """The first model is, from one night on."""
        return self.number > SLOWER_SINCE * self.of


def fill(url: str, measurements: int) -> int:
    """Returns how many measurements there are in the end: whole nights."""
    with open_database(url, create=True) as database:
        first_night(Store(database, lambda: NOON))
        rows = {table.name: _rows(database, table) for table in (*COPIED, tables.measurements)}
        count = math.ceil(measurements / len(rows["measurements"]))
        random = Random(0)
        for number in range(1, count):
            with database.writing() as connection:
                _copy(connection, rows, Night(number, count), random)
        return _settled(database)


def first_night(store: Store) -> None:
    """A job for each model, all of it done but one variant of the last model, which fails."""
    for number, name in enumerate(MODELS):
        model = Model(safe_name(name), name, f"{number}" * 64, 8 << 30)
        workload = {"batch": [1, 4], "prompt_tokens": [128, 2048], "new_tokens": 128}
        job = submit(store, model=model, name=f"nightly {name}", variants=VARIANTS, workload=workload)
        for task in [row for row in store.snapshot().tasks if row.job == job]:
            attempt = start(store, task.id)
            fails = number == len(MODELS) - 1 and task.stage == "compile" and "TP8" in task.subject
            finish(store, result_of(attempt, FAILED if fails else None, numbers_of(task.stage, number), ()))
        for task in [row for row in store.snapshot().tasks if row.job == job]:
            store.block({task.id: "compile failed"})


def numbers_of(stage: str, model: int) -> list[Measurement]:
    """About as many as stages make."""
    size = 2.0**model
    alone = {
        "export": {"trace_s": 9.0, "parameters_s": 90.0, "export_peak_bytes": 9e9, "mlir_bytes": 1e6},
        "compile": {"compile_s": 60.0, "compile_peak_bytes": 4e9, "vmfb_bytes": 3e6},
        "invoke": {"load_s": 5.0},
        "numerics": {"max_logit_diff": 0.1, "kl_mean": 0.001, "perplexity": 9.0, "perplexity_increase_percent": 0.1},
    }.get(stage, {})
    timed = {"ttft_ms": 200.0, "itl_ms": 9.6, "prefill_tokens_per_s": 9e3, "decode_tokens_per_s": 100.0}
    return [
        *(Measurement(metric, (value * size,)) for metric, value in alone.items()),
        *(
            Measurement(
                metric,
                (value * size,) * REPETITIONS,
                {"batch": batch, "prompt_tokens": prompt_tokens, "new_tokens": 128, "warmup_ms": [value]},
            )
            for batch, prompt_tokens in (WORKLOADS if stage == "benchmark" else ())
            for metric, value in timed.items()
        ),
    ]


def _rows(database: Database, table: Any) -> list[Row]:
    with database.reading() as connection:
        return [dict(row) for row in connection.execute(select(table)).mappings()]


def _copy(connection: Connection, rows: dict[str, list[Row]], night: Night, random: Random) -> None:
    for table in COPIED:
        connection.execute(insert(table), [_moved(row, night) for row in rows[table.name]])
    slow = {row["id"] for row in rows["jobs"] if row["model"] == MODELS[0] and night.is_slower}
    connection.execute(insert(tables.measurements), list(_measured(rows["measurements"], slow, night, random)))


def _moved(row: Row, night: Night) -> Row:
    moved = {name: night.id(row[name]) for name in ("id", "job", "task", "attempt") if row.get(name)}
    times = {name: night.time(value) for name, value in row.items() if isinstance(value, datetime)}
    needs = {"needs": [night.id(need) for need in row["needs"]]} if "needs" in row else {}
    return {**row, **moved, **times, **needs}


def _measured(rows: Sequence[Row], slow: set[str], night: Night, random: Random) -> Iterator[Row]:
    for row in rows:
        is_slower = job_of(job_of(row["attempt"])) in slow and row["unit"] == "ms"
        median = row["median"] * random.gauss(SLOWER if is_slower else 1.0, NOISE)
        yield {
            **{name: value for name, value in row.items() if name != "id"},
            "attempt": night.id(row["attempt"]),
            "median": median,
            "samples": [
                median * (1 + 0.01 * (number - len(row["samples"]) // 2)) for number in range(len(row["samples"]))
            ],
        }


def _settled(database: Database) -> int:
    """Analyze the database, as a server does by itself a minute later, and a file never."""
    with database.writing() as connection:
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql("ANALYZE")
        return connection.scalar(select(func.count()).select_from(tables.measurements)) or 0


if __name__ == "__main__":
    print(fill(sys.argv[1], int(sys.argv[2])))  # noqa: T201
