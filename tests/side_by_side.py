"""Several workers of pytest-xdist on one run: which files they take first, and what they make but once for all."""

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

#: Files whose tests take longest, longest first: whoever began with one of them last would be waited for.
LONGEST_FIRST = (
    "tests/cluster/test_chaos.py",
    "tests/integration/test_export.py",
    "tests/integration/test_numerics.py",
    "tests/integration/test_ray_cluster.py",
    "tests/acceptance/test_bad_surroundings.py",
    "tests/cluster/test_bring_up.py",
    "tests/acceptance/test_filled_world.py",
    "tests/acceptance/test_taking_over.py",
    "tests/acceptance/test_toolchains.py",
    "tests/acceptance/test_verify.py",
    "tests/acceptance/test_bisect.py",
    "tests/acceptance/test_why.py",
    "tests/acceptance/test_terminal.py",
    "tests/acceptance/test_seventy_b.py",
    "tests/acceptance/test_quantized_model.py",
    "tests/acceptance/test_gated_toolchains.py",
    "tests/acceptance/test_made_again.py",
    "tests/acceptance/test_bad_jobs.py",
    "tests/integration/test_database.py",
    "tests/integration/test_ray_executor.py",
    "tests/integration/test_torch_engine.py",
    "tests/integration/test_ray_token.py",
    "tests/acceptance/test_again.py",
    "tests/integration/test_artifact_wires.py",
    "tests/acceptance/test_failures.py",
    "tests/integration/test_families.py",
    "tests/acceptance/test_engines.py",
    "tests/acceptance/test_ending.py",
    "tests/integration/test_quantized_programs.py",
    "tests/cluster/test_full_disk.py",
)


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is one of several."""
    return hasattr(config, "workerinput")


def longest_first(items: list[pytest.Item]) -> None:
    """Put tests in the order in which workers are to take their files."""
    ranks = {file: rank for rank, file in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


def common_folder(config: pytest.Config, own: Path) -> Path:
    """A temporary folder that all workers of this run have in common, given one's own."""
    return own.parent if is_worker(config) else own


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """A folder that the worker fills who comes first; the others wait for it."""
    part = folder.with_name(f"{folder.name}.part")
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            shutil.rmtree(part, ignore_errors=True)
            make(part)
            part.rename(folder)
    return folder
