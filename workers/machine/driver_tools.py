"""Runs drivers' tools: each a process of its own, with a time limit that holds even where the driver hangs."""

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

TOOL_TIMEOUT_S = 30.0
REAP_S = 1.0  #: for a killed tool; one that hangs in the kernel stays until its driver lets go of it
EXTRA_FOLDERS = "/opt/rocm/bin:/usr/local/nvidia/bin"  #: searched for tools that are not on PATH
MESSAGE_CHARACTERS = 200


class ToolFailed(Exception):
    """A tool can't be started, or exited with an error."""


class ToolHung(ToolFailed):
    """A tool did not exit in time."""


def find_tool(tool: str) -> str | None:
    """Return the path of an installed tool."""
    return shutil.which(tool) or shutil.which(tool, path=EXTRA_FOLDERS)


def run_tool(tool: str, argv: Sequence[str], timeout_s: float = TOOL_TIMEOUT_S) -> str:
    """Return what a tool prints; raises ToolFailed, ToolHung. Without a terminal, so that it can't prompt."""
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
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        _abandon(process)
        raise ToolHung(f"{tool} did not answer within {timeout_s:g} s") from error
    if process.returncode:
        raise ToolFailed(f"{tool} ended with exit code {process.returncode}: {_last_line(err) or _last_line(out)}")
    return out


def _abandon(process: "subprocess.Popen[str]") -> None:
    """Kill a tool and all that it started, and wait only briefly: `subprocess.run` would wait for ever."""
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
