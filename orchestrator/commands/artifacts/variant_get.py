"""`haloctl artifacts get` for a variant."""

from pathlib import Path


def get_variant(name: str, folder: Path, *, target: str | None, job: str | None, json: bool) -> None:
    """Write a variant's files into a folder, and print the commands that time its functions."""
    import shlex
    from dataclasses import asdict

    from orchestrator import output
    from orchestrator.artifacts import variant_folder, variant_layout
    from orchestrator.context import open_context

    with open_context() as context:
        variant = variant_folder.find(context, name, target, job)
        config = variant_folder.write_folder(variant, context.artifacts, folder)
    commands = variant_layout.commands(config, variant.target, folder)
    if json:
        files = [asdict(file) for file in variant_layout.folder_files(variant)]
        about = {"variant": variant.variant, "target": variant.target, "job": variant.job, "folder": str(folder)}
        output.print_json({**about, "files": files, "commands": [list(argv) for argv in commands]})
        return
    for argv in commands:
        output.print_line(shlex.join(argv))
    script = folder / variant_layout.SCRIPT
    usage = (
        f"`sh {script}` times every function, `sh {script} run` calls each once" if commands else "it has no weights"
    )
    output.print_message(f"written: {folder} ({variant.variant} for {variant.target}, job {variant.job}); {usage}")
