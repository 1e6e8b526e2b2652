"""What questions cost of a million measurements, as whole commands on SQLite and on Postgres; `make bench` prints it.

HALOCTL_BENCH_MEASUREMENTS asks for another number of them.
"""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.haloctl import COMMAND, ROOT, Haloctl, opened, short_folder
from tests.fill_measurements import fill

if TYPE_CHECKING:
    from tests.databases import PostgresServer

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(7200)]

MEASUREMENTS = int(os.environ.get("HALOCTL_BENCH_MEASUREMENTS", "1000000"))
ROUNDS = 5
VARIANT = "llama3.1-8B-FP16-TP8"

COMMANDS = [
    ("--version",),
    ("--help",),
    ("list",),
    ("matrix",),
    ("matrix", "--variant", "llama*TP8"),
    ("compare", f"variant:{VARIANT}", "variant:llama3.1-8B-BF16-TP8", "--metric", "itl_ms"),
    ("compare", "..2025-11-23", "2025-11-23..", "--variant", VARIANT),
    ("trend", "ttft_ms", "--variant", VARIANT),
    ("results", "--pivot", "date", "--variant", "llama*TP8"),
    ("results", "--limit", "20"),
    ("targets",),
    ("report",),
    ("query", f"select count(*), avg(median) from results where variant = '{VARIANT}' and metric = 'itl_ms'"),
    ("query", "select variant, count(*) from results where metric = 'itl_ms' group by variant"),
]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def haloctl(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Haloctl]:
    folder = tmp_path_factory.mktemp("million")
    with short_folder() as temporary:
        if request.param == "sqlite":
            url = f"sqlite:///{folder}/haloctl.db"
            _fill(url)
            with opened(folder, temporary, HALOCTL_DATABASE_URL=url) as cli:
                yield cli
        else:
            server: PostgresServer = request.getfixturevalue("postgres")
            with server.new_database() as url:
                _fill(url)
                with opened(folder, temporary, HALOCTL_DATABASE_URL=url) as cli:
                    yield cli


def _fill(url: str) -> None:
    begin = time.perf_counter()
    count = fill(url, MEASUREMENTS)
    print(f"\n{url.partition(':')[0]}: {count:,} measurements in {time.perf_counter() - begin:.0f} s", end="")


def test_questions(haloctl: Haloctl) -> None:
    """Beside what Python alone takes: of a machine that others use, the ratios and the processor's time are steady."""
    environment = _compiled(haloctl)
    floor = _timed([sys.executable, "-c", "pass"], environment)
    print(f"\n  {floor.in_words}  python -c pass", end="")
    for command in COMMANDS:
        took = _timed([*COMMAND, *command], environment)
        print(f"\n  {took.in_words}, {took.middle_s / floor.middle_s:3.0f} x python  {' '.join(command)}", end="")


@dataclass(frozen=True)
class Took:
    """The cost of whole processes, from start to end."""

    wall_s: Sequence[float]
    cpu_s: Sequence[float]  #: of their own: a server's is not among it

    @property
    def middle_s(self) -> float:
        return statistics.median(self.wall_s)

    @property
    def in_words(self) -> str:
        return f"{self.middle_s:6.2f} s (at least {min(self.wall_s):.2f}, {min(self.cpu_s):.2f} of a processor)"


def _compiled(haloctl: Haloctl) -> dict[str, str]:
    """An environment in which modules are compiled once, as they are where haloctl is installed."""
    kept = {name: value for name, value in haloctl.environment.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(haloctl.folder / "compiled")}


def _timed(command: list[str], environment: dict[str, str]) -> Took:
    """Warm up: the first run compiles modules, and does not count."""
    _, *took = [_once(command, environment) for _ in range(1 + ROUNDS)]
    return Took([wall_s for wall_s, _ in took], [cpu_s for _, cpu_s in took])


def _once(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall_s, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_imports_of_the_command_line() -> None:
    """What `haloctl --help` imports, the slowest first."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *COMMAND[1:], "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [line.removeprefix("import time:").split("|") for line in done.stderr.splitlines() if "|" in line][1:]
    slowest = sorted(rows, key=lambda row: -int(row[1]))[:8]
    print("\n" + "\n".join(f"  {int(total) / 1e3:6.1f} ms {name.strip()}" for _, total, name in slowest), end="")
