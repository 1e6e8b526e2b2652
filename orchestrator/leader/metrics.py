"""The metrics of a head, for Prometheus. They are computed when they are asked for, from `Statistics`."""

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from jobs.errors import BadSetting
from jobs.state import ACTIVE, OPEN
from orchestrator.leader.statistics import SUCCEEDED, Statistics, Timing
from orchestrator.settings import Settings
from workers.artifacts.locations import folder_of

DISK_ANSWER_S = 1.0  #: for a file system to tell its free space: one that hangs is left out
STATES = sorted(OPEN | ACTIVE)

Sample = tuple[tuple[str, ...], Any]  #: the values of the labels, and of the metric


@dataclass(frozen=True)
class Source:
    """What the metrics are computed from."""

    statistics: Statistics
    folders: dict[str, Path]  #: whose disks are watched, by name

    @cached_property
    def _disks(self) -> threading.Lock:
        return threading.Lock()

    def free_disk(self) -> Iterator[Sample]:
        """Yield the free space of each folder that can tell it."""
        if not self._disks.acquire(timeout=DISK_ANSWER_S):  # an earlier question hangs
            return
        try:
            for name, folder in self.folders.items():
                with suppress(OSError):
                    yield (name,), shutil.disk_usage(folder).free
        finally:
            self._disks.release()


@dataclass(frozen=True)
class HeadMetric:
    """One metric with its labels, and how it is computed."""

    name: str
    family: type[GaugeMetricFamily | CounterMetricFamily | SummaryMetricFamily]
    help: str
    read: Callable[[Source], Iterable[Sample]]
    labels: tuple[str, ...] = ()


def _tasks(source: Source) -> Iterator[Sample]:
    snapshot = source.statistics.snapshot
    counts = Counter(task.state for task in snapshot.tasks) if snapshot else Counter()
    return (((state,), counts[state]) for state in STATES)


def _unschedulable(source: Source) -> Iterator[Sample]:
    snapshot = source.statistics.snapshot
    yield (), sum(task.is_unschedulable for task in snapshot.tasks) if snapshot else 0


def _running(source: Source) -> Iterator[Sample]:
    statistics = source.statistics
    running = statistics.snapshot.running if statistics.snapshot else ()
    counts = Counter(place.node for attempt in running for place in attempt.places)
    return (((node,), counts[node]) for node in sorted({*counts, *statistics.nodes}))


def _attempts(source: Source) -> Iterator[Sample]:
    return (((kind,), count) for kind, count in sorted(({SUCCEEDED: 0} | source.statistics.attempts).items()))


def _nodes(source: Source) -> Iterator[Sample]:
    reasons = list(source.statistics.nodes.values())
    refusing = sum(reason is not None for reason in reasons)
    return iter(((("up",), len(reasons) - refusing), (("refusing",), refusing)))


def _transactions(source: Source) -> Iterator[Sample]:
    return (((kind,), timing) for kind, timing in source.statistics.transactions.items())


#: All metrics of a head.
METRICS = (
    HeadMetric(
        "haloctl_leading",
        GaugeMetricFamily,
        "1 for the head that leads, 0 for one that stands by.",
        lambda source: [((), int(source.statistics.is_leading))],
    ),
    HeadMetric(
        "haloctl_scheduler_lag_seconds",
        GaugeMetricFamily,
        "Seconds since the head last looked for work: about 1 when idle, more while database, store or Ray are away.",
        lambda source: [((), source.statistics.lag_s)],
    ),
    HeadMetric("haloctl_tasks", GaugeMetricFamily, "Tasks that have not ended, by state.", _tasks, ("state",)),
    HeadMetric(
        "haloctl_unschedulable_tasks", GaugeMetricFamily, "Tasks that no node of the cluster can take.", _unschedulable
    ),
    HeadMetric("haloctl_running_attempts", GaugeMetricFamily, "Attempts that run, by node.", _running, ("node",)),
    HeadMetric(
        "haloctl_attempts",
        CounterMetricFamily,
        "Attempts that ended: succeeded, or the kind of failure (node_lost, lease_lost, tool_failed, ...).",
        _attempts,
        ("outcome",),
    ),
    HeadMetric(
        "haloctl_nodes",
        GaugeMetricFamily,
        "Nodes of the cluster that take tasks (up), and that take none (refusing).",
        _nodes,
        ("state",),
    ),
    HeadMetric(
        "haloctl_lost_nodes",
        CounterMetricFamily,
        "Times that a node went down.",
        lambda source: [((), source.statistics.lost_nodes)],
    ),
    HeadMetric(
        "haloctl_steps_seconds",
        SummaryMetricFamily,
        "Steps of the head: results stored, decisions made and carried out.",
        lambda source: [((), source.statistics.steps)],
    ),
    HeadMetric(
        "haloctl_decisions_seconds",
        SummaryMetricFamily,
        "Decisions of the scheduler, with what they have the head do.",
        lambda source: [((), source.statistics.decisions)],
    ),
    HeadMetric(
        "haloctl_database_seconds",
        SummaryMetricFamily,
        "Transactions of the head, from begin to commit.",
        _transactions,
        ("kind",),
    ),
    HeadMetric(
        "haloctl_free_disk_bytes",
        GaugeMetricFamily,
        "Free space of the head's data folder (data), and of an artifact store in a folder (artifacts).",
        Source.free_disk,
        ("of",),
    ),
)


@dataclass(frozen=True, eq=False)
class HeadCollector(Collector):
    """Computes all metrics of a head."""

    source: Source

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics with their values now."""
        for metric in METRICS:
            family: Any = metric.family(metric.name, metric.help, labels=metric.labels)
            for labels, value in metric.read(self.source):
                values = (value.count, value.total_s) if isinstance(value, Timing) else (value,)
                family.add_metric(labels, *values)
            yield family


def serve(statistics: Statistics, settings: Settings, host: str, port: int) -> None:
    """Serve the metrics over HTTP for as long as this process lives. Raises BadSetting when it can't listen there."""
    folders = {"data": settings.data, "artifacts": folder_of(settings.artifacts)}
    registry = CollectorRegistry()
    registry.register(HeadCollector(Source(statistics, {name: path for name, path in folders.items() if path})))
    ProcessCollector(registry=registry)
    try:
        start_http_server(port, host, registry)
    except OSError as error:
        remedy = "choose another --metrics-port or --metrics-host"
        raise BadSetting("--metrics-port", f"{host}:{port}: {error.strerror or error}; {remedy}") from error
