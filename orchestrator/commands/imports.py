"""`haloctl import`."""

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from datetime import datetime

    from jobs.variants import Variant
    from orchestrator.imports.found import FoundFile, Workload

app = typer.Typer(
    help="Take over results that other programs or people wrote down, so that history begins before haloctl did.",
    no_args_is_help=True,
)

CLOCKS_DIFFER = timedelta(days=1)  #: some files tell a machine's local time without its zone

VARIANT = typer.Option(..., "--variant", help="What was measured: llama3.1-8B-FP8-TP8; without TPn it is TP1.")
TARGET = typer.Option(..., "--target", help="What it ran on: mi300x, ...")
DATE = typer.Option(None, "--date", help="When: 2024-11-15 or 2024-11-15T08:00; without it what the file says.")
BATCH = typer.Option(None, "--batch", help="The workload's batch size, where the file does not say it.", min=1)
PROMPT = typer.Option(None, "--prompt-tokens", help="Its prompt length, where the file does not say it.", min=1)
NEW = typer.Option(None, "--new-tokens", help="Tokens generated for each prompt, where it does not say it.", min=1)
NODE = typer.Option(None, "--node", help="The machine's name, if it is known.")


@app.command("vllm")
def vllm(
    files: list[Path] = typer.Argument(..., help="JSON that `vllm bench serve`, `latency` or `throughput` wrote."),
    variant: str = VARIANT,
    target: str = TARGET,
    date: str | None = DATE,
    batch: int | None = BATCH,
    prompt_tokens: int | None = PROMPT,
    new_tokens: int | None = NEW,
    node: str | None = NODE,
) -> None:
    """Import vLLM's own benchmark results: TTFT, ITL, latency, throughput.

    A result is imported once, whatever its file is called: one that --append-result lets grow can be imported again.
    """
    from orchestrator.imports import vllm as reader

    model, found = _variant(variant, target)
    at, workload = _said(date, batch, prompt_tokens, new_tokens)
    for file in files:
        _keep(reader.read(file, model, found, at, workload), file, node)


@app.command("iree")
def iree(
    files: list[Path] = typer.Argument(..., help="JSON that `iree-benchmark-module` wrote."),
    variant: str = VARIANT,
    target: str = TARGET,
    date: str | None = DATE,
    batch: int | None = BATCH,
    prompt_tokens: int | None = PROMPT,
    new_tokens: int | None = NEW,
    node: str | None = NODE,
) -> None:
    """Import IREE's own benchmark results: TTFT from prefill_bsN, ITL from decode_bsN.

    A file is imported once, whatever it is called.
    """
    from orchestrator.imports import iree as reader

    model, found = _variant(variant, target)
    at, workload = _said(date, batch, prompt_tokens, new_tokens)
    for file in files:
        _keep(reader.read(file, model, found, at, workload), file, node)


@app.command("tracker")
def tracker(
    file: Path = typer.Argument(..., help="A page in Markdown, or one table of it in CSV."),
    target: str = TARGET,
    date: str | None = typer.Option(None, "--date", help="Of verdicts, whose table names none: 2024-11-15."),
    tp: int = typer.Option(1, "--tp", help="Tensor parallelism of variants whose names don't say it.", min=1),
    batch: int | None = BATCH,
    prompt_tokens: int | None = PROMPT,
    new_tokens: int | None = NEW,
    node: str | None = NODE,
) -> None:
    """Import a tracker's tables: PASS and FAIL by stage with what they link to, (TTFT, ITL) in ms by date.

    When the page has grown, import it again: what is there already is left out. Its column of targets is imported by
    `haloctl targets import`.
    """
    from orchestrator.imports import tracker as reader

    at, workload = _said(date, batch, prompt_tokens, new_tokens)
    _expect_target(target)
    _keep(reader.read(file, reader.Asked(target, tp, at, workload)), file, node)


@app.command("remove")
def remove(job: str = typer.Argument(..., help="The id of a job that was imported.")) -> None:
    """Remove an imported job with its results; its file can be imported again."""
    from db import imports
    from orchestrator import output
    from orchestrator.context import opened

    with opened() as context:
        removed = imports.forget(context.database, job)
    output.note(f"removed: job {removed}")


def _variant(name: str, target: str) -> tuple[str, "Variant"]:
    from jobs.errors import BadSetting
    from orchestrator.imports.names import variant_called

    _expect_target(target)
    try:
        return variant_called(name, target)
    except ValueError as error:
        raise BadSetting("--variant", str(error)) from error


def _expect_target(name: str) -> None:
    from jobs.errors import BadSetting
    from jobs.targets import TARGETS

    if name not in TARGETS:
        raise BadSetting("--target", f"no target is called {name!r}: there are {', '.join(TARGETS)}")


def _said(
    date: str | None, batch: int | None, prompt_tokens: int | None, new_tokens: int | None
) -> tuple["datetime | None", "Workload"]:
    from datetime import UTC, datetime

    from orchestrator.imports.found import Workload
    from orchestrator.showing.rows import point_in_time

    at = point_in_time(date, datetime.now(UTC), "--date") if date else None
    return at, Workload(batch, prompt_tokens, new_tokens)


def _keep(found: "FoundFile", file: Path, node: str | None) -> None:
    import getpass
    from datetime import UTC, datetime

    from db import imports
    from jobs.errors import FileError
    from orchestrator import output
    from orchestrator.context import opened

    for text in found.left_out:
        output.note(f"{file}: {text}")
    if late := [cell for cell in found.cells if cell.at > datetime.now(UTC) + CLOCKS_DIFFER]:
        raise FileError(
            str(file), late[0].line, "", f"is of {late[0].at.astimezone():%Y-%m-%d %H:%M}, which is still to come"
        )
    with opened() as context:
        kept = imports.take_in(context.database, found.cells, file.name, getpass.getuser(), node or imports.NODE)
    for job, count in kept.known.items():
        output.note(f"{file}: {output.count(count, 'cell')} imported before, as job {job}")
    for job in kept.jobs:
        output.answer(job)
    if kept.cells:
        output.note(f"{file}: {output.count(kept.cells, 'cell')} imported")
    else:
        output.note(f"{file}: nothing new; to read it otherwise, `haloctl import remove JOB` first")
