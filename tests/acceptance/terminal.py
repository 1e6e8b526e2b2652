"""haloctl in a pseudo terminal, with a user who reads and types."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.acceptance.haloctl import COMMAND, COMMAND_S, DEADLINE_S, Haloctl

CTRL_C = "\x03"
ROWS, COLUMNS = 40, 160
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

#: Makes the terminal on stdin the controlling one, so that Ctrl-C reaches the process as it does for people.
IN_TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A command at a pseudo terminal."""

    def __init__(self, haloctl: Haloctl, *arguments: str) -> None:
        self._fd, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", IN_TERMINAL, *COMMAND, *arguments],
            env={**haloctl.environment, "TERM": "xterm-256color"},
            cwd=haloctl.folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self._shown = b""

    @property
    def text(self) -> str:
        """All that was shown so far, as it came."""
        return self._shown.decode(errors="replace")

    @property
    def words(self) -> str:
        """All that was shown so far, without colours and moves of the cursor."""
        return ESCAPES.sub("", self.text)

    def until_shows(self, text: str) -> None:
        """Wait for a text to appear."""
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.words:
            assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {text!r} in\n{self.words[-2000:]}"
            assert self._read(), f"it ended and never showed {text!r}:\n{self.words[-2000:]}"

    def press(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def end(self) -> int:
        """Wait for the command's end; returns its exit code."""
        deadline = time.monotonic() + COMMAND_S
        while self._read():
            assert time.monotonic() < deadline, f"it does not end:\n{self.words[-2000:]}"
        return self._process.wait(COMMAND_S)

    def _read(self) -> bool:
        """Read what is shown, waiting a moment for it; returns whether more may come."""
        if select.select([self._fd], [], [], 0.1)[0]:
            try:
                self._shown += os.read(self._fd, 1 << 16)
            except OSError:  # nobody has the terminal open any more
                return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        os.close(self._fd)
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
