"""Imports what the check of a model imports, and checks one, so that a check in a fork need not begin from nothing."""

import contextlib
import io
import runpy
import sys

argv = sys.argv
sys.argv = ["check", "--model=tiny-llama", "--tp", "1", "2"]
try:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        runpy.run_module("workers.llm.programs.check", run_name="__main__", alter_sys=True)
finally:
    sys.argv = argv
