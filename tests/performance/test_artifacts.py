"""Publishing and fetching a large file, beside `cp` and `sha256sum` of it on the same disk, and the memory that takes.

HALOCTL_BENCH_GB says how large it is. The store is tried as a folder on the same file system, where a file is linked;
as a folder that it has to be copied to, as from another file system; and as a remote one, whose file system is the
disk, so that nothing but the store's own work is timed.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

GB = float(os.environ.get("HALOCTL_BENCH_GB", "4"))
SIZE_BYTES = int(GB * 1e9)
LEAST = 0.6  #: of the speed of the tools
MOST_MEMORY_BYTES = 600 << 20  #: of a process that publishes or fetches, whatever the size

PROGRAM = """
import resource, sys, time
from pathlib import Path
from jobs.task import Artifact
from workers.artifacts import ArtifactStore
url, cache, file, action, links = sys.argv[1:6]
store = ArtifactStore(url, Path(cache))
began = time.monotonic()
if action == "put":
    print(store.put(Path(file), "irpa", may_link=links == "links").sha256)
else:
    size_bytes, sha256 = int(sys.argv[6]), sys.argv[7]
    store.get(Artifact("x", "irpa", sha256, size_bytes), Path(file))
    print(sha256)
print(time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file of random bytes."""
    file = tmp_path_factory.mktemp("large") / "model.irpa"
    with file.open("wb") as content:
        for _ in range(SIZE_BYTES >> 24):
            content.write(os.urandom(1 << 24))
    yield file
    file.unlink()


def settle() -> None:
    """Wait until earlier writes are on disk."""
    os.sync()


def timed(*commands: list[str]) -> float:
    settle()
    began = time.monotonic()
    for argv in commands:
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def done(*arguments: object) -> tuple[str, float, int]:
    """Run the measurement in a separate process; returns the sha256, its seconds and its memory."""
    settle()
    argv = [sys.executable, "-c", PROGRAM, *map(str, arguments)]
    words = subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return words[0], float(words[1]), int(words[2])


@pytest.mark.parametrize(("scheme", "links"), [("", "links"), ("", "copies"), ("local://", "copies")])
def test_publishing_and_fetching_keep_up_with_cp_and_sha256sum(
    large: Path, tmp_path: Path, scheme: str, links: str
) -> None:
    copy, back = tmp_path / "copy", tmp_path / "back"
    url = f"{scheme}{tmp_path}/store"
    tools_s = timed(["cp", str(large), str(copy)], ["sha256sum", str(copy)])
    copy.unlink()
    sha256, put_s, put_bytes = done(url, tmp_path / "cache", large, "put", links)
    size_bytes = large.stat().st_size
    _, get_s, get_bytes = done(url, tmp_path / "another", back, "get", links, size_bytes, sha256)
    back.unlink()
    print(
        f"\n{scheme or 'folder'} {links}, {size_bytes / 1e9:.2f} GB: cp + sha256sum {tools_s:.1f} s; "
        f"publish {put_s:.1f} s ({tools_s / put_s:.0%}), {put_bytes >> 20} MiB; "
        f"fetch {get_s:.1f} s ({tools_s / get_s:.0%}), {get_bytes >> 20} MiB"
    )
    assert tools_s / put_s >= LEAST
    assert tools_s / get_s >= LEAST
    assert max(put_bytes, get_bytes) < MOST_MEMORY_BYTES
