"""What AMD's library says of this machine's GPUs, as JSON on stdout.

A program of its own, run by workers.gpus: a call into a driver that hangs can't be ended otherwise. See
https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html; what a release does not have, or is
not allowed to tell, is null.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any


def main() -> None:
    """Print every GPU, in the library's order."""
    amdsmi = importlib.import_module("amdsmi")
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        sys.exit(f"amdsmi finds no driver: {' '.join(str(error).split())}")
    try:
        handles = amdsmi.amdsmi_get_processor_handles()
        found = [facts_of(amdsmi, handle) for handle in handles]
    finally:
        amdsmi.amdsmi_shut_down()
    print(json.dumps(found))  # noqa: T201  # the answer of a program


def facts_of(amdsmi: Any, handle: Any) -> dict[str, Any]:
    """All that is told of one GPU."""

    def told(function: str, *arguments: Any) -> Any:
        return _told(amdsmi, lambda: getattr(amdsmi, function)(handle, *arguments))

    vram = _told(amdsmi, lambda: amdsmi.AmdSmiMemoryType.VRAM)
    kfd = told("amdsmi_get_gpu_kfd_info") or {}
    processes = told("amdsmi_get_gpu_process_list")
    return {
        "asic": told("amdsmi_get_gpu_asic_info") or {},
        "memory_bytes": told("amdsmi_get_gpu_memory_total", vram),
        "used_bytes": told("amdsmi_get_gpu_memory_usage", vram),
        "performance_level": told("amdsmi_get_gpu_perf_level"),
        "metrics": told("amdsmi_get_gpu_metrics_info"),
        "power_cap": (told("amdsmi_get_power_cap_info") or {}).get("power_cap"),
        "driver": (told("amdsmi_get_gpu_driver_info") or {}).get("driver_version"),
        "node_id": kfd.get("node_id"),
        "gpu_id": kfd.get("kfd_id"),
        "users": None if processes is None else list(users_of(amdsmi, handle, processes)),
    }


def users_of(amdsmi: Any, handle: Any, processes: list[Any]) -> Iterator[dict[str, Any]]:
    """The processes on a GPU; releases before 6.2 list handles of them instead of what they are."""
    for process in processes:
        info = process
        if not isinstance(process, dict):
            info = _told(amdsmi, partial(amdsmi.amdsmi_get_gpu_process_info, handle, process))
        if info:
            held = info.get("memory_usage") or {}
            yield {"pid": info.get("pid"), "name": info.get("name"), "held_bytes": held.get("vram_mem")}


def _told(amdsmi: Any, ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except (amdsmi.AmdSmiException, AttributeError):
        return None


if __name__ == "__main__":
    main()
