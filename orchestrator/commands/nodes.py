"""`haloctl nodes`."""

from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from jobs.task import Check

app = typer.Typer(help="List nodes and their devices, check their settings, take them out of use.")

TARGET = typer.Argument(..., metavar="NODE[/KIND:INDEX]", help="A node, or one device of it: n1, n1/mi300x:3.")
JSON = typer.Option(False, "--json", help="Answer in JSON.")


@app.callback(invoke_without_command=True)
def nodes(context: typer.Context, json: bool = JSON) -> None:
    """List nodes and their devices, check their settings, take them out of use.

    Speed is how fast each device is beside the median of its peers at equal work, the slowest first.
    """
    if context.invoked_subcommand is not None:
        return
    from db.runs import Chosen, runs
    from orchestrator import known_nodes, output
    from orchestrator.context import opened
    from orchestrator.deciding.speed import METRICS_OF_SPEED, NEWEST, speeds
    from orchestrator.showing import node_rows

    with opened() as world:
        found = known_nodes.seen(world)
        speed = speeds(runs(world.database, Chosen(METRICS_OF_SPEED), NEWEST))
    if json:
        output.as_json([node_rows.as_json(node, speed) for node in found])
    elif not found:
        output.note("no node has joined yet: `haloctl node --head HOST:PORT` on a machine makes it one")
    else:
        lines = [node_rows.line(node, speed) for node in found]
        output.table(node_rows.COLUMNS, lines, right=node_rows.RIGHT)


@app.command("check")
def check(
    fix: bool = typer.Option(False, "--fix", help="Change what is not as wanted, on this machine alone."),
    json: bool = JSON,
) -> None:
    """Show the settings that timings depend on: of every node, or of this machine where no head has ever led.

    With --fix, of this machine as they are afterwards; the exit code is 5 when any of them is still not as wanted.
    """
    from jobs.errors import SettingsLeft
    from orchestrator import known_nodes, output
    from orchestrator.context import opened
    from orchestrator.showing import node_rows

    if fix:
        found = [_fixed()]
    else:
        with opened() as world:
            found = [(node.id, node.checks) for node in known_nodes.seen(world)]
    if json:
        output.as_json([node_rows.checks_as_json(name, checks) for name, checks in found])
    else:
        lines = [line for name, checks in found for line in node_rows.check_lines(name, checks)]
        output.table(node_rows.CHECK_COLUMNS, lines)
    if fix and (left := tuple(check.name for check in found[0][1] if not check.is_ok)):
        raise SettingsLeft(left)


@app.command("quarantine")
def quarantine(
    target: str = TARGET,
    why: str = typer.Option(..., "--why", help="What is wrong with it: shown wherever it is missed."),
) -> None:
    """Start nothing more on a node or a device, until it is released."""
    from db import machines
    from jobs.errors import NothingToDo
    from jobs.task import Unfit
    from orchestrator import known_nodes, output
    from orchestrator.context import opened
    from orchestrator.showing import node_rows

    name, kind, index = node_rows.parsed_target(target)
    with opened() as world:
        known_nodes.seen(world)
        if reason := node_rows.quarantined_why(machines.node(world.database, name), kind, index):
            raise NothingToDo(f"{target} is quarantined already: {reason}")
        world.store.quarantine([Unfit(name, why, kind, index)])
    output.note(f"nothing more is started on {target}; `haloctl nodes release {target}` undoes it")


@app.command("release")
def release(target: str = TARGET) -> None:
    """Use a node or a device again that was quarantined."""
    from db import machines
    from jobs.errors import NothingToDo
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.showing import node_rows

    name, kind, index = node_rows.parsed_target(target)
    with opened() as world:
        if not node_rows.quarantined_why(machines.node(world.database, name), kind, index):
            raise NothingToDo(f"{target} is not quarantined: `haloctl nodes` shows what is")
        world.store.release(name, kind, index if kind else None)
    output.note(f"{target} is used again")


@app.command("drain")
def drain(
    name: str = typer.Argument(..., metavar="NODE", help="The node's name: `haloctl nodes` lists them."),
    hand_back: bool = typer.Option(False, "--hand-back", help="End what runs there, and queue it again."),
    why: str = typer.Option("drained by hand", "--why", help="What others are told.", metavar="TEXT"),
) -> None:
    """Start nothing more on a node; what runs there may finish, or is handed back."""
    from db import machines
    from db.nodes import Closed
    from orchestrator import known_nodes, output
    from orchestrator.context import opened

    with opened() as world:
        known_nodes.seen(world)
        world.store.close_node(name, Closed.HANDING_BACK if hand_back else Closed.DRAINING, why)
        running = machines.running(world.database).get(name, 0)
    left = f" {output.count(running, 'attempt')} still run there;" if running else ""
    output.note(f"nothing more is started on {name};{left} `haloctl nodes resume {name}` undoes it")


@app.command("resume")
def resume(
    name: str = typer.Argument(..., metavar="NODE", help="The node's name: `haloctl nodes` lists them."),
) -> None:
    """Use a node again that was drained; what is quarantined stays so."""
    from db import machines
    from db.nodes import Closed
    from jobs.errors import NothingToDo
    from orchestrator import output
    from orchestrator.context import opened

    with opened() as world:
        closed = machines.node(world.database, name).closed
        if closed not in (Closed.DRAINING, Closed.HANDING_BACK):
            more = f": it is quarantined, and `haloctl nodes release {name}` undoes that" if closed else ""
            raise NothingToDo(f"{name} is not drained{more}")
        world.store.open_node(name)
    output.note(f"{name} is used again")


def _fixed() -> "tuple[str, tuple[Check, ...]]":
    """Change this machine's settings, tell of each change, and look again."""
    import socket

    from orchestrator import output
    from workers import machine_settings
    from workers.devices import this_machine

    for change in machine_settings.fix(this_machine()):
        if change.error:
            output.note(f"{change.setting} was not changed: {change.error}; a person who may runs: {change.fix}")
        else:
            output.note(f"{change.setting} was changed, until the machine starts again: {change.fix}")
    return socket.gethostname(), machine_settings.checks(this_machine())
