"""The artifact store over a wire that is cut: what was carried is not carried again, and nothing is taken for lost."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jobs.errors import StorageUnusable
from jobs.task import Artifact
from tests.integration.attempts import until
from tests.integration.object_stores import SMALL, Proxy, Site, azure_port, azure_site, s3_port, s3_site
from workers.artifacts import ArtifactStore

__all__ = ["azure_port", "s3_port"]

SIZE_BYTES = 16 << 20
HALF = SIZE_BYTES // 2
OVERHEAD = 1.25  #: of HTTP, and of requests that were under way

#: What a process does that is to be killed: put FILE at URL, or place it from there.
PUT = "store.put(Path(sys.argv[3]), 'irpa', may_link=False)"
GET = f"store.get(Artifact('model.irpa', 'irpa', sys.argv[4], {SIZE_BYTES}), Path(sys.argv[3]))"
PROGRAM = """
import sys
from pathlib import Path
from jobs.task import Artifact
from tests.integration.object_stores import SMALL
from workers.artifacts import ArtifactStore
store = ArtifactStore(sys.argv[1], Path(sys.argv[2]), SMALL)
"""


@pytest.fixture(params=["s3", "azure"])
def wired_site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    port = request.getfixturevalue(f"{request.param}_port")
    with {"s3": s3_site, "azure": azure_site}[request.param](port, tmp_path, monkeypatch) as site:
        yield site


def proxy_of(site: Site) -> Proxy:
    assert site.line
    return site.line


def made(folder: Path) -> Path:
    path = folder / "model.irpa"
    path.write_bytes(random.Random(1).randbytes(SIZE_BYTES))
    return path


def arrived_bytes(folder: Path) -> int:
    """How much there is of mine.irpa while it is fetched."""
    return sum(part.stat().st_size for part in folder.glob(".mine.irpa*.part"))


def killed_when(
    line: Proxy, passed_bytes: int, program: str, *arguments: object, has_come: Callable[[], bool] = lambda: True
) -> None:
    """Run a program until so many bytes have passed and `has_come`, and kill it there; nothing of it is under way."""
    argv = [sys.executable, "-c", PROGRAM + program, *map(str, arguments)]
    others = line.connections()
    line.hold_after(passed_bytes)
    with subprocess.Popen(argv) as process:
        try:
            until(lambda: line.is_held and has_come(), "half of it has passed")
        finally:
            process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    line.mend()
    until(lambda: line.connections() <= others, "its connections have ended")


def test_an_upload_that_was_killed_goes_on_where_it_was(wired_site: Site, tmp_path: Path) -> None:
    line, file = proxy_of(wired_site), made(tmp_path)
    killed_when(line, HALF, PUT, wired_site.url, tmp_path / "cache", file)
    had_bytes = sum(wired_site.objects("parts").values())
    assert 0 < had_bytes < SIZE_BYTES
    before = line.sent_bytes
    artifact = wired_site.store().put(file, "irpa")
    assert line.sent_bytes - before < (SIZE_BYTES - had_bytes) * OVERHEAD
    assert wired_site.store("another-cache").verify(artifact)


def test_a_download_that_was_killed_goes_on_where_it_was(wired_site: Site, tmp_path: Path) -> None:
    line, file = proxy_of(wired_site), made(tmp_path)
    artifact = wired_site.store().put(file, "irpa")
    mine = tmp_path / "mine.irpa"
    arguments = (wired_site.url, tmp_path / "another-cache", mine, artifact.sha256)
    killed_when(line, HALF, GET, *arguments, has_come=lambda: arrived_bytes(tmp_path) > HALF / 2)
    had_bytes = arrived_bytes(tmp_path)
    before = line.received_bytes
    wired_site.store("another-cache").get(artifact, mine)
    assert line.received_bytes - before < (SIZE_BYTES - had_bytes) * OVERHEAD
    assert mine.read_bytes() == file.read_bytes()


def test_processes_that_put_one_file_at_once_do_no_harm_to_each_other(wired_site: Site, tmp_path: Path) -> None:
    file = made(tmp_path)
    argv = [sys.executable, "-c", PROGRAM + "print(" + PUT + ".sha256)", wired_site.url]
    processes = [
        subprocess.Popen([*argv, str(tmp_path / f"cache-{number}"), str(file)], stdout=subprocess.PIPE, text=True)
        for number in range(3)
    ]
    said = {process.communicate()[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    (sha256,) = said
    assert wired_site.store().verify(Artifact("model.irpa", "irpa", sha256, SIZE_BYTES))
    assert sum(wired_site.objects("parts").values()) == SIZE_BYTES


def test_a_store_that_cannot_be_reached_is_named_and_nothing_is_taken_for_lost(
    wired_site: Site, tmp_path: Path
) -> None:
    line, file = proxy_of(wired_site), made(tmp_path)
    store = wired_site.store()
    artifact = store.put(file, "irpa")
    line.cut()
    with pytest.raises(StorageUnusable) as raised:
        wired_site.store("another-cache").place(artifact, tmp_path / "placed")
    assert str(raised.value).startswith(f"artifact store {wired_site.url}: ")
    assert len(str(raised.value).splitlines()) == 1
    assert "hush" not in str(raised.value)
    line.mend()
    wired_site.store("another-cache").place(artifact, tmp_path / "placed")
    assert (tmp_path / "placed").read_bytes() == file.read_bytes()


def test_a_wire_that_is_cut_in_the_middle_costs_what_was_under_way(wired_site: Site, tmp_path: Path) -> None:
    line, file = proxy_of(wired_site), made(tmp_path)
    line.cut_after(HALF)
    with pytest.raises(StorageUnusable):
        wired_site.store().put(file, "irpa")
    line.mend()
    had_bytes = sum(wired_site.objects("parts").values())
    before = line.sent_bytes
    artifact = wired_site.store().put(file, "irpa")
    assert line.sent_bytes - before < (SIZE_BYTES - had_bytes) * OVERHEAD
    line.cut_after(HALF)
    with pytest.raises(StorageUnusable):
        wired_site.store("another-cache").place(artifact, tmp_path / "placed")
    line.mend()
    before = line.received_bytes
    wired_site.store("another-cache").place(artifact, tmp_path / "placed")
    assert line.received_bytes - before < 0.75 * SIZE_BYTES
    assert (tmp_path / "placed").read_bytes() == file.read_bytes()


def test_a_bucket_that_is_not_there_is_told(s3_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_site(s3_port, tmp_path, monkeypatch):
        missing = Site(f"s3://no-such-{os.getpid()}-bucket/artifacts", tmp_path)
        with pytest.raises(StorageUnusable, match="there is no such bucket"):
            missing.store().put(made(tmp_path), "irpa")


@pytest.mark.parametrize(("url", "extra"), [("s3://b/x", "s3"), ("az://b/x", "azure"), ("gs://b/x", "gcs")])
def test_a_package_that_is_missing_is_named_with_how_to_get_it(url: str, extra: str, tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules.update(dict.fromkeys(["s3fs", "adlfs", "gcsfs"]))
from pathlib import Path
from jobs.errors import StorageUnusable
from workers.artifacts import ArtifactStore
try:
    ArtifactStore({url!r}, Path({str(tmp_path)!r})).expect()
except StorageUnusable as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    protocol = url.partition(":")[0]
    assert said == (f"artifact store {url}: {protocol}:// needs another package: pip install 'haloctl[{extra}]'\n")


def test_a_protocol_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageUnusable, match=r"artifact store nowhere://x/y: .*nowhere"):
        ArtifactStore("nowhere://x/y", tmp_path, SMALL).expect()
