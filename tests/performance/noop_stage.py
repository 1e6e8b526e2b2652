"""A stage that does nothing, for benchmarks alone; `noop_site` on PYTHONPATH makes it known to agents' processes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobs.plan import Plan, PlannedTask
from jobs.stages import STAGES
from jobs.stages.base import Stage
from jobs.task import Command, Outcome, Resources
from jobs.variants import Attention, Precision, Variant

#: What holds it back is the number of devices, as it is for real tasks, and not that of the cores.
NOTHING = Resources(cpus=0, memory_bytes=0, devices=1, device_kind="cpu")

NOOP = Stage(
    name="noop",
    title="No-op",
    needs=(),
    settings=lambda cell: {},
    commands=lambda settings, toolchain: [Command(tuple(settings["argv"]))],
    resources=lambda cell: NOTHING,
    parse=lambda settings, folder: Outcome(),
    is_measured=True,
    has_program=False,
)


def register() -> None:
    """Make it known in this process."""
    STAGES[NOOP.name] = NOOP


@contextmanager
def known_here_and_below() -> Iterator[None]:
    """Make it known here, and in every Python that is started from here."""
    root = Path(__file__).parents[2]
    before = os.environ.get("PYTHONPATH")
    paths = [str(root / "tests" / "performance" / "noop_site"), str(root), *([before] if before else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    register()
    try:
        yield
    finally:
        del STAGES[NOOP.name]
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def plan_of(count: int, *argv: str, needs: Resources = NOTHING) -> Plan:
    """Return a job of this many independent tasks that run `argv`."""
    variants = [
        Variant(f"noop-{number:05}", "cpu", precision=Precision.F32, attention=Attention.SDPA, tp=1)
        for number in range(count)
    ]
    tasks = [
        PlannedTask(variant.name, NOOP.name, {"argv": list(argv), "number": number}, (), needs, (variant,))
        for number, variant in enumerate(variants)
    ]
    return Plan(tuple(variants), tuple(tasks))
