"""Imports what the check of a model imports, and checks one, so that a check in a fork need not begin from nothing."""

import contextlib
import io
import sys

from workers.llm.programs import check

argv = sys.argv
sys.argv = ["check", "--model=tiny-llama", "--tp", "1", "2"]
try:
    with contextlib.redirect_stdout(io.StringIO()):
        check.main()
finally:
    sys.argv = argv
