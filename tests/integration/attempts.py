"""Attempts that run small programs of a test, and ways to wait for them."""

import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from jobs.task import Artifact, Attempt, Command, Device, Place
from tests.command_lines import command_line

DEADLINE_S = 60.0
EVEN_MORE_S = 600.0
JOB = uuid4().hex[:8]  #: other tests may run beside these, and whatever has an attempt's id is swept away with it
_numbers = count(1)

FINITE_INVOCATION = """
import json
report = {"load_s": 0.5, "calls": [{"entry_point": "prefill_bs1_t8", "finite": True}]}
json.dump(report, open("outputs/invoke.json", "w"))
"""

#: Starts a child, a daemon in a session of its own, and one that also ignores SIGTERM and has an empty environment.
#: All of them carry argv[1]; the file argv[2] appears when they are up.
TREE = """
import os, signal, sys, time

def daemonize():
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        return True
    return False

def sleep():
    os.write(ready, b".")
    while True:
        time.sleep(600)

ready = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
os.set_inheritable(ready, True)
if os.fork() == 0:
    sleep()
if daemonize():
    sleep()
if daemonize():
    stubborn = "import os, signal, time; signal.signal(15, signal.SIG_IGN); os.write(%d, b'.'); time.sleep(600)" % ready
    os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", stubborn, sys.argv[1]], {})
sleep()
"""
TREE_SIZE = 4


def timed_once(target: str, *, reruns: int) -> dict[str, Any]:
    """The settings of a benchmark of one workload, timed once and again as often where it was disturbed."""
    sizes = {"batch": [1], "prompt_tokens": [8], "new_tokens": 1}
    return {"target": target, "tp": 1, **sizes, "warmup": 0, "repetitions": 1, "max_disturbed_reruns": reruns}


def python(code: str, *arguments: str) -> Command:
    """A program as a stage's command would name it."""
    return Command(("python", "-c", code, *arguments))


def interpreter(code: str, *arguments: str) -> Command:
    """A program as a supervisor takes it: with a real path."""
    return Command((sys.executable, "-I", "-S", "-c", code, *arguments))


def make_attempt(
    *commands: Command,
    stage: str = "invoke",
    settings: dict[str, Any] | None = None,
    inputs: dict[str, tuple[Artifact, ...]] | None = None,
    devices: tuple[Device, ...] = (),
    timeout_s: float = EVEN_MORE_S,
) -> Attempt:
    """Make a new attempt of some task."""
    return Attempt(
        id=f"{JOB}-{next(_numbers):02}-1",
        epoch=1,
        stage=stage,
        settings=settings or {"target": "cpu", "tp": 1},
        commands=commands,
        inputs=inputs or {},
        places=(Place("local", devices),),
        timeout_s=timeout_s,
    )


def until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for something to become true; fail when it does not."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        time.sleep(0.005)


def living(marker: str) -> list[psutil.Process]:
    """Return the processes with a marker in their command line, without zombies."""
    return [process for process in psutil.process_iter() if marker in command_line(process)]


def is_up(ready: Path) -> bool:
    """Whether all processes of a TREE run."""
    return ready.exists() and ready.stat().st_size == TREE_SIZE
