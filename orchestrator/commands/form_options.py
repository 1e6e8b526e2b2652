"""The options that say in which form an answer is given, the same for every command."""

from typing import Any

import typer

JSON: Any = typer.Option(False, "--json", help="Answer in JSON.")
CSV: Any = typer.Option(False, "--csv", help="Answer in CSV.")
MARKDOWN: Any = typer.Option(False, "--markdown", help="Answer with a table in Markdown, for a wiki.")
PARQUET: Any = typer.Option(None, "--parquet", help="Write a Parquet file instead.", dir_okay=False)
