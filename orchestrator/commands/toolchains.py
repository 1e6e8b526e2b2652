"""`haloctl toolchains`."""

import typer

app = typer.Typer(help="List the toolchains that stages can run under, build them, remove what nobody uses.")

NAME = typer.Argument(..., help="A toolchain's name: default, iree-3.12, ...")
JSON = typer.Option(False, "--json", help="Answer in JSON.")


@app.callback(invoke_without_command=True)
def toolchains(context: typer.Context, json: bool = JSON) -> None:
    """List the toolchains that stages can run under, build them, remove what nobody uses."""
    if context.invoked_subcommand is None:
        _list(json=json)


@app.command("list")
def list_toolchains(json: bool = JSON) -> None:
    """List them: what they are made of, what they were resolved to, where that is built."""
    _list(json=json)


@app.command("show")
def show(name: str = NAME, json: bool = JSON) -> None:
    """Show one, with every package in it."""
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.showing import toolchain_rows
    from orchestrator.toolchains.known_toolchains import Toolchains

    with opened() as world:
        found = Toolchains(world).one(name)
    if json:
        output.as_json(toolchain_rows.as_json(found))
        return
    for label, text in toolchain_rows.facts(found):
        output.answer(f"{label:10} {text}")
    for pin in toolchain_rows.pins(found):
        output.answer(f"  {pin}")


@app.command("build")
def build(name: str = NAME, json: bool = JSON) -> None:
    """Build one on this machine, as nodes do by themselves when a task needs it."""
    import time

    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.showing import toolchain_rows
    from orchestrator.toolchains.known_toolchains import Toolchains

    with opened() as world:
        known = Toolchains(world)
        lock = known.current(name)
        if known.environments.toolchain(lock.digest) is None:
            output.note(f"building {name}: {', '.join(toolchain_rows.pins_of(lock))}")
        began = time.monotonic()
        known.built(lock)
        took_s = time.monotonic() - began
        found = Toolchains(world).one(name)
    if json:
        output.as_json(toolchain_rows.as_json(found))
    elif found.here:
        output.answer(str(found.here.folder))
        output.note(f"{name} is built here: {output.size(found.here.size_bytes)}, in {output.seconds(took_s)}")


@app.command("update")
def update(name: str = NAME, json: bool = JSON) -> None:
    """Resolve one anew: from now on tasks run under the versions that there are now."""
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.showing import toolchain_rows
    from orchestrator.toolchains.known_toolchains import Toolchains

    with opened() as world:
        known = Toolchains(world)
        before = known.one(name)
        known.update(name)
        after = Toolchains(world).one(name)
    if json:
        output.as_json(toolchain_rows.as_json(after))
        return
    changes = list(toolchain_rows.changes(before, after))
    for change in changes:
        output.answer(change)
    if not changes:
        output.note(f"{name} is what it was")


@app.command("gc")
def gc(
    days: float = typer.Option(30.0, "--days", help="What nobody has used for so many days.", min=0.0),
    json: bool = JSON,
) -> None:
    """Remove what was built on this machine and nobody has used for long; what runs stays."""
    from orchestrator import output
    from orchestrator.settings import from_environment
    from workers.toolchains.environments import Environments

    removed = Environments(from_environment().data).gc(days * 24 * 3600.0)
    if json:
        output.as_json(
            [{"name": one.toolchain.name, "lock": one.toolchain.lock, "size_bytes": one.size_bytes} for one in removed]
        )
        return
    for one in removed:
        output.answer(f"{one.toolchain.name}: {output.size(one.size_bytes)}, last used {one.used_at:%Y-%m-%d}")
    if not removed:
        output.note(f"nothing here was unused for {days:g} days")


def _list(*, json: bool) -> None:
    from jobs.toolchains import FAMILIES
    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.showing import toolchain_rows
    from orchestrator.toolchains.known_toolchains import Toolchains

    with opened() as world:
        found = Toolchains(world).all()
    if json:
        output.as_json([toolchain_rows.as_json(one) for one in found])
        return
    output.table(toolchain_rows.COLUMNS, map(toolchain_rows.line, found), right=toolchain_rows.RIGHT)
    output.note(f"there are also {' and '.join(FAMILIES)}; `haloctl toolchains show NAME` says more")
