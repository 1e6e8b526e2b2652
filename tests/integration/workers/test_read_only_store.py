"""A store in a folder that a user may only read: its files can be had, and a damaged one is told and stays."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.errors import StorageUnusable
from workers.artifacts import ArtifactStore

READ = """
import sys
from pathlib import Path
from jobs.errors import ArtifactLost, StorageUnusable
from jobs.task import Artifact
from workers.artifacts import ArtifactStore
root, folder, sha256 = sys.argv[1:]
artifact = Artifact("a.txt", "file", sha256, 5)
store = ArtifactStore(Path(root), is_written=False)
assert store.has(artifact) and sha256 in {stored.sha256 for stored in store.stored()}
store.get(artifact, Path(folder) / "got")
assert (Path(folder) / "got").read_text() == "hello"
try:
    ArtifactStore(Path(root))
except StorageUnusable as error:
    print(error)
damaged = Artifact("a.txt", "file", "0" * 64, 5)
try:
    store.local(damaged)
except ArtifactLost as error:
    print(error)
"""


def test_a_user_who_may_only_read_a_store_reads_it(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    (tmp_path / "a.txt").write_text("hello")
    artifact = store.put(tmp_path / "a.txt", "file")
    damaged = store.path("0" * 64)
    damaged.parent.mkdir()
    damaged.write_text("xxxxx")
    for folder in (*(tmp_path / "store").glob("**/"), tmp_path / "store"):
        folder.chmod(0o555)
    # without its capabilities even root is refused
    powerless = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()
    argv = [*powerless, sys.executable, "-c", READ, tmp_path / "store", tmp_path, artifact.sha256]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "it can't be written" in done.stdout
    assert f"damaged: what was there lies in {damaged}" in done.stdout
    assert damaged.exists()


def test_a_store_that_cannot_be_made_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageUnusable):
        ArtifactStore(tmp_path / "file", is_written=False)
