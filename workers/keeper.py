"""Makes guards, and ends what they leave behind if they are killed: one for each agent, as long as that lives.

    agent == stdin, a socket ==> keeper == a socket each ==> guard --> command --> whatever that starts

Run by `python -I -S`, see workers.processes. Each message on the socket asks for a run under a guard and brings its
files: those that become the guard's `WISHES`, `REPORTS` and `LOG`, one that holds the request, marshalled, and perhaps
the `LEASE`. They go to a guard that has nothing to do, or else to a new one: a fork of the keeper, because one more
interpreter would cost more than most of what else there is to starting it.

Whoever loses the process above it ends all that is below, so any one of them may be killed:
- WISHES or KEEPER at its end tells a guard that the agent or the keeper is gone, or that the agent wants an end;
- the keeper and its guards adopt orphans, so a daemon in a session of its own is still below one of them;
- having no child left is therefore having nothing left, and what is the keeper's child and no guard was a killed one's;
- the keeper holds REPORTS too, until nothing of the run is left: its end tells the agent so.
"""

import _signal as signal  # type: ignore[import-not-found]  # what `signal` wraps, without the import of enum
import _socket as socket
import gc
import os
import select
import sys

from workers import guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

INT_BYTES = 4
LEAST_FILES, MOST_FILES = 4, 5  #: that come with a request
MOST_IDLE = 32  #: guards that are kept for what comes
PAUSE_MS = 10  #: between two looks at what a killed guard left
REQUEST, DONE = b"+", b"."  #: what is said when a run is to begin, and when nothing of it is left


class Guard:
    """A guard as its keeper sees it."""

    def __init__(self, pid: int, door: "socket.socket") -> None:
        self.pid, self.door = pid, door
        self.reports: int | None = None  #: of its run


class Keeper:
    """The guards, and those that were killed and have left something."""

    def __init__(self) -> None:
        self.requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, 0)
        self.has_agent = True
        self.guards: dict[int, Guard] = {}  #: by pid
        self.doors: dict[int, Guard] = {}  #: by the file of its door, while that is open
        self.idle: list[Guard] = []  #: the warmest one last
        self.lost: list[int] = []  #: reports of killed guards
        self.wakeup = guard.wakeup_of_children()
        self.last_fd = self.wakeup
        self.poll = select.poll()
        for fd in (self.requests.fileno(), self.wakeup):
            self.poll.register(fd, select.POLLIN)

    def keep(self) -> None:
        """Return when the agent is gone and nothing is left."""
        while self.has_agent or self.guards or self.lost:
            for fd, _ in self.poll.poll(PAUSE_MS if self.lost else None):
                if fd == self.wakeup:
                    os.read(fd, 4096)
                elif fd in self.doors:
                    self.hear(self.doors[fd])
                else:
                    self.answer()
            self.reap()
            if self.lost:
                self.end_orphans()

    def answer(self) -> None:
        """Have done what is asked for."""
        message, files = receive(self.requests)
        if not message:
            self.has_agent = False
            self.poll.unregister(self.requests.fileno())
            while self.idle:
                self.dismiss(self.idle.pop())
            return
        self.last_fd = max(self.last_fd, *files, 0)
        if len(files) >= LEAST_FILES:  # else they would be more than this process may have open: the run is lost
            self.have_run(files)
        for fd in files:
            os.close(fd)

    def have_run(self, files: "list[int]") -> None:
        """Give files to a guard, and keep its reports."""
        try:
            one = self.ready_guard(files)
        except OSError as error:
            guard.report({"ended": "unable", "errno": error.errno}, files[guard.REPORTS])
            return
        one.reports = files.pop(guard.REPORTS)

    def ready_guard(self, files: "list[int]") -> Guard:
        """One that has these files now: an idle one, unless it was killed meanwhile, else a new one."""
        while self.idle:
            one = self.idle.pop()
            try:
                send(one.door, files)
                return one
            except (BrokenPipeError, ConnectionResetError):
                continue
        one = self.make_guard()
        send(one.door, files)
        return one

    def make_guard(self) -> Guard:
        """Fork it."""
        door, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.last_fd = max(self.last_fd, door.fileno(), its_end.fileno())
        pid = os.fork()
        if pid == 0:
            be_guard(its_end.fileno(), self.last_fd)
        its_end.close()
        self.poll.register(door.fileno(), select.POLLIN)
        self.guards[pid] = self.doors[door.fileno()] = one = Guard(pid, door)
        return one

    def hear(self, one: Guard) -> None:
        """Nothing is left of a guard's run; or it has ended itself, and is reaped in a moment."""
        if receive(one.door)[0] != DONE or one.reports is None:
            return
        os.close(one.reports)
        one.reports = None
        if self.has_agent and len(self.idle) < MOST_IDLE:
            self.idle.append(one)
        else:
            self.dismiss(one)

    def dismiss(self, one: Guard) -> None:
        """Have it end, as it does when the keeper is gone."""
        fd = one.door.fileno()
        self.poll.unregister(fd)
        del self.doors[fd]
        one.door.close()

    def reap(self) -> None:
        """Take in all that has ended; a guard that had no run has left nothing."""
        try:
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                if one := self.guards.pop(pid, None):
                    self.forget(one)
        except ChildProcessError:
            return

    def forget(self, one: Guard) -> None:
        """A guard has ended."""
        if one.door.fileno() in self.doors:
            self.dismiss(one)
        if one in self.idle:
            self.idle.remove(one)
        if one.reports is not None:
            self.lost.append(one.reports)

    def end_orphans(self) -> None:
        """Kill what is left of killed guards; once nothing is, say so."""
        if not guard.signal_descendants(signal.SIGKILL, but=self.guards):
            for reports in self.lost:
                os.close(reports)
            self.lost.clear()


def receive(door: "socket.socket") -> "tuple[bytes, list[int]]":
    """A message with the files that it brings; an empty one when nobody is left who could send any."""
    try:
        message, ancillary, _, _ = door.recvmsg(1, socket.CMSG_SPACE(MOST_FILES * INT_BYTES))
    except ConnectionResetError:  # with something in it that was not read
        return b"", []
    return message, [fd for _, _, numbers in ancillary for fd in memoryview(numbers).cast("i")]


def send(door: "socket.socket", files: "list[int]") -> None:
    """Ask for a run."""
    numbers = b"".join([fd.to_bytes(INT_BYTES, sys.byteorder) for fd in files])
    door.sendmsg([REQUEST], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])


def be_guard(door: int, last_fd: int) -> "NoReturn":
    """Turn the process that was just forked into a guard, with none of the keeper's files."""
    exit_code = 1
    try:
        os.setsid()
        os.dup2(door, guard.KEEPER, inheritable=False)
        guard.let_go()
        os.closerange(max(guard.PLACES) + 1, last_fd + 1)
        guard.adopt_orphans()
        keeper, wakeup = socket.socket(fileno=guard.KEEPER), guard.wakeup_of_children()
        while files := receive(keeper)[1]:
            guard.run(files, wakeup)
            keeper.send(DONE)
        exit_code = 0
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(exit_code)  # nothing to tidy up, and the interpreter takes its time for that


def main() -> None:
    """Be the keeper."""
    os.setsid()
    guard.adopt_orphans()
    gc.freeze()  # what is there already is never garbage: no guard needs to look at it, and have its own copy of it
    Keeper().keep()
    os._exit(0)
