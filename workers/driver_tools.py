"""Asking drivers' tools: each a process of its own, with a time limit that holds even where the driver hangs."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

TOOL_TIMEOUT_S = 30.0
REAP_S = 1.0  #: for a killed tool; one that hangs in the kernel stays until its driver lets go of it
MORE_FOLDERS = "/opt/rocm/bin:/usr/local/nvidia/bin"  #: where tools lie that are not on PATH
MESSAGE_CHARACTERS = 200


class ToolFailed(Exception):
    """A tool ended with an error, or answered with what can't be read."""


class ToolHung(ToolFailed):
    """A tool did not answer in time."""


def find(tool: str) -> str | None:
    """Where a tool is installed."""
    return shutil.which(tool) or shutil.which(tool, path=MORE_FOLDERS)


def output_of(tool: str, argv: Sequence[str], timeout_s: float | None = None) -> str:
    """What a tool prints; raises ToolFailed, ToolHung. It has no terminal, so that none can ask for a password."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ToolFailed(f"{tool} can't be started: {error.strerror}") from error
    timeout_s = TOOL_TIMEOUT_S if timeout_s is None else timeout_s
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        _abandon(process)
        raise ToolHung(f"{tool} did not answer within {timeout_s:g} s") from error
    if process.returncode:
        raise ToolFailed(f"{tool} ended with exit code {process.returncode}: {_last_line(err) or _last_line(out)}")
    return out


def _abandon(process: "subprocess.Popen[str]") -> None:
    """Kill a tool with all that it started, and don't wait for long: `subprocess.run` would, for ever."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        process.wait(REAP_S)
    except subprocess.TimeoutExpired:
        threading.Thread(target=process.wait, name="reap a hung tool", daemon=True).start()
    for stream in (process.stdout, process.stderr):
        if stream:
            stream.close()


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].strip()[:MESSAGE_CHARACTERS] if lines else ""
