"""What processes were started with, also of those that end while somebody looks."""

from contextlib import suppress

import psutil


def command_line(process: psutil.Process) -> list[str]:
    """A process' arguments; none once it has ended, whether or not anybody has reaped it."""
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def command_text(process: psutil.Process) -> str:
    """The same as one text."""
    return " ".join(command_line(process))
