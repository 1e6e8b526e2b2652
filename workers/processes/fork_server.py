"""Makes supervisors, and ends what they leave behind if they are killed: one for each agent, as long as that lives.

    agent == stdin, a socket ==> fork server == a socket each ==> supervisor --> command --> whatever that starts

Run by `python -I -S`, see workers.processes.client; so that it starts fast and its forks are small, it imports only
little of the standard library. Each message on the socket asks for a run under a supervisor and brings its files: those
that become the supervisor's `CANCEL_FD`, `REPORT_FD` and `LOG_FD`, one that holds the request, marshalled, and perhaps
the `LEASE_FD`. They go to an idle supervisor, or else to a new one: a fork of the fork server, because one more
interpreter would cost more than most of what else there is to starting it. A new supervisor for each run would take
twice the processor time of an idle one (5.7 ms, not 2.9 ms).

Whoever loses the process above it ends all that is below, so any one of them may be killed:
- CANCEL_FD or FORK_SERVER_FD at its end tells a supervisor that the agent or the fork server is gone, or that the agent
  cancels the run;
- the fork server and its supervisors adopt orphans, so a daemon in a session of its own is still below one of them;
- having no child left is therefore having nothing left, and what is the fork server's child and no supervisor was a
  killed one's;
- the fork server holds REPORT_FD too, until nothing of the run is left: its end tells the agent so.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys

from workers.processes import supervisor

TYPE_CHECKING = False  # typing's, without its import
if TYPE_CHECKING:
    from typing import NoReturn

MAX_MESSAGE_BYTES = 1
MIN_FILES, MAX_FILES = 4, 5  #: that come with a request
MAX_IDLE = 32  #: supervisors that are kept for later runs
PAUSE_MS = 10  #: between two attempts to end what a killed supervisor left
REQUEST, DONE = b"+", b"."  #: begin a run; nothing of the run is left


class SupervisorProcess:
    """A supervisor, as its fork server sees it."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid, self.channel = pid, channel
        self.report_fd: int | None = None  #: of its run


class ForkServer:
    """Makes supervisors, gives them runs, and ends what killed ones leave."""

    def __init__(self) -> None:
        self.agent = socket.socket(fileno=0)
        self.has_agent = True
        self.supervisors: dict[int, SupervisorProcess] = {}  #: by pid
        self.by_channel: dict[int, SupervisorProcess] = {}  #: by the descriptor of the channel, while that is open
        self.idle: list[SupervisorProcess] = []  #: the one that ran most recently is the last
        self.orphaned_reports: list[int] = []  #: of killed supervisors
        self.child_exits = supervisor.child_exit_fd()
        self.last_fd = self.child_exits
        self.poll = select.poll()
        for fd in (self.agent.fileno(), self.child_exits):
            self.poll.register(fd, select.POLLIN)

    def serve(self) -> None:
        """Return when the agent is gone and nothing is left."""
        while self.has_agent or self.supervisors or self.orphaned_reports:
            for fd, _ in self.poll.poll(PAUSE_MS if self.orphaned_reports else None):
                if fd == self.child_exits:
                    os.read(fd, 4096)
                elif fd in self.by_channel:
                    self.hear_supervisor(self.by_channel[fd])
                else:
                    self.hear_agent()
            self.reap()
            if self.orphaned_reports:
                self.end_orphans()

    def hear_agent(self) -> None:
        """Begin the run that the agent requests; once the agent is gone, let idle supervisors end."""
        message, files = receive(self.agent)
        if not message:
            self.has_agent = False
            self.poll.unregister(self.agent.fileno())
            while self.idle:
                self.dismiss(self.idle.pop())
            return
        self.last_fd = max(self.last_fd, *files, 0)
        if len(files) >= MIN_FILES:  # else they would be more than this process may have open: the run is lost
            self.begin_run(files)
        for fd in files:
            os.close(fd)

    def begin_run(self, files: list[int]) -> None:
        """Give files to a supervisor, and keep the descriptor of its reports."""
        try:
            process = self.send_to_supervisor(files)
        except OSError as error:
            supervisor.send_report({"reason": "unable", "errno": error.errno}, files[supervisor.REPORT_FD])
            return
        process.report_fd = files.pop(supervisor.REPORT_FD)

    def send_to_supervisor(self, files: list[int]) -> SupervisorProcess:
        """Send files to an idle supervisor that was not killed meanwhile, else to a new one."""
        while self.idle:
            process = self.idle.pop()
            try:
                socket.send_fds(process.channel, [REQUEST], files)
                return process
            except (BrokenPipeError, ConnectionResetError):
                continue
        process = self.start_supervisor()
        socket.send_fds(process.channel, [REQUEST], files)
        return process

    def start_supervisor(self) -> SupervisorProcess:
        """Fork a supervisor."""
        channel, supervisors_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.last_fd = max(self.last_fd, channel.fileno(), supervisors_end.fileno())
        pid = os.fork()
        if pid == 0:
            be_supervisor(supervisors_end.fileno(), self.last_fd)
        supervisors_end.close()
        self.poll.register(channel.fileno(), select.POLLIN)
        self.supervisors[pid] = self.by_channel[channel.fileno()] = process = SupervisorProcess(pid, channel)
        return process

    def hear_supervisor(self, process: SupervisorProcess) -> None:
        """Close the reports of a run that is over; a supervisor that has ended itself is reaped in a moment."""
        if receive(process.channel)[0] != DONE or process.report_fd is None:
            return
        os.close(process.report_fd)
        process.report_fd = None
        if self.has_agent and len(self.idle) < MAX_IDLE:
            self.idle.append(process)
        else:
            self.dismiss(process)

    def dismiss(self, process: SupervisorProcess) -> None:
        """Close a supervisor's channel: it ends, as it does when the fork server is gone."""
        fd = process.channel.fileno()
        self.poll.unregister(fd)
        del self.by_channel[fd]
        process.channel.close()

    def reap(self) -> None:
        """Reap every child that has ended."""
        try:
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                if process := self.supervisors.pop(pid, None):
                    self.forget(process)
        except ChildProcessError:
            return

    def forget(self, process: SupervisorProcess) -> None:
        """Remove a supervisor that has ended; one that was idle has left nothing."""
        if process.channel.fileno() in self.by_channel:
            self.dismiss(process)
        if process in self.idle:
            self.idle.remove(process)
        if process.report_fd is not None:
            self.orphaned_reports.append(process.report_fd)

    def end_orphans(self) -> None:
        """Kill what is left of killed supervisors; once nothing is, close their reports."""
        if not supervisor.signal_descendants(signal.SIGKILL, exclude=self.supervisors):
            for report_fd in self.orphaned_reports:
                os.close(report_fd)
            self.orphaned_reports.clear()


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Return a message with the files that it brings; an empty one when nobody is left who could send any."""
    try:
        message, files, _, _ = socket.recv_fds(channel, MAX_MESSAGE_BYTES, MAX_FILES)
    except ConnectionResetError:  # with something in it that was not read
        return b"", []
    return message, files


def be_supervisor(channel_fd: int, last_fd: int) -> NoReturn:
    """Turn the process that was just forked into a supervisor, with none of the fork server's files."""
    exit_code = 1
    try:
        os.setsid()
        os.dup2(channel_fd, supervisor.FORK_SERVER_FD, inheritable=False)
        supervisor.close_run_files()
        os.closerange(max(supervisor.RUN_FDS) + 1, last_fd + 1)
        supervisor.adopt_orphans()
        channel, child_exits = socket.socket(fileno=supervisor.FORK_SERVER_FD), supervisor.child_exit_fd()
        while files := receive(channel)[1]:
            supervisor.serve_run(files, child_exits)
            channel.send(DONE)
        exit_code = 0
    except Exception:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(exit_code)  # nothing to tidy up, and the interpreter takes its time for that


def main() -> None:
    """Run as the fork server of the process that started this one."""
    os.setsid()
    supervisor.adopt_orphans()
    ForkServer().serve()
    os._exit(0)
