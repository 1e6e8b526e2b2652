"""Processes as Linux shows them in /proc: parents, children, states and processor time.

Only the standard library is used, since the fork server runs under `python -I -S`, and little of it, since supervisors
fork for each command. psutil is too slow to sample whole trees.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing's, without its import
if TYPE_CHECKING:
    from collections.abc import Container, Iterator

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MAX_TRIES = 3  #: to read a tree, or a line of ancestors, that changes meanwhile
CPU_TIME_FIELDS = slice(11, 15)  #: of /proc/PID/stat behind the name: utime, stime, cutime and cstime, see proc(5)
HOST_PID_NAMESPACE_INODE = 0xEFFFFFFC  #: PROC_PID_INIT_INO of Linux, include/linux/proc_ns.h


class ProcessStat:
    """The fields of /proc/PID/stat that are used here."""

    def __init__(self, parent: int, is_zombie: bool, cpu_ticks: int) -> None:
        self.parent, self.is_zombie = parent, is_zombie
        self.cpu_ticks = cpu_ticks  #: of the process, and of the children that it has waited for


def read_stat(pid: int) -> ProcessStat | None:
    """Return a process's state; None where no such process exists or is shown, as for one of another container."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # the name, in parentheses, may itself contain parentheses and blanks
            fields = file.read().rpartition(b")")[2].split()
        return ProcessStat(int(fields[1]), fields[0] in b"ZX", sum(map(int, fields[CPU_TIME_FIELDS])))
    except OSError:
        return None


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie holds nothing and does not count."""
    stat = read_stat(pid)
    return is_hidden(pid) if stat is None else not stat.is_zombie


def is_hidden(pid: int) -> bool:
    """Whether a process of another user exists that /proc does not show (mounted with hidepid, see proc(5))."""
    if read_stat(pid) is None and pid > 0:
        try:
            os.kill(pid, 0)
        except PermissionError:
            return True
        except OSError:
            return False
    return False


def is_in_host_pid_namespace() -> bool:
    """Whether processes have the same ids here as in drivers; in a container they mostly have others."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == HOST_PID_NAMESPACE_INODE
    except OSError:  # a kernel without namespaces
        return True


def all_pids() -> Iterator[int]:
    """Yield every process of this machine that is shown, this one included."""
    return (int(name) for name in os.listdir("/proc") if name.isdecimal())


def environment_of(pid: int) -> list[bytes]:
    """Return a process's environment as `NAME=value`; empty where it must not be read."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def command_line_of(pid: int) -> bytes:
    """Return a process's arguments, each ended by a zero byte; empty for kernel threads and where there is none."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def parents() -> Iterator[tuple[int, int]]:
    """Yield every process of this machine with its parent."""
    for pid in all_pids():
        if stat := read_stat(pid):
            yield pid, stat.parent


def descendants(exclude: Container[int] = ()) -> list[int]:
    """Return all processes below this one, parents first, without the excluded ones and those below these.

    Every process of the machine is read, because not every kernel lists children (CONFIG_PROC_CHILDREN).
    """
    children_of: dict[int, list[int]] = {}
    for pid, parent in parents():
        if pid not in exclude:
            children_of.setdefault(parent, []).append(pid)
    pids = [os.getpid()]
    for pid in pids:
        pids.extend(children_of.get(pid, ()))
    return pids[1:]


def children(pid: int) -> Iterator[int]:
    """Yield the children of a process, whichever of its threads started them; none where it has ended.

    The kernel lists them with CONFIG_PROC_CHILDREN, which distributions set.
    """
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                yield from map(int, file.read().split())
        except OSError:
            continue


def tree(root: int) -> list[int]:
    """Return a process and all below it, parents first.

    Walked downwards, it costs as much as the tree has threads, however many processes the machine has.
    """
    pids = [root]
    for pid in pids:
        pids.extend(children(pid))
    return pids


def tree_cpu_s(root: int) -> float | None:
    """Return the processor time of a process and all below it, with that of ended ones that were waited for.

    It never falls. None where processes came and went during each try.
    """
    for _ in range(MAX_TRIES):
        pids = tree(root)
        stats = [read_stat(pid) for pid in pids]
        if None not in stats and tree(root) == pids:
            return sum(stat.cpu_ticks for stat in stats if stat) / CLOCK_TICKS_PER_S
    return None


def ancestors(pid: int) -> list[int] | None:
    """Return a process and those above it, as far as they are shown; None where each try met one that just ended."""
    for _ in range(MAX_TRIES):
        pids = [pid]
        while (parent := _parent(pids[-1])) is not None and parent > 0:
            pids.append(parent)
        if parent is not None:
            return pids
    return None


def _parent(pid: int) -> int | None:
    """Return a process's parent, 0 where it has none that is shown; None where the process has ended."""
    stat = read_stat(pid)
    if stat is None:
        return 0 if is_hidden(pid) else None
    return stat.parent


def is_in_tree(pid: int, root: int) -> bool:
    """Whether a process is `root` or below it; also True where it has ended, or its ancestors change too fast."""
    pids = ancestors(pid)
    return pids is None or root in pids
