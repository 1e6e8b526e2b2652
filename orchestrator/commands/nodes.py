"""`haloctl nodes`."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from jobs.task import Node


def nodes(json: bool = typer.Option(False, "--json", help="Answer in JSON.")) -> None:
    """List nodes and their devices."""
    from collections import Counter
    from contextlib import closing

    from jobs.task import GIB
    from orchestrator import output
    from orchestrator.ray_executor import RayExecutor
    from orchestrator.settings import from_environment

    settings = from_environment()
    with closing(RayExecutor(settings.data, settings.ray_address)) as executor:
        found = executor.nodes()
    if json:
        output.as_json([_as_json(node) for node in found])
        return
    output.table(
        ("node", "host", "cpus", "memory", "devices"),
        [
            (
                node.id,
                node.host,
                str(node.cpus),
                f"{node.memory_bytes / GIB:.0f} GiB",
                ", ".join(f"{count} x {kind}" for kind, count in Counter(d.kind for d in node.devices).items()),
            )
            for node in found
        ],
        right=("cpus", "memory"),
    )


def _as_json(node: "Node") -> dict[str, object]:
    from dataclasses import asdict

    return asdict(node)
