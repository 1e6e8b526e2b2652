"""The metrics of a head: each is documented, and a disk that hangs takes none of the others away."""

from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest

from jobs.state import Failure, FailureKind
from jobs.task import TaskResult
from orchestrator.leader.metrics import METRICS, HeadCollector, Source
from orchestrator.leader.statistics import Statistics

OPERATIONS = Path(__file__).parents[3] / "docs" / "guide" / "operations.md"


def answer(source: Source) -> str:
    registry = CollectorRegistry()
    registry.register(HeadCollector(source))
    return generate_latest(registry).decode()


def test_every_metric_is_documented() -> None:
    documented = OPERATIONS.read_text()
    assert [metric.name for metric in METRICS if f"| `{metric.name}" not in documented] == []


def test_lost_attempts_are_counted_by_kind() -> None:
    statistics = Statistics()
    statistics.ended(TaskResult("a-01-1", 1, Failure(FailureKind.NODE_LOST, "gone")))
    text = answer(Source(statistics, {}))
    assert 'haloctl_attempts_total{outcome="node_lost"} 1.0' in text
    assert 'haloctl_attempts_total{outcome="succeeded"} 0.0' in text


def test_a_head_that_leads_no_more_tells_nothing_of_nodes() -> None:
    statistics = Statistics(nodes={"n1": None, "n2": "it is being drained"})
    statistics.set_leading(True)
    text = answer(Source(statistics, {}))
    assert 'haloctl_nodes{state="up"} 1.0' in text
    assert 'haloctl_running_attempts{node="n2"} 0.0' in text
    statistics.set_leading(False)
    text = answer(Source(statistics, {}))
    assert 'haloctl_nodes{state="up"} 0.0' in text
    assert "haloctl_running_attempts{" not in text


def test_the_lag_is_that_of_the_lead() -> None:
    now_s = 10.0
    statistics = Statistics(clock=lambda: now_s)
    statistics.set_leading(True)
    statistics.stepped(0.5)
    now_s = 14.0
    assert statistics.lag_s == 4.0
    statistics.set_leading(False)
    assert statistics.lag_s == 0.0


def test_a_disk_that_hangs_or_is_gone_is_left_out_alone(tmp_path: Path) -> None:
    folders = {"artifacts": tmp_path / "gone", "data": tmp_path}
    source = Source(Statistics(), folders)
    assert 'haloctl_free_disk_bytes{of="data"}' in answer(source)
    with source._disks:
        text = answer(source)
    assert 'haloctl_free_disk_bytes{of="data"}' not in text
    assert "haloctl_leading 0.0" in text
