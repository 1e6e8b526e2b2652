"""One filled world that many tests ask, copies of it for those that change something, and empty ones."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tests.acceptance.haloctl import Done, Haloctl, left_in, opened, short_folder
from tests.acceptance.job_specs import EVERYTHING, ONE_EXPORT
from tests.side_by_side import made_once


@dataclass(frozen=True)
class Filled:
    """A haloctl that has done EVERYTHING, the output of `submit --wait`, and what that left in its temporary folder."""

    haloctl: Haloctl
    job: str
    done: Done
    left: list[str]


@pytest.fixture(scope="session")
def temporary() -> Iterator[Path]:
    """A folder that haloctl and Ray use in place of /tmp."""
    with short_folder() as folder:
        yield folder


@pytest.fixture(scope="session")
def known_model(temporary: Path, common_folder: Path) -> Path:
    """A data folder that holds only the cached inspection of the shipped model."""

    def make(folder: Path) -> None:
        with opened(folder, temporary) as haloctl:
            for job in (EVERYTHING, ONE_EXPORT):  # one asks how it is split over 1 and 2 devices, the other over 1
                haloctl.answer("submit", haloctl.job(**job), "--dry-run")

    return made_once(common_folder / "known-model", make) / "data"


@pytest.fixture(scope="session")
def origin(known_model: Path, common_folder: Path) -> Path:
    """A folder with a haloctl that has done EVERYTHING; tests only copy it."""

    def make(folder: Path) -> None:
        with short_folder() as temporary, opened(folder, temporary, known_model) as haloctl:
            done = haloctl.run("submit", haloctl.job(**EVERYTHING), "--wait")
            haloctl.until_gone()  # no process is left
            left = [path.name for path in left_in(temporary)]
            (folder / "done.json").write_text(json.dumps({"done": asdict(done), "left": left}))

    return made_once(common_folder / "origin", make)


@pytest.fixture(scope="session")
def filled(temporary: Path, origin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """For reading only."""
    saved = json.loads((origin / "done.json").read_text())
    with opened(tmp_path_factory.mktemp("filled"), temporary, origin / "data") as haloctl:
        yield Filled(haloctl, haloctl.only_job()["job"], Done(**saved["done"]), saved["left"])


@pytest.fixture
def fresh(temporary: Path, known_model: Path, tmp_path: Path) -> Iterator[Haloctl]:
    """A haloctl that has done nothing yet."""
    with opened(tmp_path / "fresh", temporary, known_model) as haloctl:
        yield haloctl


@pytest.fixture
def copied(temporary: Path, origin: Path, tmp_path: Path) -> Iterator[Haloctl]:
    """A haloctl that has done EVERYTHING and may be changed."""
    with opened(tmp_path / "copied", temporary, origin / "data") as haloctl:
        yield haloctl
