"""Whether an attempt's GPUs are fit: no other process uses them before it, and nothing is left on them after it.

Memory decides. A process that only has a device's file open may be a monitor, or a program on another GPU of the node,
since runtimes open all of them: such processes are named where memory is in use that no process is reported to hold.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from jobs.task import GIB, Attempt, Device, Unfit
from workers.machine import gpus, open_device_files
from workers.machine.driver_tools import TOOL_TIMEOUT_S
from workers.machine.gpu_listing import Gpu, GpuListing
from workers.machine.gpu_processes import GpuProcess
from workers.processes import attempt_processes, proc
from workers.processes.cancellation import Cancellation

IN_USE_BYTES = GIB  #: a driver keeps some for itself: about 300 MiB of an MI300X, 500 MiB of an H100 with some releases
BEFORE_S = 5.0  #: within which the memory of a process that has ended is free again
AFTER_S = 20.0  #: also if it held nearly all of 200 GiB
PAUSE_S = 0.25
MAX_NAMED = 3  #: processes in a reason


@dataclass(frozen=True)
class GpuProblem:
    """Something wrong with a device, or with all of a vendor's."""

    reason: str
    device: Device | None = None
    may_pass: bool = True  #: without anybody doing something
    is_in_use: bool = False  #: by another process


def check_before(
    attempt: Attempt,
    cancellation: Cancellation,
    settle_s: float = BEFORE_S,
    tool_timeout_s: float = TOOL_TIMEOUT_S,
) -> tuple[Unfit, ...]:
    """Return what is wrong with an attempt's GPUs before it starts, once leftovers of earlier attempts are killed."""
    if not _vendors(attempt):
        return ()
    cancelled = threading.Event()
    cancellation.on_cancel(cancelled.set)
    problems = _wait_until_fit(attempt, settle_s, cancelled.wait, tool_timeout_s)
    return () if cancellation.is_requested else _unfit(attempt, "before", problems)


def check_after(attempt: Attempt, settle_s: float = AFTER_S) -> tuple[Unfit, ...]:
    """Return what is wrong with an attempt's GPUs after it, once their memory had the time to be freed."""
    if not _vendors(attempt):
        return ()
    return _unfit(attempt, "after", _wait_until_fit(attempt, settle_s, threading.Event().wait))


def describe(unfit: Unfit) -> str:
    """Return what is wrong, with the device."""
    return f"{unfit.kind}:{unfit.index}: {unfit.reason}" if unfit.kind else unfit.reason


def gpu_problems(devices: Collection[Device], listing: GpuListing | None) -> Iterator[GpuProblem]:
    """Yield what is wrong with some devices of one vendor, by the listing of its tool."""
    if listing is None:
        yield GpuProblem("the tool that listed its GPUs is gone")
    elif listing.error:
        yield GpuProblem(listing.error)
    else:
        by_index = {gpu.index: gpu for gpu in listing.gpus}
        for device in devices:
            yield from _device_problems(device, by_index.get(device.index), listing)


def _device_problems(device: Device, gpu: Gpu | None, listing: GpuListing) -> Iterator[GpuProblem]:
    if gpu is None:
        yield GpuProblem(f"{listing.tool} no longer lists it, only {len(listing.gpus)} others", device, may_pass=False)
    elif device.serial and gpu.serial and device.serial != gpu.serial:
        yield GpuProblem(f"another card is in its place: {gpu.serial}, not {device.serial}", device, may_pass=False)
    elif using := [process for process in gpu.processes or () if process.is_using_gpu]:
        is_alive = any(proc.is_alive(process.pid) for process in using)
        yield GpuProblem(f"in use by {_describe_processes(using)}", device, may_pass=not is_alive, is_in_use=True)
    elif (gpu.used_bytes or 0) > IN_USE_BYTES:
        yield _unattributed_memory(device, gpu.used_bytes or 0, listing)


def _unattributed_memory(device: Device, used_bytes: int, listing: GpuListing) -> GpuProblem:
    """Return the problem of memory in use that no process is reported to hold on this very device."""
    is_ours = attempt_processes.is_of_running_attempt
    suspects = [
        process for process in listing.unassigned_processes if process.is_using_gpu and not is_ours(process.pid)
    ]
    if suspects:
        holder = f"one of {_describe_processes(suspects)}"
    else:
        pids = open_device_files.pids_with_gpu_open(listing.vendor)
        holders = [GpuProcess(pid) for pid in pids if not is_ours(pid)]
        opened = f"; {_describe_processes(holders)} opened the driver" if holders else ""
        holder = f"no reported process{opened}"
    is_alive = any(proc.is_alive(process.pid) for process in suspects)
    return GpuProblem(f"{format_size(used_bytes)} in use, held by {holder}", device, may_pass=not is_alive)


def _wait_until_fit(
    attempt: Attempt, settle_s: float, wait: Callable[[float], bool], tool_timeout_s: float = TOOL_TIMEOUT_S
) -> list[GpuProblem]:
    """Check until there is no problem, or none that may pass, or `settle_s` are over; kill leftovers on the way.

    `wait` pauses for some seconds, and returns True to give up.
    """
    deadline, has_killed = time.monotonic() + settle_s, False
    while True:
        problems = _check(attempt, tool_timeout_s)
        if not problems:
            return []
        if not has_killed:
            has_killed = True
            if attempt_processes.kill_leftovers():
                continue
        if not any(problem.may_pass for problem in problems) or time.monotonic() >= deadline or wait(PAUSE_S):
            return problems


def _check(attempt: Attempt, tool_timeout_s: float) -> list[GpuProblem]:
    problems: list[GpuProblem] = []
    for vendor in _vendors(attempt):
        devices = [device for device in attempt.devices if gpus.vendor_of(device.kind) == vendor]
        problems += gpu_problems(devices, gpus.list_gpus(vendor, tool_timeout_s))
    return problems


def _vendors(attempt: Attempt) -> list[str]:
    return sorted({vendor for device in attempt.devices if (vendor := gpus.vendor_of(device.kind))})


def _unfit(attempt: Attempt, when: str, problems: Sequence[GpuProblem]) -> tuple[Unfit, ...]:
    node = attempt.places[0].node
    return tuple(
        Unfit(node, f"{when} {attempt.id}: {problem.reason}", problem.device.kind, problem.device.index)
        if problem.device
        else Unfit(node, f"{when} {attempt.id}: {problem.reason}")
        for problem in problems
    )


def _describe_processes(processes: Sequence[GpuProcess]) -> str:
    descriptions = [
        attempt_processes.describe_process(process.pid, process.name)
        + (f" with {format_size(process.held_bytes)}" if process.held_bytes else "")
        for process in processes[:MAX_NAMED]
    ]
    unnamed = len(processes) - MAX_NAMED
    return ", ".join(descriptions) + (f" and {unnamed} more" if unnamed > 0 else "")


def format_size(size_bytes: int) -> str:
    """Return a size such as `12.0 GiB`."""
    return f"{size_bytes / GIB:.1f} GiB"
