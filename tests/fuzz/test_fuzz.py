"""Whatever comes in, a command ends in time with a right exit code, and no traceback."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.databases import PostgresServer, sqlite_file
from tests.fuzz.case_databases import to_ask, to_import_into
from tests.fuzz.checkpoints import EVIL
from tests.fuzz.corpora import CORPORA, cases_of, slice_of
from tests.fuzz.harness import Harness, harness
from tests.fuzz.job_files import BOMBS


@pytest.fixture(scope="module")
def fuzz(
    tmp_path_factory: pytest.TempPathFactory, sqlite_template: Path, postgres: PostgresServer
) -> Iterator[Harness]:
    folder = tmp_path_factory.mktemp("fuzz")
    with ExitStack() as stack:
        databases = {}
        for kind, opened in (("", to_ask), ("empty ", to_import_into)):
            file = tmp_path_factory.mktemp("databases")
            url = stack.enter_context(sqlite_file(sqlite_template, file))
            databases[f"{kind}sqlite"] = stack.enter_context(opened(url))
            databases[f"{kind}postgres"] = stack.enter_context(opened(stack.enter_context(postgres.new_database())))
        yield stack.enter_context(harness(folder, databases))


@pytest.mark.parametrize("corpus", CORPORA)
def test_a_part_of_the_corpus_raises_and_hangs_nowhere(fuzz: Harness, corpus: str) -> None:
    figures = fuzz.run_all(corpus, slice_of(corpus))
    assert not figures.faults, "\n".join([str(figures), *figures.faults])


def test_what_would_become_too_large_is_refused_within_moments(fuzz: Harness) -> None:
    figures = fuzz.run_all("bombs", [case for case in cases_of("job files") if case.name in BOMBS])
    assert figures.codes == {2: len(BOMBS)}
    assert not figures.faults, "\n".join(figures.faults)


def test_no_code_of_a_checkpoint_runs(fuzz: Harness) -> None:
    figures = fuzz.run_all("checkpoints with code", [case for case in cases_of("checkpoints") if case.name in EVIL])
    assert figures.codes.total() == len(EVIL)
    assert not figures.faults, "\n".join(figures.faults)


@pytest.mark.fuzz
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("corpus", CORPORA)
def test_the_corpus_raises_and_hangs_nowhere(fuzz: Harness, corpus: str) -> None:
    figures = fuzz.run_all(corpus, cases_of(corpus))
    print(f"\n{figures}")
    assert not figures.faults, "\n".join(figures.faults)
