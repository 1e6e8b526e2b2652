"""`haloctl nodes`."""

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.commands import options
from orchestrator.commands.groups import ListByDefault

if TYPE_CHECKING:
    from jobs.task import Check

app = typer.Typer(cls=ListByDefault, help="List nodes and devices, check settings, drain and quarantine.")

NodeOrDevice = Annotated[
    str, typer.Argument(help="A node or one of its devices: n1, n1/mi300x:3.", metavar="NODE[/KIND:INDEX]")
]
NodeName = Annotated[str, typer.Argument(help="Name of a node.", metavar="NODE")]


@app.command("list")
def list_nodes(
    history: Annotated[
        bool,
        typer.Option(
            "--history", help="List what machines lost and refused, their ups and downs, and what was done to them."
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """List nodes and their devices.

    `speed` is each device's speed relative to the median of its peers at equal work, slowest first.
    """
    if history:
        _print_history(json=json)
        return
    from orchestrator import known_nodes, output
    from orchestrator.answers.machines import relative_speeds
    from orchestrator.context import open_context
    from orchestrator.views import node_rows

    with open_context() as context:
        nodes = known_nodes.list_nodes(context)
        speeds = relative_speeds(context.database)
    if json:
        output.print_json([node_rows.to_json(node, speeds) for node in nodes])
    elif not nodes:
        output.print_message("no nodes yet: run `haloctl node --head HOST:PORT` on each machine")
    else:
        output.print_table(node_rows.build_table(nodes, speeds))


def _print_history(*, json: bool) -> None:
    """Print the failures that machines are to blame for, and the changes of nodes."""
    from db.reads.events import EventFilter, read_events
    from jobs.state import POLICIES
    from orchestrator.context import open_context
    from orchestrator.views import event_rows
    from orchestrator.views.formats import OutputFormat

    kinds = [kind for kind, policy in POLICIES.items() if policy.tries != 1 and not policy.keeps_results]
    with open_context() as context:
        rows = read_events(context.database, EventFilter(failure_kinds=kinds))
    OutputFormat(json).print_rows(
        [event_rows.to_json(row) for row in rows],
        event_rows.COLUMNS,
        lambda: event_rows.build_table(rows),
        "no machine has lost or refused a task",
    )


@app.command("check")
def check(
    fix: Annotated[bool, typer.Option("--fix", help="Apply the wanted settings to this machine.")] = False,
    json: options.Json = False,
) -> None:
    """Check the settings that affect timings.

    It shows those of all nodes, or of this machine before a head has ever run. With --fix it shows those of this
    machine afterwards, and exits with 5 when one of them is still wrong.
    """
    from jobs.errors import SettingsNotApplied
    from orchestrator import known_nodes, output
    from orchestrator.context import open_context
    from orchestrator.views import node_rows

    if fix:
        checks_by_node = [_apply_fixes()]
    else:
        with open_context() as context:
            checks_by_node = [(node.id, node.checks) for node in known_nodes.list_nodes(context)]
    if json:
        output.print_json([node_rows.checks_to_json(name, checks) for name, checks in checks_by_node])
    else:
        output.print_table(node_rows.build_check_table(checks_by_node))
    if fix and (failed := tuple(check.name for check in checks_by_node[0][1] if not check.is_ok)):
        raise SettingsNotApplied(failed)


@app.command("quarantine")
def quarantine(
    target: NodeOrDevice,
    why: Annotated[str, typer.Option("--why", help="The reason, shown by `haloctl nodes` and by waiting tasks.")],
) -> None:
    """Start no more tasks on a node or a device until `release`."""
    from db.reads import machines
    from jobs.errors import NothingToDo
    from jobs.task import Unfit
    from orchestrator import known_nodes, output
    from orchestrator.context import open_context
    from orchestrator.views import node_rows

    name, kind, index = node_rows.parse_target(target)
    with open_context() as context:
        known_nodes.record_local_node(context)
        if reason := node_rows.quarantine_reason(machines.node(context.database, name), kind, index):
            raise NothingToDo(f"{target} is already quarantined: {reason}")
        context.store.quarantine([Unfit(name, why, kind, index)])
    output.print_message(f"{target}: quarantined; `haloctl nodes release {target}` undoes it")


@app.command("release")
def release(target: NodeOrDevice) -> None:
    """Release a node or a device from quarantine."""
    from db.reads import machines
    from jobs.errors import NothingToDo
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.views import node_rows

    name, kind, index = node_rows.parse_target(target)
    with open_context() as context:
        if not node_rows.quarantine_reason(machines.node(context.database, name), kind, index):
            raise NothingToDo(f"{target} is not quarantined: run `haloctl nodes` to see what is")
        context.store.release(name, kind, index if kind else None)
    output.print_message(f"{target}: released")


@app.command("drain")
def drain(
    name: NodeName,
    requeue: Annotated[bool, typer.Option("--requeue", help="Stop and requeue what runs there.")] = False,
    why: Annotated[
        str, typer.Option("--why", help="The reason, shown by `haloctl nodes`.", metavar="TEXT")
    ] = "drained by hand",
) -> None:
    """Start no more tasks on a node until `resume`.

    Running tasks finish, or are requeued.
    """
    from db.reads import machines
    from db.writes.nodes import Cordon
    from orchestrator import known_nodes, output
    from orchestrator.context import open_context
    from orchestrator.formatting import format_count

    with open_context() as context:
        known_nodes.record_local_node(context)
        context.store.cordon_node(name, Cordon.REQUEUING if requeue else Cordon.DRAINING, why)
        count = machines.running_attempts(context.database).get(name, 0)
    running = f", {format_count(count, 'attempt')} running" if count else ""
    output.print_message(f"{name}: draining{running}; `haloctl nodes resume {name}` undoes it")


@app.command("resume")
def resume(name: NodeName) -> None:
    """Use a drained node again; a quarantined one needs `release`."""
    from db.reads import machines
    from db.writes.nodes import Cordon
    from jobs.errors import NothingToDo
    from orchestrator import output
    from orchestrator.context import open_context

    with open_context() as context:
        cordon = machines.node(context.database, name).cordon
        if cordon not in (Cordon.DRAINING, Cordon.REQUEUING):
            remedy = f": it is quarantined; run `haloctl nodes release {name}`" if cordon else ""
            raise NothingToDo(f"{name} is not drained{remedy}")
        context.store.uncordon_node(name)
    output.print_message(f"{name}: resumed")


def _apply_fixes() -> "tuple[str, tuple[Check, ...]]":
    """Apply the wanted settings, report each change, and return the checks afterwards."""
    import socket

    from orchestrator import output
    from workers.machine import machine_settings
    from workers.machine.devices import read_machine

    for change in machine_settings.apply_fixes(read_machine()):
        if change.error:
            output.print_message(f"{change.setting}: not changed: {change.error}; run as root: {change.fix}")
        else:
            output.print_message(f"{change.setting}: changed until the next boot: {change.fix}")
    return socket.gethostname(), machine_settings.checks(read_machine())
