"""Stage programs run in this process, which has imported torch and transformers: processes take seconds for that."""

import sys
import warnings
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

import pytest

from workers.llm.program import run

#: Vectors half as wide as a large processor's: the compiler takes two thirds as long. It can't do so with 8-bit floats.
NARROW = "--iree-llvmcpu-target-vector-width-in-bytes=32"


def run_here(main: Callable[[], None], folder: Path, *flags: str | Path) -> None:
    """Run a program's `main` as its process would, in `folder`; what it refuses fails the test, and is told."""
    argv = [main.__module__, *map(str, flags)]
    with chdir(folder), patch.object(sys, "argv", argv), warnings.catch_warnings():
        with pytest.raises(SystemExit) as ended:
            run(main)
        assert ended.value.code == 0, argv
