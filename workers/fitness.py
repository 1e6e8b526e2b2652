"""Whether the GPUs of an attempt are fit to be used: nobody else is on them before it, and nothing is left after it.

What tells is memory. A process that only has a device's file open may be a monitor, or a program on another GPU of the
node, for runtimes open them all: such are named where memory is in use that no process admits to.
"""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from jobs.task import GIB, Attempt, Device, Unfit
from workers import device_users, gpus
from workers.gpu_listing import Gpu, Listing
from workers.gpu_users import GpuUser
from workers.processes import Cancellation

IN_USE_BYTES = GIB  #: a driver keeps some for itself: about 300 MiB of an MI300X, 500 MiB of an H100 with some releases
BEFORE_S = 5.0  #: what a process held that has ended comes back within this
AFTER_S = 20.0  #: also where it was all of nearly 200 GiB
PAUSE_S = 0.25
NAMED = 3  #: processes, in a reason


@dataclass(frozen=True)
class Trouble:
    """Something wrong with a device, or with all of them."""

    reason: str
    device: Device | None = None
    passes: bool = True  #: it may be over in a moment
    is_user: bool = False  #: somebody is on it


def before(attempt: Attempt, cancellation: Cancellation) -> tuple[Unfit, ...]:
    """What is wrong with an attempt's GPUs before it starts, when what others of ours left on them was ended."""
    if not _vendors(attempt):
        return ()
    cancelled = threading.Event()
    cancellation.calls(cancelled.set)
    found = _settled(attempt, BEFORE_S, cancelled.wait)
    return () if cancellation.is_wished else _unfit(attempt, "before", found)


def after(attempt: Attempt, settle_s: float = AFTER_S) -> tuple[Unfit, ...]:
    """What is wrong with them after it, when their memory has had the time to come back."""
    if not _vendors(attempt):
        return ()
    return _unfit(attempt, "after", _settled(attempt, settle_s, threading.Event().wait))


def told(unfit: Unfit) -> str:
    """What is wrong, with where it is."""
    return f"{unfit.kind}:{unfit.index}: {unfit.reason}" if unfit.kind else unfit.reason


def troubles(devices: Collection[Device], listing: Listing | None) -> Iterator[Trouble]:
    """What is wrong with some devices, by what their vendor's tool answered."""
    if listing is None:
        yield Trouble("the tool that listed its GPUs is gone")
    elif listing.error:
        yield Trouble(listing.error)
    else:
        by_index = {gpu.index: gpu for gpu in listing.gpus}
        for device in devices:
            yield from _of_device(device, by_index.get(device.index), listing)


def _of_device(device: Device, gpu: Gpu | None, listing: Listing) -> Iterator[Trouble]:
    if gpu is None:
        yield Trouble(
            f"{listing.tool} does not list it any more, only {len(listing.gpus)} others", device, passes=False
        )
    elif device.serial and gpu.serial and device.serial != gpu.serial:
        yield Trouble(f"another card is in its place: {gpu.serial}, not {device.serial}", device, passes=False)
    elif users := [user for user in gpu.users or () if user.is_on_it]:
        is_living = any(device_users.is_alive(user.pid) for user in users)
        yield Trouble(f"in use by {_names(users)}", device, passes=not is_living, is_user=True)
    elif (gpu.used_bytes or 0) > IN_USE_BYTES:
        yield _unexplained(device, gpu.used_bytes or 0, listing)


def _unexplained(device: Device, used_bytes: int, listing: Listing) -> Trouble:
    """Memory in use that no process of this very device admits to."""
    running = device_users.is_of_running_attempt
    if suspects := [user for user in listing.users if user.is_on_it and not running(user.pid)]:
        who = f"by one of {_names(suspects)}"
    else:
        opened = [GpuUser(pid) for pid in device_users.openers(listing.vendor) if not running(pid)]
        who = f"no process is told of; {_names(opened)} opened the driver" if opened else "no process is told of"
    is_living = any(device_users.is_alive(user.pid) for user in suspects)
    return Trouble(f"{size(used_bytes)} of it are in use: {who}", device, passes=not is_living)


def _settled(attempt: Attempt, settle_s: float, wait: Callable[[float], bool]) -> list[Trouble]:
    """Look until nothing is wrong, or what is won't pass, or for `settle_s`; end leftovers of ours on the way."""
    deadline, has_swept = time.monotonic() + settle_s, False
    while True:
        found = _look(attempt)
        if not found:
            return []
        if not has_swept:
            has_swept = True
            if device_users.sweep_leftovers():
                continue
        if not any(trouble.passes for trouble in found) or time.monotonic() >= deadline or wait(PAUSE_S):
            return found


def _look(attempt: Attempt) -> list[Trouble]:
    found: list[Trouble] = []
    for vendor in _vendors(attempt):
        devices = [device for device in attempt.devices if gpus.vendor_of(device.kind) == vendor]
        found += troubles(devices, gpus.list_gpus(vendor))
    return found


def _vendors(attempt: Attempt) -> list[str]:
    return sorted({vendor for device in attempt.devices if (vendor := gpus.vendor_of(device.kind))})


def _unfit(attempt: Attempt, when: str, found: Sequence[Trouble]) -> tuple[Unfit, ...]:
    node = attempt.places[0].node
    return tuple(
        Unfit(node, f"{when} {attempt.id}: {trouble.reason}", trouble.device.kind, trouble.device.index)
        if trouble.device
        else Unfit(node, f"{when} {attempt.id}: {trouble.reason}")
        for trouble in found
    )


def _names(users: Sequence[GpuUser]) -> str:
    named = [device_users.told(user.pid, user.name) + _held(user) for user in users[:NAMED]]
    more = len(users) - NAMED
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")


def _held(user: GpuUser) -> str:
    return f" with {size(user.held_bytes)}" if user.held_bytes else ""


def size(size_bytes: int) -> str:
    """Bytes in words."""
    return f"{size_bytes / GIB:.1f} GiB"
