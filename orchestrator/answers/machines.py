"""Nodes and their devices as JSON objects."""

from typing import Any

from db.connection.engine import Database
from db.reads import machines
from db.reads.run_filter import RunFilter
from db.reads.runs import runs
from orchestrator.analysis.speed import MAX_MEASUREMENTS, SPEED_METRICS, DeviceSpeed, device_speeds
from orchestrator.views import node_rows


def nodes(database: Database) -> list[dict[str, Any]]:
    """Return the recorded nodes."""
    speeds = relative_speeds(database)
    return [node_rows.to_json(node, speeds) for node in machines.nodes(database)]


def relative_speeds(database: Database) -> dict[str, DeviceSpeed]:
    """Return the speeds of devices relative to their peers, by place."""
    return device_speeds(runs(database, RunFilter(SPEED_METRICS), MAX_MEASUREMENTS))
