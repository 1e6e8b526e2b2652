"""Places for an artifact store: a folder, file systems that fsspec brings, and object stores that really serve."""

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.integration.attempts import until
from workers.agent.ports import free_port
from workers.artifacts import ArtifactStore
from workers.artifacts.parts import Limits

#: Azurite's own account, which is the same everywhere: https://github.com/Azure/Azurite#default-storage-account
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
CHUNK_BYTES = 1 << 16

#: Parts and blocks so small that small files have several of them.
SMALL = Limits(single_bytes=1 << 20, part_bytes=256 << 10, block_bytes=64 << 10)


class Proxy:
    """The wire between a client and a server on this machine: it counts bytes, and can be cut or held."""

    def __init__(self, port: int) -> None:
        self.sent_bytes = 0  #: to the server
        self.received_bytes = 0
        self._server_port = port
        self._cut_at: int | None = None
        self._hold_at: int | None = None
        self._lock = threading.Lock()
        self._may_pass = threading.Event()
        self._connections: set[Connection] = set()
        self._listener: socket.socket | None = None
        self.port = free_port("127.0.0.1")  # nobody else gets it while the line is cut
        self.mend()

    @property
    def passed_bytes(self) -> int:
        """In both directions together."""
        return self.sent_bytes + self.received_bytes

    @property
    def is_held(self) -> bool:
        """Whether nothing passes for now."""
        return not self._may_pass.is_set()

    def connections(self) -> "set[Connection]":
        """Return the connections that may still carry data."""
        with self._lock:
            return set(self._connections)

    def mend(self) -> None:
        """Accept connections and carry their data."""
        self._cut_at = self._hold_at = None
        self._may_pass.set()
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def cut(self) -> None:
        """End every connection, and refuse new ones."""
        with self._lock:
            listener, self._listener = self._listener, None
            ends = [end for connection in self._connections for end in connection]
        for end in [listener, *ends] if listener else ends:
            _shut(end)
        if listener:
            listener.close()
        self._may_pass.set()

    def cut_after(self, more_bytes: int) -> None:
        """Cut the line after this many more bytes."""
        self._cut_at = self.passed_bytes + more_bytes

    def hold_after(self, more_bytes: int) -> None:
        """Hold the line after this many more bytes, until it is mended."""
        self._hold_at = self.passed_bytes + more_bytes

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._server_port))
                except OSError:
                    client.close()
                else:
                    self._connect(listener, (client, server))

    def _connect(self, listener: socket.socket, connection: "Connection") -> None:
        """Carry the data of a connection, unless the line was cut while it was made."""
        with self._lock:
            is_cut = self._listener is not listener
            if not is_cut:
                self._connections.add(connection)
        if is_cut:
            _close(connection)
        else:
            threading.Thread(target=self._carry, args=[connection], daemon=True).start()

    def _carry(self, connection: "Connection") -> None:
        client, server = connection
        back = threading.Thread(target=self._pass_on, args=[server, client, False], daemon=True)
        back.start()
        self._pass_on(client, server, True)
        back.join()
        with self._lock:
            self._connections.discard(connection)
        _close(connection)

    def _pass_on(self, source: socket.socket, sink: socket.socket, is_up: bool) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                sink.sendall(data)
                self._count(len(data), is_up)
                self._may_pass.wait()
        for end in (source, sink):
            _shut(end)

    def _count(self, passed_bytes: int, is_up: bool) -> None:
        with self._lock:
            if is_up:
                self.sent_bytes += passed_bytes
            else:
                self.received_bytes += passed_bytes
            if self._hold_at is not None and self.passed_bytes >= self._hold_at:
                self._may_pass.clear()
            is_over = self._cut_at is not None and self.passed_bytes >= self._cut_at
        if is_over:
            self.cut()


Connection = tuple[socket.socket, socket.socket]  #: its two ends: to the client and to the server


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


def _close(connection: Connection) -> None:
    for end in connection:
        end.close()


@dataclass
class Site:
    """One place for a store, empty at first."""

    url: str
    folder: Path  #: for caches
    line: Proxy | None = None  #: between its clients and its server
    limits: Limits = SMALL
    _opened: tuple[Any, str] | None = field(default=None)

    @property
    def is_folder(self) -> bool:
        return "://" not in self.url

    def store(self, cache: str = "cache") -> ArtifactStore:
        """The store, as a machine with this cache sees it."""
        return ArtifactStore(self.url, self.folder / cache, self.limits)

    def objects(self, folder: str = "") -> dict[str, int]:
        """Names and sizes of all that lies in it, or in one of its folders."""
        fs, root = self.file_system()
        fs.invalidate_cache()
        files = fs.find(f"{root}/{folder}".rstrip("/"), detail=True)
        return {name.partition(f"{root}/")[2]: info["size"] for name, info in files.items()}

    def corrupt(self, name: str, content: bytes) -> None:
        """Replace the content of a file."""
        fs, root = self.file_system()
        if self.is_folder:
            Path(root, name).unlink()
        fs.pipe_file(f"{root}/{name}", content)

    def read(self, name: str) -> bytes:
        fs, root = self.file_system()
        content: bytes = fs.cat_file(f"{root}/{name}")
        return content

    def remove(self, name: str, *, recursive: bool = False) -> None:
        fs, root = self.file_system()
        fs.rm(f"{root}/{name}".rstrip("/"), recursive=recursive)

    def file_system(self) -> tuple[Any, str]:
        """Return a file system that knows nothing of haloctl."""
        if self._opened is None:
            from fsspec.core import url_to_fs

            fs, root = url_to_fs(self.url, skip_instance_cache=True, use_listings_cache=False)
            self._opened = fs, root.rstrip("/")
        return self._opened


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """A server that talks S3."""
    moto = pytest.importorskip("moto.server", reason="takes moto[s3] and flask")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield int(server.get_host_and_port()[1])
    finally:
        server.stop()


@pytest.fixture(scope="session")
def azure_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A server that talks Azure's blob protocol, where there is one: `npm install azurite` brings it."""
    pytest.importorskip("adlfs", reason="takes haloctl[azure], and azurite from npm on PATH")
    azurite = shutil.which("azurite-blob") or pytest.skip("azurite-blob is not on PATH: npm install -g azurite")
    folder = tmp_path_factory.mktemp("azurite")
    port = free_port("127.0.0.1")
    command = [azurite, "--blobPort", str(port), "--location", str(folder), "--silent", "--skipApiVersionCheck"]
    server = subprocess.Popen([*command, "--disableTelemetry"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _listens(port), "azurite listens")
        yield port
    finally:
        server.terminate()
        server.wait()


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
        return True
    return False


@contextmanager
def wired(port: int) -> Iterator[Proxy]:
    line = Proxy(port)
    try:
        yield line
    finally:
        line.cut()


KINDS = ("folder", "local", "memory", "s3", "azure")


@pytest.fixture(params=KINDS)
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Each place in turn."""
    match request.param:
        case "folder":
            yield Site(str(tmp_path / "artifacts"), tmp_path)
        case "local":
            yield Site(f"local://{tmp_path}/artifacts", tmp_path)
        case "memory":
            yield Site(f"memory://{uuid4().hex}/artifacts", tmp_path)
        case "s3":
            with s3_site(request.getfixturevalue("s3_port"), tmp_path, monkeypatch) as object_site:
                yield object_site
        case "azure":
            with azure_site(request.getfixturevalue("azure_port"), tmp_path, monkeypatch) as object_site:
                yield object_site


@contextmanager
def s3_site(port: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    bucket = uuid4().hex
    with wired(port) as line:
        for name, value in s3_variables(line.port).items():
            monkeypatch.setenv(name, value)
        site = Site(f"s3://{bucket}/artifacts", folder, line)
        fs, _ = site.file_system()
        fs.mkdir(bucket)
        yield site
        type(fs).clear_instance_cache()  # the next one has another endpoint


def s3_variables(port: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "halo",
        "AWS_SECRET_ACCESS_KEY": "hush-hush",
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@contextmanager
def azure_site(port: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    container = uuid4().hex
    with wired(port) as line:
        endpoint = f"http://127.0.0.1:{line.port}/{AZURITE_ACCOUNT}"
        account = f"AccountName={AZURITE_ACCOUNT};AccountKey={AZURITE_KEY};BlobEndpoint={endpoint};"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", f"DefaultEndpointsProtocol=http;{account}")
        site = Site(f"az://{container}/artifacts", folder, line)
        fs, _ = site.file_system()
        fs.mkdir(container)
        yield site
        type(fs).clear_instance_cache()
