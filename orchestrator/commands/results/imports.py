"""`haloctl import`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.commands import options

if TYPE_CHECKING:
    from datetime import datetime

    from jobs.variants import Variant
    from orchestrator.imports.imported_file import ImportedFile, KnownWorkload

app = typer.Typer(help="Import results of other programs and of tracker pages.", no_args_is_help=True)

VariantName = Annotated[
    str, typer.Option("--variant", help="The measured variant: llama3.1-8B-FP8-TP8; TP1 without TPn.")
]
TargetName = Annotated[str, typer.Option("--target", help="A target: cpu, mi300x, ...")]
Date = Annotated[
    str | None,
    typer.Option("--date", help="When it was measured: 2024-11-15 or 2024-11-15T08:00; the file's by default."),
]
NodeName = Annotated[str | None, typer.Option("--node", help="Name of the machine.")]


@app.command("vllm")
def vllm(
    files: Annotated[list[Path], typer.Argument(help="JSON files of `vllm bench serve`, `latency` or `throughput`.")],
    variant: VariantName,
    target: TargetName,
    date: Date = None,
    batch: options.Batch = None,
    prompt_tokens: options.PromptTokens = None,
    new_tokens: options.NewTokens = None,
    node: NodeName = None,
) -> None:
    """Import vLLM's benchmark results: TTFT, ITL, latency, throughput.

    Workload options apply where the file lacks the value. A result is imported once, whatever its file's name, so that
    a file that --append-result extends can be imported again.
    """
    from orchestrator.imports import vllm as reader

    model, parsed_variant = _parse_variant(variant, target)
    at, workload = _parse_conditions(date, batch, prompt_tokens, new_tokens)
    for file in files:
        _import(reader.read(file, model, parsed_variant, at, workload), file, node)


@app.command("iree")
def iree(
    files: Annotated[list[Path], typer.Argument(help="JSON files of `iree-benchmark-module`.")],
    variant: VariantName,
    target: TargetName,
    date: Date = None,
    batch: options.Batch = None,
    prompt_tokens: options.PromptTokens = None,
    new_tokens: options.NewTokens = None,
    node: NodeName = None,
) -> None:
    """Import IREE's benchmark results: prefill_bsN as TTFT, decode_bsN as ITL.

    Workload options apply where the file lacks the value. A file is imported once, whatever its name.
    """
    from orchestrator.imports import iree as reader

    model, parsed_variant = _parse_variant(variant, target)
    at, workload = _parse_conditions(date, batch, prompt_tokens, new_tokens)
    for file in files:
        _import(reader.read(file, model, parsed_variant, at, workload), file, node)


@app.command("tracker")
def tracker(
    file: Annotated[Path, typer.Argument(help="A Markdown page, or one of its tables in CSV.")],
    target: TargetName,
    date: Date = None,
    tp: options.DefaultTp = 1,
    batch: options.Batch = None,
    prompt_tokens: options.PromptTokens = None,
    new_tokens: options.NewTokens = None,
    node: NodeName = None,
) -> None:
    """Import a tracker page: PASS and FAIL by stage, TTFT and ITL by date.

    Cells are imported with their links. --date applies to tables of PASS and FAIL, which contain no dates. Import a
    page again when it has grown: known cells are skipped. `haloctl targets import` reads its column of targets.
    """
    from orchestrator.imports import tracker as reader

    at, workload = _parse_conditions(date, batch, prompt_tokens, new_tokens)
    _check_target(target)
    _import(reader.read(file, reader.TrackerDefaults(target, tp, at, workload)), file, node)


@app.command("remove")
def remove(job: Annotated[str, typer.Argument(help="Id of an imported job.", metavar="JOB")]) -> None:
    """Remove an imported job and its results.

    Its file can be imported again.
    """
    from db.writes import imports
    from orchestrator import output
    from orchestrator.context import open_context

    with open_context() as context:
        removed = imports.forget(context.database, job)
    output.print_message(f"removed: job {removed}")


def _parse_variant(name: str, target: str) -> tuple[str, "Variant"]:
    from jobs.errors import BadSetting
    from orchestrator.imports.variant_names import parse_variant_name

    _check_target(target)
    try:
        return parse_variant_name(name, target)
    except ValueError as error:
        raise BadSetting("--variant", str(error)) from error


def _check_target(name: str) -> None:
    from jobs.errors import BadSetting
    from jobs.targets import TARGETS

    if name not in TARGETS:
        raise BadSetting("--target", f"unknown target {name!r}: choose one of {', '.join(TARGETS)}")


def _parse_conditions(
    date: str | None, batch: int | None, prompt_tokens: int | None, new_tokens: int | None
) -> tuple["datetime | None", "KnownWorkload"]:
    from datetime import UTC, datetime

    from orchestrator.imports.imported_file import KnownWorkload
    from orchestrator.times import parse_time

    at = parse_time(date, datetime.now(UTC), "--date") if date else None
    return at, KnownWorkload(batch, prompt_tokens, new_tokens)


def _import(content: "ImportedFile", file: Path, node: str | None) -> None:
    from datetime import UTC, datetime

    from db.schema.actors import current_actor
    from db.writes import imports
    from orchestrator import output
    from orchestrator.context import open_context
    from orchestrator.formatting import format_count
    from orchestrator.imports.cell_checks import expect_storable

    for message in content.skipped:
        output.print_message(f"{file}: {message}")
    expect_storable(file, content.cells, datetime.now(UTC))
    with open_context() as context:
        stored = imports.import_cells(context.database, content.cells, file.name, current_actor(), node or imports.NODE)
    for job, count in stored.known.items():
        output.print_message(f"{file}: {format_count(count, 'cell')} imported before, as job {job}")
    for job in stored.jobs:
        output.print_line(job)
    if stored.cells:
        output.print_message(f"{file}: {format_count(stored.cells, 'cell')} imported")
    else:
        output.print_message(f"{file}: nothing new; to import it with other options, run `haloctl import remove JOB`")
