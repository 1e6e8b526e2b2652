"""One filled world that many tests ask, copies of it for those that change something, and empty ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.haloctl import Done, Haloctl, opened, short_folder
from tests.acceptance.jobs import EVERYTHING


@dataclass(frozen=True)
class Filled:
    """A haloctl that has done EVERYTHING, and what `submit --wait` said of it."""

    haloctl: Haloctl
    job: str
    done: Done


@pytest.fixture(scope="session")
def temporary() -> Iterator[Path]:
    """What haloctl and Ray take for /tmp."""
    with short_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def known_model(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder that only knows what was found out about the shipped model."""
    with opened(tmp_path_factory.mktemp("known-model"), temporary) as haloctl:
        haloctl.answer("submit", haloctl.job(**EVERYTHING), "--dry-run")
        return haloctl.data


@pytest.fixture(scope="session")
def filled(temporary: Path, known_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """For reading only."""
    with opened(tmp_path_factory.mktemp("filled"), temporary, known_model) as haloctl:
        done = haloctl.run("submit", haloctl.job(**EVERYTHING), "--wait")
        yield Filled(haloctl, haloctl.only_job()["job"], done)


@pytest.fixture
def fresh(temporary: Path, known_model: Path, tmp_path: Path) -> Iterator[Haloctl]:
    """A haloctl that has done nothing yet."""
    with opened(tmp_path / "fresh", temporary, known_model) as haloctl:
        yield haloctl


@pytest.fixture
def copied(temporary: Path, filled: Filled, tmp_path: Path) -> Iterator[Haloctl]:
    """A haloctl that has done EVERYTHING and may be changed."""
    with opened(tmp_path / "copied", temporary, filled.haloctl.data) as haloctl:
        yield haloctl
