"""Imports what commands import, so that they need not when they run in a fork."""

import sys
from importlib import import_module

from orchestrator.cli import COMMANDS, GROUPS

LAZY = (
    "db.store",
    "db.query.sqlite",
    "huggingface_hub",
    "orchestrator.context",
    "orchestrator.output",
    "orchestrator.submission.plan_text",
    "orchestrator.submission.preparation",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
)

for module in (*(f"orchestrator.commands.{name}" for name in (*COMMANDS.values(), *GROUPS.values())), *LAZY):
    import_module(module)
del sys.modules["orchestrator.cli"]  # it runs as a program
