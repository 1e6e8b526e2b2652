"""The table of corpora: each yields its cases from a seeded source of chance, the same ones in each run."""

import random
from collections.abc import Callable, Iterator

from tests.fuzz import checkpoints, command_lines, imported_files, job_files, plausible_jobs, queries
from tests.fuzz.harness import Case

SEED = 20261122

CORPORA: dict[str, Callable[[random.Random], Iterator[Case]]] = {
    "job files": job_files.cases,
    "plausible job files": plausible_jobs.cases,
    "checkpoints": checkpoints.cases,
    "command lines": command_lines.cases,
    "files to import": imported_files.cases,
    "queries": queries.cases,
}

#: How many cases of each corpus `make test` runs, spread over all of them.
SLICES = {
    "job files": 40,
    "plausible job files": 12,
    "checkpoints": 12,
    "command lines": 20,
    "files to import": 24,
    "queries": 20,
}


def cases_of(corpus: str) -> list[Case]:
    """Return all cases of a corpus."""
    return list(CORPORA[corpus](random.Random(SEED)))


def slice_of(corpus: str) -> list[Case]:
    """Return a part of a corpus, with cases of each sort."""
    cases = cases_of(corpus)
    random.Random(SEED).shuffle(cases)
    return cases[: SLICES[corpus]]
