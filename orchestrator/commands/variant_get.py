"""What `haloctl artifacts get` does for a variant."""

from pathlib import Path


def get_variant(name: str, folder: Path, *, target: str | None, job: str | None, json: bool) -> None:
    """Lay the variant out in a folder, and print the commands that time its functions."""
    import shlex
    from dataclasses import asdict

    from orchestrator import output
    from orchestrator.context import opened
    from orchestrator.files import laying_out, variant_set

    with opened() as context:
        found = laying_out.find(context, name, target, job)
        config = laying_out.lay_out(found, context.artifacts, folder)
    commands = variant_set.commands(config, found.target, folder)
    if json:
        files = [asdict(file) for file in variant_set.laid_out(found)]
        about = {"variant": found.variant, "target": found.target, "job": found.job, "folder": str(folder)}
        output.as_json({**about, "files": files, "commands": [list(argv) for argv in commands]})
        return
    for argv in commands:
        output.answer(shlex.join(argv))
    script = folder / variant_set.SCRIPT
    told = f"`sh {script}` times every function, `sh {script} run` calls each once" if commands else "it has no weights"
    output.note(f"{found.variant} for {found.target}, of job {found.job}, is in {folder}: {told}")
