"""A Python that has imported its modules already, and forks for each command: a command costs milliseconds.

    python -m tests.fuzz.fork_server SOCKET AS_MIB TIMEOUT_S MODULE...

A client connects to the socket, sends its stdin, stdout and stderr, and a request as JSON; what is answered is how the
command ended. Commands run as `python -m MODULE ARGUMENT...` would run them, below limits of memory and time.
"""

import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

STREAMS = 3
MIB = 1 << 20
KIB = 1 << 10
READY = "ready"

#: A Python for one command: it has the server run a module, with its own streams, and ends as that ended; all else it
#: runs itself.
CLIENT = """#!{python} -ISE
import json, os, socket, sys
if sys.argv[1] != "-m":
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({path!r})
    socket.send_fds(server, [b"x"], [0, 1, 2])
    request = {{"argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ), "python": {python!r}}}
    server.sendall(json.dumps(request).encode())
    server.shutdown(socket.SHUT_WR)
    answer = json.loads(b"".join(iter(lambda: server.recv(4096), b"")))
sys.exit(answer["code"] if answer["code"] >= 0 else 128 - answer["code"])
"""


def main() -> None:
    """Serve until the socket's file or the parent is gone."""
    path, as_mib, timeout_s, *modules = sys.argv[1:]
    for module in modules:
        import_module(module)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"a process with {threads} threads can't be forked safely"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for supervisors
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        print(READY, flush=True)
        while os.getppid() != 1:
            if select.select([listening], [], [], 1.0)[0]:
                client, _ = listening.accept()
                if os.fork() == 0:
                    listening.close()
                    _supervise(client, int(as_mib) * MIB, float(timeout_s))
                client.close()


def _supervise(client: socket.socket, as_bytes: int, timeout_s: float) -> NoReturn:
    """Run one command in a process of its own, and answer how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, _, _ = socket.recv_fds(client, 1, STREAMS)
    request = json.loads(b"".join(iter(lambda: client.recv(1 << 16), b"")))
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        client.close()
        _run(request, streams, as_bytes)
    pidfd = os.pidfd_open(child)
    has_ended = bool(select.select([pidfd], [], [], timeout_s)[0])
    if not has_ended:
        os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    answer = {
        "code": os.waitstatus_to_exitcode(status),
        "wall_s": time.monotonic() - began,
        "peak_bytes": usage.ru_maxrss * KIB,
        "has_hung": not has_ended,
    }
    client.sendall(json.dumps(answer).encode())
    os._exit(0)


def _run(request: dict[str, Any], streams: Sequence[int], as_bytes: int) -> NoReturn:
    """Become a command: with its streams, folder, environment, arguments and limits."""
    os.setpgid(0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    code = 1
    try:
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (mapped + as_bytes, mapped + as_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        sys.executable = request["python"]
        code = _run_module(request["argv"])
    except BaseException:
        traceback.print_exc()
    finally:
        for text in (sys.stdout, sys.stderr):
            text.flush()
        os._exit(code)


def _run_module(argv: Sequence[str]) -> int:
    """Run `-m MODULE ARGUMENT...`; return its exit code."""
    option, module, *arguments = argv
    if option != "-m":
        raise ValueError(f"only -m MODULE can be run here, not {argv}")
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    main()
