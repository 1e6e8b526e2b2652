"""One cluster for the tests of a module: a head, two nodes, and a client that knows only the database's address."""

import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from db.connection.engine import Database, open_database
from db.reads import machines, reports
from jobs.state import JobState
from jobs.task import Resources
from orchestrator.views import node_rows
from tests import databases
from tests.acceptance.haloctl import Running, short_folder
from tests.cluster import network
from tests.cluster.hosts import Host, until_equal
from tests.cluster.work import WAIT, Work, submitted, submitted_pulses, submitted_ranks
from tests.performance.noop_stage import NOTHING

METRICS_PORT = 9464  #: of the head in `cluster`


@dataclass
class Cluster:
    """Hosts on one network, and what runs on them. They share the artifact store and nothing else."""

    folder: Path
    cables: network.Network
    url: str = ""
    postgres: databases.PostgresServer | None = None
    hosts: dict[str, Host] = field(default_factory=dict)
    daemons: dict[str, Running] = field(default_factory=dict)  #: by host: its head or node
    _jobs: int = 0

    def plug(self, name: str, **variables: str) -> Host:
        """Add a host; it knows the database only if it is given its address. HALOCTL_CPU_DEVICES="8" gives it more."""
        variables = {"HALOCTL_ARTIFACTS": str(self.folder / "artifacts"), **variables}
        host = self.hosts[name] = Host(name, self.cables.plug(name), self.folder / name, **variables)
        return host

    def plug_with_database(self, name: str) -> Host:
        """Add a host for a head or a client."""
        return self.plug(name, HALOCTL_DATABASE_URL=self.url)

    def start_head(self, name: str, *options: str) -> Running:
        """Start a head on a host, again if it had one."""
        running = self.daemons[name] = self.hosts[name].start_head(*options)
        return running

    def start_node(self, name: str, head: str = "head", *options: str, waits: bool = True) -> Running:
        """Start a node on a host, again if it had one."""
        running = self.daemons[name] = self.hosts[name].start_node(self.hosts[head], *options, waits=waits)
        return running

    def bring_up(self, *names: str, **variables: str) -> None:
        """Add nodes, and return when the head has all of them."""
        for name in names:
            self.plug(name, **variables)
            self.start_node(name, waits=False)
        until_equal(self.node_states, dict.fromkeys(names, "up"))

    @contextmanager
    def database(self) -> Iterator[Database]:
        """The database, as the client reaches it; commands tell the same, but take a second each."""
        with self.hosts["client"].cable.entered(), open_database(self.url, create=False) as database:
            yield database

    def submit_work(self, count: int, needs: Resources = NOTHING, program: str = WAIT) -> Work:
        """Submit this many tasks that run until the test lets them end."""
        with self.database() as database:
            return submitted(database, self._new_folder(), count, needs, program)

    def submit_pulses(self, count: int) -> Work:
        """Submit tasks that take a second and keep a journal."""
        with self.database() as database:
            return submitted_pulses(database, self._new_folder(), count)

    def submit_ranks(self) -> Work:
        """A gang of the torch engine that computes until the test lets it end."""
        with self.database() as database:
            return submitted_ranks(database, self._new_folder())

    def state(self, job: str) -> JobState:
        """Return the state of a job."""
        with self.database() as database:
            return reports.job(database, job).state

    def attempts(self, job: str) -> dict[tuple[str, ...], int]:
        """Wait until a job has succeeded; returns how many of its tasks had each sequence of attempt outcomes."""
        until_equal(lambda: self.state(job), JobState.SUCCEEDED)
        with self.database() as database:
            tasks = [reports.attempts(database, task.id) for task in reports.tasks(database, job)]
        return Counter(tuple(how_it_ended(attempt) for attempt in attempts) for attempts in tasks)

    def node_states(self) -> dict[str, str]:
        """What `haloctl nodes` shows as the state of each."""
        with self.database() as database:
            return {node.id: node_rows.node_state(node) for node in machines.nodes(database)}

    def up(self) -> set[str]:
        """The nodes that take tasks."""
        return {name for name, state in self.node_states().items() if state == "up"}

    def _new_folder(self) -> Path:
        self._jobs += 1
        return self.folder / f"work{self._jobs}"

    def close(self) -> None:
        """Kill every process."""
        for host in self.hosts.values():
            host.kill_all()


def scrape(cluster: Cluster) -> dict[str, float]:
    """The metrics of the head, by name and labels: `haloctl_tasks{state=queued}`."""
    with (
        cluster.hosts["head"].cable.entered(),
        urllib.request.urlopen(f"http://127.0.0.1:{METRICS_PORT}/metrics", timeout=10) as answer,
    ):
        families = text_string_to_metric_families(answer.read().decode())
        samples = [sample for family in families for sample in family.samples]
    return {
        sample.name + "".join(f"{{{name}={value}}}" for name, value in sample.labels.items()): sample.value
        for sample in samples
    }


def how_it_ended(attempt: reports.AttemptRow) -> str:
    """`succeeded`, or the kind of failure."""
    return str(attempt.failure.kind if attempt.failure else attempt.outcome)


@contextmanager
def network_of_hosts() -> Iterator[Cluster]:
    """A network without a host."""
    reason = network.why_not()
    if reason:
        pytest.skip(reason)
    with short_folder() as folder, network.network() as cables, closing(Cluster(folder, cables)) as cluster:
        yield cluster


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """A network with a head and Postgres on one host, and a client; nodes are for the test to add."""
    programs = databases.find_programs()
    if programs is None:
        pytest.skip("no Postgres server is installed (initdb is neither on PATH nor in /usr/lib/postgresql)")
    with ExitStack() as stack:
        cluster = stack.enter_context(network_of_hosts())
        head = cluster.plug("head")
        with head.cable.entered():
            cluster.postgres = stack.enter_context(databases.running_server(programs, head.address))
            cluster.postgres.administer(f"CREATE DATABASE {databases.USER} TEMPLATE {databases.TEMPLATE}")
            # or a restart would lose what was stored just before it
            cluster.postgres.administer(f"ALTER DATABASE {databases.USER} SET synchronous_commit = on")
        cluster.url = cluster.postgres.url(databases.USER)
        head.environment["HALOCTL_DATABASE_URL"] = cluster.url
        cluster.plug_with_database("client")
        yield cluster


@contextmanager
def cluster_on_sqlite() -> Iterator[Cluster]:
    """A network with a head that has SQLite in its data folder and is not started yet, and a client."""
    with network_of_hosts() as cluster:
        head = cluster.plug("head")
        cluster.url = head.environment["HALOCTL_DATABASE_URL"] = f"sqlite:///{head.data / 'haloctl.db'}"
        cluster.plug_with_database("client")
        yield cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head with two nodes, n1 and n2, which logs JSON."""
    with running_cluster() as cluster:
        cluster.start_head("head", "--metrics-port", f"{METRICS_PORT}")
        for name, options in (("n1", ()), ("n2", ("--log-json",))):
            cluster.plug(name)
            cluster.start_node(name, "head", *options, waits=False)
        for name in ("n1", "n2"):
            cluster.daemons[name].until_says("has joined")
        yield cluster
