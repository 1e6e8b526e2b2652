"""Options and arguments that several commands share, each declared once."""

from math import isfinite
from pathlib import Path
from typing import Annotated

import typer

MAX_NUMBER = 2**31 - 1  #: of counts, which databases hold in 32 bits


def finite(value: float | None) -> float | None:
    """Return the value of an option; refuse NaN, which passes all limits."""
    if value is not None and not isfinite(value):
        raise typer.BadParameter("should be a finite number")
    return value


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")]
Parquet = Annotated[Path | None, typer.Option("--parquet", help="Write a Parquet file.", dir_okay=False)]

JobOrTask = Annotated[str, typer.Argument(help="Id of a job or a task, or a unique prefix.", metavar="JOB|TASK")]
TaskOrAttempt = Annotated[
    str, typer.Argument(help="Id of a task or an attempt, or a unique prefix.", metavar="TASK|ATTEMPT")
]
JobFile = Annotated[str, typer.Argument(help="A job file, or the name of a recipe.", metavar="FILE|RECIPE")]
Artifact = Annotated[
    str, typer.Argument(help="A file's sha256, a unique prefix of it, or TASK/NAME.", metavar="SHA256|TASK/NAME")
]

LogJson = Annotated[
    bool, typer.Option("--log-json", help="Log objects of JSON, one in each line; default: HALOCTL_LOG_JSON=1.")
]

Job = Annotated[str | None, typer.Option("--job", help="Id of a job, or a unique prefix.")]
Model = Annotated[str | None, typer.Option("--model", help="A model, or a pattern: 'llama*'.")]
Variant = Annotated[str | None, typer.Option("--variant", help="A variant, or a pattern: '*-FP8-*'.")]
Target = Annotated[str | None, typer.Option("--target", help="A target: cpu, mi300x, ...")]
Toolchain = Annotated[str | None, typer.Option("--toolchain", help="A toolchain, or a pattern: 'iree-*'.")]
Since = Annotated[
    str | None,
    typer.Option("--since", help="From this date, time or age on: 2026-11-20, 2026-11-20T08:00, 90m, 12h, 7d."),
]
Disturbed = Annotated[bool, typer.Option("--disturbed", help="Include runs that other processes disturbed.")]
Limit = Annotated[
    int, typer.Option("--limit", "-n", help="At most this many, newest first; 0 for all.", min=0, max=MAX_NUMBER)
]

Timeout = Annotated[
    float | None,
    typer.Option("--timeout", help="Stop waiting after this many seconds.", min=0, max=MAX_NUMBER, callback=finite),
]
Batch = Annotated[int | None, typer.Option("--batch", help="The workload's batch size.", min=1, max=MAX_NUMBER)]
PromptTokens = Annotated[
    int | None, typer.Option("--prompt-tokens", help="The workload's prompt length.", min=1, max=MAX_NUMBER)
]
NewTokens = Annotated[
    int | None, typer.Option("--new-tokens", help="Tokens generated for each prompt.", min=1, max=MAX_NUMBER)
]
DefaultTp = Annotated[
    int,
    typer.Option("--tp", help="Tensor parallelism of variants whose names don't contain it.", min=1, max=MAX_NUMBER),
]
