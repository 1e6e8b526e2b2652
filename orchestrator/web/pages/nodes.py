"""Nodes and devices, who uses them, and what was used."""

from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from db.reads import machines, reports
from db.reads.attempt_costs import attempt_costs
from orchestrator.answers.machines import relative_speeds
from orchestrator.views import node_rows, rows, usage_rows
from orchestrator.web.access import ReaderUser
from orchestrator.web.pages import rendering
from orchestrator.web.site import Site, SiteOf

router = APIRouter(include_in_schema=False)

USAGE_DAYS = 30
MAX_TASKS = 1000


@router.get("/nodes")
def nodes(request: Request, site: SiteOf, user: ReaderUser) -> Response:
    """Show nodes, their devices, and device time of the last month."""
    return rendering.respond("nodes.html.j2", request, site, user, lambda: read(site))


def read(site: Site) -> dict[str, Any]:
    """Return what the page shows."""
    known, speeds, now = machines.nodes(site.database), relative_speeds(site.database), datetime.now(UTC)
    costs = attempt_costs(site.database, now - timedelta(days=USAGE_DAYS), now)
    usage = [
        (name, usage_rows.build_table(usage_rows.sum_costs(costs, groups), groups))
        for name in ("user", "model", "stage")
        for groups in [usage_rows.parse_groups(name)]
    ]
    return {
        "table": node_rows.build_table(known, speeds),
        "nodes": known,
        "users": device_users(site),
        "usage": [(name, table) for name, table in usage if table.rows],
        "usage_days": USAGE_DAYS,
    }


def device_users(site: Site) -> dict[str, tuple[str, str]]:
    """Return the task that uses each device, `n1/mi300x:3`, and what it is for."""
    tasks = [rows.task_to_json(task) for task in reports.open_tasks(site.database, MAX_TASKS)]
    return {
        f"{task['node']}/{':'.join(device.split(':')[:2])}": (task["task"], f"{task['stage']} for {task['subject']}")
        for task in tasks
        for device in (task["devices"] if task["state"] == "running" else ())
    }
