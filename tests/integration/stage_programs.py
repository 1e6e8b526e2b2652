"""Running stage programs in this process, which has imported torch and transformers already: that takes seconds."""

import sys
import warnings
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

import pytest

from workers.llm.command_line import run

#: Narrow vectors, with which the compiler takes two thirds of the time. It does not support 8-bit floats with them.
NARROW = "--iree-llvmcpu-target-vector-width-in-bytes=32"


def run_here(main: Callable[[], None], folder: Path, *flags: str | Path) -> None:
    """Run a program's `main` in `folder` as its own process would; the test fails unless it exits with 0."""
    argv = [main.__module__, *map(str, flags)]
    with chdir(folder), patch.object(sys, "argv", argv), warnings.catch_warnings():
        with pytest.raises(SystemExit) as exit_info:
            run(main, has_children=True)  # which exits as usual: others go on in this process
        assert exit_info.value.code == 0, argv
