"""`haloctl toolchains`."""

from typing import Annotated

import typer

from orchestrator.commands import options
from orchestrator.commands.groups import ListByDefault

app = typer.Typer(cls=ListByDefault, help="List, build, update and remove toolchains.")

Name = Annotated[str, typer.Argument(help="Name of a toolchain: default, iree-3.12, ...", metavar="NAME")]


@app.command("list")
def list_toolchains(json: options.Json = False) -> None:
    """List toolchains with their packages, locks and builds."""
    from jobs.toolchain_table import families
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.toolchains.known_toolchains import Toolchains
    from orchestrator.views import toolchain_rows

    with open_context() as context:
        toolchains = Toolchains(context).all()
    if json:
        output.print_json([toolchain_rows.to_json(toolchain) for toolchain in toolchains])
        return
    output.print_table(toolchain_rows.build_table(toolchains))
    output.print_message(f"also available: {', '.join(families())}; see `haloctl toolchains show NAME`")


@app.command("show")
def show(name: Name, json: options.Json = False) -> None:
    """Show a toolchain with all its packages."""
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.toolchains.known_toolchains import Toolchains
    from orchestrator.views import toolchain_rows

    with open_context() as context:
        toolchain = Toolchains(context).find(name)
    if json:
        output.print_json(toolchain_rows.to_json(toolchain))
        return
    for label, text in toolchain_rows.describe(toolchain):
        output.print_line(f"{label:10} {text}")
    for pin in toolchain_rows.list_pins(toolchain):
        output.print_line(f"  {pin}")


@app.command("build")
def build(name: Name, json: options.Json = False) -> None:
    """Build a toolchain on this machine.

    Nodes build the toolchains that their tasks need by themselves.
    """
    import time

    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.formatting import format_bytes, format_duration
    from orchestrator.toolchains.known_toolchains import Toolchains
    from orchestrator.views import toolchain_rows

    with open_context() as context:
        toolchains = Toolchains(context)
        lock = toolchains.current(name)
        if toolchains.environments.toolchain(lock.digest) is None:
            output.print_message(f"building {name}: {', '.join(toolchain_rows.lock_pins(lock))}")
        started = time.monotonic()
        toolchains.build(lock)
        elapsed_s = time.monotonic() - started
        toolchain = Toolchains(context).find(name)
    if json:
        output.print_json(toolchain_rows.to_json(toolchain))
    elif toolchain.environment:
        output.print_line(str(toolchain.environment.folder))
        size = format_bytes(toolchain.environment.size_bytes)
        output.print_message(f"{name}: built, {size}, in {format_duration(elapsed_s)}")


@app.command("update")
def update(name: Name, json: options.Json = False) -> None:
    """Resolve a toolchain again.

    Later tasks run under the versions that are newest now.
    """
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.toolchains.known_toolchains import Toolchains
    from orchestrator.views import toolchain_rows

    with open_context() as context:
        toolchains = Toolchains(context)
        before = toolchains.find(name)
        toolchains.update(name)
        after = Toolchains(context).find(name)
    if json:
        output.print_json(toolchain_rows.to_json(after))
        return
    changes = list(toolchain_rows.changed_packages(before, after))
    for change in changes:
        output.print_line(change)
    if not changes:
        output.print_message(f"{name}: unchanged")


@app.command("gc")
def gc(
    days: Annotated[
        float,
        typer.Option(
            "--days", help="Remove what nobody used for this long.", min=0.0, max=36_500.0, callback=options.finite
        ),
    ] = 30.0,
    json: options.Json = False,
) -> None:
    """Remove unused toolchains from this machine.

    A toolchain that a running task uses stays.
    """
    from orchestrator import output
    from orchestrator.formatting import format_bytes
    from orchestrator.settings import from_environment
    from workers.toolchains.environments import Environments

    removed = Environments(from_environment().data).gc(days * 24 * 3600.0)
    if json:
        output.print_json(
            [
                {"name": built.toolchain.name, "lock": built.toolchain.lock, "size_bytes": built.size_bytes}
                for built in removed
            ]
        )
        return
    for built in removed:
        size = format_bytes(built.size_bytes)
        output.print_line(f"{built.toolchain.name}: {size}, last used {built.used_at:%Y-%m-%d}")
    if not removed:
        output.print_message(f"nothing to remove: all were used within {days:g} days")
