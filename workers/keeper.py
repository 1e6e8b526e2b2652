"""Makes guards, and ends what they leave behind if they are killed: one for each agent, as long as that lives.

    agent == stdin, a socket ==> keeper --> guard --> command --> whatever that starts

Run by `python -I -S`, see workers.processes. Each message on the socket asks for one guard and brings its files: those
that become its `WISHES`, `REPORTS` and `LOG`, one that holds its request, marshalled, and perhaps its `LEASE`. A guard
is a fork of the keeper, because one more interpreter would cost more than most of what else there is to starting it.

Whoever loses the process above it ends all that is below, so any one of them may be killed:
- WISHES or KEEPER at its end tells a guard that the agent or the keeper is gone, or that the agent wants an end;
- the keeper and its guards adopt orphans, so a daemon in a session of its own is still below one of them;
- having no child left is therefore having nothing left, and what is the keeper's child and no guard was a killed one's;
- the keeper holds REPORTS too, until nothing of the guard is left: its end tells the agent so.
"""

import _signal as signal  # type: ignore[import-not-found]  # what `signal` wraps, without the import of enum
import _socket as socket
import gc
import marshal
import os
import select
import sys

from workers import guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

INT_BYTES = 4
LEAST_FILES, MOST_FILES = 4, 5  #: that come with a request
PAUSE_MS = 10  #: between two looks at what a killed guard left


class Keeper:
    """The guards that run, and those that were killed and have left something."""

    def __init__(self) -> None:
        self.requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, 0)
        self.has_agent = True
        self.reports: dict[int, int] = {}  #: by the guard's pid
        self.lost: list[int] = []  #: reports of killed guards
        read_end, self.write_end = os.pipe()  # nothing is ever written
        os.dup2(read_end, guard.KEEPER)
        os.set_inheritable(guard.KEEPER, False)
        self.wakeup = guard.wakeup_of_children()
        self.last_fd = self.wakeup
        self.poll = select.poll()
        for fd in (self.requests.fileno(), self.wakeup):
            self.poll.register(fd, select.POLLIN)

    def keep(self) -> None:
        """Return when the agent is gone and nothing is left."""
        while self.has_agent or self.reports or self.lost:
            for fd, _ in self.poll.poll(PAUSE_MS if self.lost else None):
                if fd == self.wakeup:
                    os.read(fd, 4096)
                else:
                    self.answer()
            self.reap()
            if self.lost:
                self.end_orphans()

    def answer(self) -> None:
        """Fork the guard that is asked for."""
        message, ancillary, _, _ = self.requests.recvmsg(1, socket.CMSG_SPACE(MOST_FILES * INT_BYTES))
        if not message:
            self.has_agent = False
            self.poll.unregister(self.requests.fileno())
            return
        files = [fd for _, _, numbers in ancillary for fd in memoryview(numbers).cast("i")]
        if len(files) >= LEAST_FILES:  # else they would be more than this process may have open: the guard is lost
            self.make_guard(files)
        for fd in files:
            os.close(fd)

    def make_guard(self, files: "list[int]") -> None:
        """Fork it, and keep its reports."""
        self.last_fd = max(self.last_fd, *files)
        try:
            pid = os.fork()
        except OSError as error:
            guard.report({"ended": "unable", "errno": error.errno}, files[guard.REPORTS])
            return
        if pid == 0:
            be_guard(files, self.last_fd)
        self.reports[pid] = files.pop(guard.REPORTS)

    def reap(self) -> None:
        """Take in all that has ended; a guard that ended well has left nothing."""
        try:
            while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
                pid, status = ended
                if pid in self.reports:
                    reports = self.reports.pop(pid)
                    if status:
                        self.lost.append(reports)
                    else:
                        os.close(reports)
        except ChildProcessError:
            return

    def end_orphans(self) -> None:
        """Kill what is left of killed guards; once nothing is, say so."""
        if not guard.signal_descendants(signal.SIGKILL, but=self.reports):
            for reports in self.lost:
                os.close(reports)
            self.lost.clear()


def be_guard(files: "Sequence[int]", last_fd: int) -> "NoReturn":
    """Turn the process that was just forked into a guard, with none of the keeper's files."""
    exit_code = 1
    try:
        os.setsid()
        wishes, reports, log, wanted, *lease = files
        request = marshal.loads(os.pread(wanted, os.fstat(wanted).st_size, 0))
        for fd, place in ((wishes, guard.WISHES), (reports, guard.REPORTS), (log, guard.LOG)):
            os.dup2(fd, place)
        for fd in lease:
            os.dup2(fd, guard.LEASE, inheritable=False)
        os.closerange(guard.LEASE + len(lease), last_fd + 1)
        guard.run_commands(request)
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
