"""A steady stream of short tasks, whose own journal tells when work went on, and is compared with what is stored."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from db.reads import reports
from jobs.state import TaskState
from tests.cluster.conftest import Cluster, how_it_ended
from tests.cluster.work import JOURNAL, Work


@dataclass(frozen=True)
class Line:
    """One line of a journal."""

    at_s: float  #: since the machine was started, by a clock that never steps
    what: str  #: begin or end
    node: str
    attempt: str


def uptime_s() -> float:
    """Return the time of the journals' clock."""
    return float(Path("/proc/uptime").read_text().split()[0])


def read_journal(work: Work) -> list[Line]:
    """Return what the tasks of some work wrote, in its order."""
    file = work.folder / JOURNAL
    lines = (line.split() for line in file.read_text().splitlines()) if file.exists() else ()
    return [Line(float(at), what, Path(folder).parents[3].name, Path(folder).parent.name) for at, what, folder in lines]


def begins(works: list[Work]) -> list[Line]:
    """Return the begins of all tasks, by their times."""
    lines = (line for work in works for line in read_journal(work) if line.what == "begin")
    return sorted(lines, key=lambda line: line.at_s)


def check_journal(cluster: Cluster, work: Work) -> None:
    """Compare a journal with the stored attempts.

    No attempt began twice; one that is stored as succeeded has ended; each task has done so once; and no device ran two
    of them at once.
    """
    lines = read_journal(work)
    counts = Counter((line.attempt, line.what) for line in lines)
    assert [key for key, count in counts.items() if count > 1] == []
    times = {(line.attempt, line.what): line.at_s for line in lines}
    by_device: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    with cluster.database() as database:
        for task in reports.tasks(database, work.job):
            succeeded = [row for row in reports.attempts(database, task.id) if how_it_ended(row) == "succeeded"]
            assert len(succeeded) == (task.state is TaskState.SUCCEEDED), task.id
            for attempt in succeeded:
                period = times[attempt.id, "begin"], times[attempt.id, "end"]
                for device in attempt.devices:
                    by_device[attempt.node, device.index].append(period)
    for name, periods in by_device.items():
        for (_, end), (begin, _) in pairwise(sorted(periods)):
            assert end <= begin, f"{name} ran two tasks at once"
