"""The command lines of processes, including those that end while they are read."""

from contextlib import suppress

import psutil


def command_line(process: psutil.Process) -> list[str]:
    """Return a process' arguments; none once it has ended, whether or not it has been reaped."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def command_text(process: psutil.Process) -> str:
    """The same as one text."""
    return " ".join(command_line(process))
