"""Runs commands one after another and leaves no process behind, whatever becomes of them or of those around it.

A fork of workers.keeper, which says who is above whom and why nothing is left when one of them is killed. A request
has the `commands` (each with `argv`, `env` and `title`), `cwd`, `timeout_s` and `lease_s`. After each command one
marshalled dict goes out on REPORTS, and a last one says how it all `ended`. The log gets titles and all that the
commands print. When nothing is left of one run the guard waits for the next: to fork another one would cost more.

An agent that is there and does nothing, stopped or hung, is found out by the lease: it is over when the agent has not
renewed it for so long.

Forking it must be cheap, so what it imports is little.
"""

import _signal as signal  # type: ignore[import-not-found]  # what `signal` wraps, without the import of enum
import ctypes
import marshal
import os
import resource  # noqa: F401  # os.wait4 would import it, in each guard again
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from typing import Any, NoReturn

GRACE_S = 1.0  #: between SIGTERM and SIGKILL
LONGEST_PAUSE_S = 0.05
LONGEST_POLL_S = 3600.0
EXIT_NOT_STARTED = 127
KIB = 1024

#: A guard's files.
WISHES = 0  #: at its end when the agent is gone, or wants an end
REPORTS = 1
LOG = 2
KEEPER = 3  #: at its end when the keeper is gone; brings the files of a run
LEASE = 4  #: holds when the agent last renewed it; only where there is one
PLACES = (WISHES, REPORTS, LOG, LEASE)

PRCTL = ctypes.CDLL(None).prctl
PRCTL.argtypes = (ctypes.c_int, *[ctypes.c_ulong] * 4)
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Set one attribute of this process; see prctl(2)."""
    if PRCTL(option, value, 0, 0, 0):
        raise OSError(f"prctl({option}, {value}) is refused: Linux 3.4 or newer is needed")


def adopt_orphans() -> None:
    """Become the parent of everything below this process that loses its own."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def wakeup_of_children() -> int:
    """A file that can be read whenever a child of this process has ended."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return read_end


class Reaped:
    """What the kernel told of children that ended."""

    def __init__(self) -> None:
        self.exit_codes: dict[int, int] = {}
        self.peak_rss_bytes = 0  #: of the largest one, and of the largest that any of them had waited for
        self.cpu_s = 0.0  #: of all of them, and of all that they had waited for

    def reap(self) -> bool:
        """Take in all that has ended; whether any child is left."""
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


def parents() -> "Iterator[tuple[int, int]]":
    """Every process of this machine with its parent."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # the name, in parentheses, may itself contain parentheses and blanks
                    yield int(name), int(file.read().rpartition(b")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue


def descendants(but: "Container[int]" = ()) -> list[int]:
    """All that this process has below it, parents before their children, without some and all that is below those."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents():
        if pid not in but:
            children.setdefault(parent, []).append(pid)
    found = [os.getpid()]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found[1:]


def signal_descendants(number: int, but: "Container[int]" = ()) -> bool:
    """Send one signal to all that is below; whether anything is."""
    found = descendants(but)
    for pid in found:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    return bool(found)


def end_descendants(reaped: Reaped) -> None:
    """Return when nothing is below any more: SIGTERM first, SIGKILL to what is left or comes up after the grace."""
    if not reaped.reap():
        return
    signal_descendants(signal.SIGTERM)
    deadline, pause = time.monotonic() + GRACE_S, 0.001
    while reaped.reap():
        if time.monotonic() >= deadline:
            signal_descendants(signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_S)


def report(message: "dict[str, Any]", reports: int = REPORTS) -> None:
    """Tell the agent, if there still is one."""
    try:
        os.write(reports, marshal.dumps(message))
    except BrokenPipeError:
        return


def become(command: "dict[str, Any]", cwd: str, guard: int) -> "NoReturn":
    """Turn the process that was just forked into the command."""
    try:
        os.setsid()  # a tool that signals its own group must not hit the guard
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == guard:
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and that would be inherited
                signal.signal(number, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(LOG, 1)
            os.chdir(cwd)
            os.execve(command["argv"][0], command["argv"], command["env"])
    except OSError as error:
        os.write(LOG, f"error: {command['argv'][0]} can't be started: {error.strerror}\n".encode())
    finally:
        os._exit(EXIT_NOT_STARTED)


class Lease:
    """How long the run may go on without a word from the agent."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s

    def left_s(self) -> float:
        """Seconds until it is over, as far as is known by now."""
        renewed_ns = int.from_bytes(os.pread(LEASE, 8, 0), "little")
        # a clock that goes on while the machine is suspended
        return self.lease_s - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - renewed_ns) / 1e9


class Watch:
    """Waits for whatever comes first: the command's end, the end of those above, the deadline or the lease's end."""

    def __init__(self, above: "dict[int, str]", timeout_s: float, lease: "Lease | None", wakeup: int) -> None:
        self.above = above  #: file descriptors, each with what its end of file means
        self.deadline = time.monotonic() + timeout_s
        self.lease = lease
        self.poll = select.poll()
        for fd in (wakeup, *above):
            self.poll.register(fd, select.POLLIN)

    def wait(self, pid: int, reaped: Reaped) -> str:
        """`done` when the process has ended, else why it must."""
        while reaped.reap() and pid not in reaped.exit_codes:
            left_s = self.deadline - time.monotonic()
            leased_s = self.lease.left_s() if self.lease else LONGEST_POLL_S
            if leased_s <= 0:
                return "expired"
            if left_s <= 0:
                return "timed_out"
            for fd, _ in self.poll.poll(min(left_s, leased_s, LONGEST_POLL_S) * 1000 + 1):
                if fd in self.above:
                    return self.above[fd]
                os.read(fd, 4096)
        return "done"


def run_command(command: "dict[str, Any]", cwd: str, watch: Watch) -> str:
    """Run one command, end what it left behind, report it, and say how it ended."""
    os.write(LOG, f"$ {command['title']}\n".encode(errors="surrogateescape"))
    log_start, started, guard, reaped = os.fstat(LOG).st_size, time.monotonic(), os.getpid(), Reaped()
    pid = os.fork()
    if pid == 0:
        become(command, cwd, guard)
    ended = watch.wait(pid, reaped)
    wall_s = time.monotonic() - started
    end_descendants(reaped)
    exit_code = reaped.exit_codes[pid]
    report(
        {
            "exit_code": exit_code,
            "wall_s": wall_s,
            "peak_rss_bytes": reaped.peak_rss_bytes,
            "cpu_s": reaped.cpu_s,
            "log_start": log_start,
            "log_end": os.fstat(LOG).st_size,
        }
    )
    return "failed" if ended == "done" and exit_code else ended


def run_commands(request: "dict[str, Any]", wakeup: int) -> None:
    """Run the commands until one of them does not end well."""
    lease = Lease(request["lease_s"]) if request["lease_s"] else None
    watch = Watch({WISHES: "cancelled", KEEPER: "lost"}, request["timeout_s"], lease, wakeup)
    ended, errno = "done", 0
    try:
        for command in request["commands"]:
            ended = run_command(command, request["cwd"], watch)
            if ended != "done":
                break
    except OSError as error:  # the log can't be written, or no process be made
        ended, errno = "unable", error.errno or 0
        end_descendants(Reaped())
    report({"ended": ended, "errno": errno})


def run(files: "list[int]", wakeup: int) -> None:
    """Do what is asked for with these files, and let go of them; `wakeup` is as of `wakeup_of_children`."""
    wishes, reports, log, wanted, *lease = files
    request = marshal.loads(os.pread(wanted, os.fstat(wanted).st_size, 0))
    for fd, place in zip((wishes, reports, log, *lease), PLACES):  # noqa: B905  # a lease there may be
        os.dup2(fd, place, inheritable=place == LOG)
    for fd in files:
        os.close(fd)
    run_commands(request, wakeup)
    let_go()


def let_go() -> None:
    """Have none of a run's files, and nothing else take their places."""
    for place in PLACES:
        os.dup2(KEEPER, place, inheritable=False)
