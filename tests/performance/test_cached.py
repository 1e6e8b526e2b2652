"""The cost of a job with only cache hits, as whole commands. It asserts that nothing ran; `make bench` prints it."""

import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from db.connection.engine import open_database
from jobs.targets import TARGETS
from jobs.task import GIB, Artifact, Device, Node
from orchestrator.context import Context
from orchestrator.leader.head import Head
from orchestrator.leader.loop import open_output_cache
from orchestrator.settings import Settings
from tests.acceptance.haloctl import Haloctl, opened, short_folder
from tests.in_memory import InMemoryExecutor, InMemoryResolver
from workers.artifacts import ArtifactStore

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(1800)]

ROUNDS = 3

#: 1,104 tasks for 396 variants.
MANY: dict[str, Any] = {
    "name": "many",
    "model": "tiny-llama",
    "variants": {
        "precision": ["f32", "f16", "bf16"],
        "attention": ["sdpa", "eager"],
        "tp": [1, 2, 4, 8],
        "engine": ["iree", "torch"],
        "nodes": [1, 2],
        "target": list(TARGETS),
        "exclude": [{"engine": "iree", "nodes": 2}, {"tp": 1, "nodes": 2}],
    },
}

#: Room for all of them at once, for benchmarks that have nodes to themselves too.
DEVICES = tuple(Device(kind, index) for kind in TARGETS for index in range(8))
NODES = [Node(f"n{number:04}", "h", 64, 4096 * GIB, DEVICES) for number in range(200)]


@pytest.fixture
def haloctl(tmp_path: Path) -> Iterator[Haloctl]:
    with short_folder() as temporary, opened(tmp_path, temporary) as cli:
        yield cli


def test_many_tasks_that_were_all_done_before(haloctl: Haloctl, tmp_path: Path) -> None:
    file = haloctl.job(**MANY)
    job = haloctl.json("submit", file)["job"]
    tasks = do_without_running(haloctl)
    assert {task["state"] for task in haloctl.json("show", job)["tasks"]} == {"succeeded"}
    took = [timed(haloctl, {"cached"}, "submit", file, "--wait", "--reuse-measurements") for _ in range(ROUNDS)]
    tell(f"{tasks} tasks, all taken over", took)


def test_the_demo_a_second_time(haloctl: Haloctl) -> None:
    first = timed(haloctl, {"succeeded", "queued", "pending"}, "submit", "demo", "--wait")
    tell("the demo for the first time", [first])
    for states, options in (({"cached"}, ["--reuse-measurements"]), ({"cached", "succeeded"}, [])):
        states |= {"queued", "pending"}  # for mi300x
        command = ("submit", "demo", "--wait", *options)
        tell(f"haloctl {' '.join(command)}, again", [timed(haloctl, states, *command) for _ in range(ROUNDS)])


Took = tuple[float, float]  #: seconds, and seconds of them on processors


def timed(haloctl: Haloctl, states: set[str], *command: str) -> Took:
    """Return the cost of a command, after asserting that its job's tasks are in these states only."""
    took = measured(lambda: haloctl.answer(*command))
    job = haloctl.json("list", "--limit", "1")[0]["job"]
    assert {task["state"] for task in haloctl.json("show", job)["tasks"]} <= states
    return took


def measured(action: Callable[[], object]) -> Took:
    used_s, begin = processor_s(), time.perf_counter()
    action()
    return time.perf_counter() - begin, processor_s() - used_s


def processor_s() -> float:
    """Return the processor time of the ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tell(what: str, took: list[Took]) -> None:
    bare_s, _ = measured(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True))
    wall_s, on_processors_s = (statistics.median(column) for column in zip(*took, strict=True))
    ratio = f"{wall_s / bare_s:.0f} x `python -c pass`"
    print(f"\n{what}: {wall_s:.2f} s, {ratio}; {on_processors_s:.2f} s on processors", end="")


def do_without_running(haloctl: Haloctl) -> int:
    """Have everything that is queued succeed, with a file or two each; returns how many attempts there were."""
    url = f"sqlite:///{haloctl.data}/haloctl.db"
    settings = Settings(haloctl.data, url, None, haloctl.data / "artifacts")
    with open_database(url, create=False) as database:
        context, executor = Context(settings, database), InMemoryExecutor(*NODES)
        head, files = (
            Head(context.store, executor, open_output_cache(context), InMemoryResolver()),
            Files(haloctl.folder, settings.data / "artifacts"),
        )
        while head.step():
            for attempt in executor.attempts.values():
                executor.end(attempt, artifacts=files.of(attempt.id))
        head.detach()
        return len(executor.started)


class Files:
    """Return the artifacts of attempts."""

    def __init__(self, folder: Path, store: Path) -> None:
        self._folder, self._store = folder, ArtifactStore(store)

    def of(self, attempt: str) -> tuple[Artifact, ...]:
        """A log and an output, both its own."""
        made = []
        for name, kind in (("log", "log"), ("model.bin", "mlir")):
            file = self._folder / name
            file.write_text(f"{name} of {attempt}")
            made.append(self._store.put(file, kind))
            os.unlink(file)
        return tuple(made)
