"""Runs commands one after another and leaves no process behind, whatever becomes of them or of those around it.

A fork of workers.processes.fork_server, which says who is above whom and why nothing is left when one of them is
killed. A request has the `commands` (each with `argv`, `env` and `title`), `cwd`, `timeout_s`, `lease_s`, `grace_s` and
`isolation`. After each command one marshalled dict is written to REPORT_FD, and a last one with the `reason` for which
the run ended. The log gets titles and all that the commands print. When nothing is left of a run, the supervisor waits
for the next one.

An agent that is there and does nothing, stopped or hung, is found out by the lease, which it has to renew.

Only little of the standard library is imported, since each command is a fork of this process.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import signal
import time

from workers.processes import landlock
from workers.processes.proc import descendants

TYPE_CHECKING = False  # typing's, without its import
if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from typing import Any, NoReturn

TERM_GRACE_S = 1.0  #: between SIGTERM and SIGKILL, unless a request asks for longer
PATIENT_ENDS = ("cancelled", "timed_out")  #: reasons for which a run may end in order
MAX_PAUSE_S = 0.05
MAX_POLL_S = 3600.0
EXIT_NOT_STARTED = 127
KIB = 1024

# The file descriptors of a supervisor.
CANCEL_FD = 0  #: reaches its end when the agent is gone, or cancels the run
REPORT_FD = 1
LOG_FD = 2
FORK_SERVER_FD = 3  #: reaches its end when the fork server is gone; brings the files of a run
LEASE_FD = 4  #: holds when the agent last renewed it; only where there is a lease
RUN_FDS = (CANCEL_FD, REPORT_FD, LOG_FD, LEASE_FD)

PRCTL = ctypes.CDLL(None).prctl
PRCTL.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
PR_SET_PDEATHSIG = 1
PR_CAPBSET_DROP = 24
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38


#: What a stage that runs as root must not do, by the numbers of include/uapi/linux/capability.h: read other processes
#: (SYS_PTRACE, PERFMON, CHECKPOINT_RESTORE), become another user (SETGID, SETUID), change the machine (SYS_ADMIN,
#: NET_ADMIN, SYS_MODULE, SYS_RAWIO, SYS_CHROOT, SYS_BOOT, SYS_TIME, MKNOD, MAC_ADMIN, SYSLOG, BPF). SETPCAP is last,
#: for the others need it.
DROPPED_CAPABILITIES = (19, 38, 40, 6, 7, 21, 12, 16, 17, 18, 22, 25, 27, 33, 34, 39, 8)


def prctl(option: int, value: int) -> None:
    """Set one attribute of this process; see prctl(2)."""
    if PRCTL(option, value, 0, 0, 0):
        raise OSError(f"prctl({option}, {value}) is refused: Linux 3.4 or newer is needed")


def adopt_orphans() -> None:
    """Become the parent of every process below this one that loses its own parent (a child subreaper)."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def child_exit_fd() -> int:
    """Return a file descriptor that becomes readable whenever a child of this process has ended."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return read_end


class ReapedChildren:
    """Exit codes and resource usage of the children that have ended."""

    def __init__(self) -> None:
        self.exit_codes: dict[int, int] = {}
        self.peak_rss_bytes = 0  #: of the largest one, and of the largest that any of them had waited for
        self.cpu_s = 0.0  #: of all of them, and of all that they had waited for

    def reap(self) -> bool:
        """Reap every child that has ended; whether any child is left."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self.exit_codes[pid] = os.waitstatus_to_exitcode(status)
            self.peak_rss_bytes = max(self.peak_rss_bytes, usage.ru_maxrss * KIB)
            self.cpu_s += usage.ru_utime + usage.ru_stime


def signal_descendants(number: int, exclude: Container[int] = ()) -> bool:
    """Send a signal to every process below this one; whether there is any."""
    pids = descendants(exclude)
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    return bool(pids)


def end_descendants(reaped: ReapedChildren, grace_s: float = TERM_GRACE_S) -> None:
    """End every process below this one: by SIGTERM, and after the grace period by SIGKILL. Returns when none is left.

    The grace period is one for all; what comes up after it is killed.
    """
    if not reaped.reap():
        return
    signal_descendants(signal.SIGTERM)
    deadline, pause_s = time.monotonic() + grace_s, 0.001
    while reaped.reap():
        if time.monotonic() >= deadline:
            signal_descendants(signal.SIGKILL)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, MAX_PAUSE_S)


def send_report(message: dict[str, Any], report_fd: int = REPORT_FD) -> None:
    """Send a message to the agent, if there still is one."""
    try:
        os.write(report_fd, marshal.dumps(message))
    except BrokenPipeError:
        return


def isolate(isolation: Mapping[str, Any] | None) -> None:
    """Become the user that stages run as, if there is one, and give up writing elsewhere and reading secrets.

    What runs from here on gets no more rights than this process has: programs with the set-user-ID bit don't help it.
    """
    if isolation and isolation["user"]:
        uid, gid, groups = isolation["user"]
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    elif isolation and os.geteuid() == 0:
        for capability in DROPPED_CAPABILITIES:  # what this kernel does not know, or this root can't do, is not there
            PRCTL(PR_CAPBSET_DROP, capability, 0, 0, 0)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    if isolation:
        landlock.restrict(isolation["writable"], isolation["secret"])


def exec_command(
    command: Mapping[str, Any], cwd: str, isolation: Mapping[str, Any] | None, supervisor: int
) -> NoReturn:
    """Replace the process that was just forked by the command."""
    try:
        os.setsid()  # a tool that signals its own group must not hit the supervisor
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(LOG_FD, 1)
        os.chdir(cwd)
        isolate(isolation)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # not before: a process that changes its user loses it
        if os.getppid() == supervisor:
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and that would be inherited
                signal.signal(number, signal.SIG_DFL)
            os.execve(command["argv"][0], command["argv"], command["env"])
    except OSError as error:
        os.write(LOG_FD, f"error: {command['argv'][0]} can't be started: {error.strerror}\n".encode())
    finally:
        os._exit(EXIT_NOT_STARTED)


def lease_left_s(lease_s: float) -> float:
    """Return the seconds until the lease is over, as far as is known by now."""
    renewed_at_ns = int.from_bytes(os.pread(LEASE_FD, 8, 0), "little")
    # a clock that goes on while the machine is suspended
    return lease_s - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - renewed_at_ns) / 1e9


class RunMonitor:
    """Waits for a command's end, a cancellation, the loss of the fork server, the deadline or the end of the lease."""

    def __init__(self, timeout_s: float, lease_s: float | None, child_exits: int) -> None:
        self.deadline = time.monotonic() + timeout_s
        self.lease_s = lease_s
        self.poll = select.poll()
        for fd in (child_exits, CANCEL_FD, FORK_SERVER_FD):
            self.poll.register(fd, select.POLLIN)

    def wait(self, pid: int, reaped: ReapedChildren) -> str:
        """Return `done` when the process has ended, else the reason for which it must."""
        while reaped.reap() and pid not in reaped.exit_codes:
            left_s = self.deadline - time.monotonic()
            leased_s = lease_left_s(self.lease_s) if self.lease_s else MAX_POLL_S
            if leased_s <= 0:
                return "expired"
            if left_s <= 0:
                return "timed_out"
            for fd, _ in self.poll.poll(min(left_s, leased_s, MAX_POLL_S) * 1000 + 1):
                if fd == CANCEL_FD:
                    return "cancelled"
                if fd == FORK_SERVER_FD:
                    return "lost"
                os.read(fd, 4096)
        return "done"


def run_command(command: Mapping[str, Any], request: Mapping[str, Any], monitor: RunMonitor) -> str:
    """Run one command, end what it left behind, report it, and return the reason for which it ended."""
    os.write(LOG_FD, f"$ {command['title']}\n".encode(errors="surrogateescape"))
    log_start, started, supervisor, reaped = os.fstat(LOG_FD).st_size, time.monotonic(), os.getpid(), ReapedChildren()
    pid = os.fork()
    if pid == 0:
        exec_command(command, request["cwd"], request["isolation"], supervisor)
    reason = monitor.wait(pid, reaped)
    wall_s = time.monotonic() - started
    end_descendants(reaped, request["grace_s"] if reason in PATIENT_ENDS else TERM_GRACE_S)
    exit_code = reaped.exit_codes[pid]
    send_report(
        {
            "exit_code": exit_code,
            "wall_s": wall_s,
            "peak_rss_bytes": reaped.peak_rss_bytes,
            "cpu_s": reaped.cpu_s,
            "log_start": log_start,
            "log_end": os.fstat(LOG_FD).st_size,
        }
    )
    return "failed" if reason == "done" and exit_code else reason


def run_commands(request: Mapping[str, Any], child_exits: int) -> None:
    """Run the commands until one of them fails or has to be ended, and report the reason."""
    monitor = RunMonitor(request["timeout_s"], request["lease_s"], child_exits)
    reason, errno = "done", 0
    try:
        for command in request["commands"]:
            reason = run_command(command, request, monitor)
            if reason != "done":
                break
    except OSError as error:  # the log can't be written, or no process be made
        reason, errno = "unable", error.errno or 0
        end_descendants(ReapedChildren())
    send_report({"reason": reason, "errno": errno})


def serve_run(files: list[int], child_exits: int) -> None:
    """Carry out a request with the files that came with it, and close them; `child_exits` is of `child_exit_fd`."""
    cancel, report, log, request_file, *lease = files
    request = marshal.loads(os.pread(request_file, os.fstat(request_file).st_size, 0))
    for fd, run_fd in zip((cancel, report, log, *lease), RUN_FDS, strict=False):  # there may be no lease
        os.dup2(fd, run_fd, inheritable=run_fd == LOG_FD)
    for fd in files:
        os.close(fd)
    run_commands(request, child_exits)
    close_run_files()


def close_run_files() -> None:
    """Close the files of a run, and keep their descriptors occupied, so that no other file gets them."""
    for run_fd in RUN_FDS:
        os.dup2(FORK_SERVER_FD, run_fd, inheritable=False)
