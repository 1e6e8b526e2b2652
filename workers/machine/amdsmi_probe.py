"""Print what AMD's library reports of this machine's GPUs, as JSON on stdout.

A program of its own, run by workers.machine.amd_gpus with a time limit: a call that hangs in a driver can't be
interrupted in any other way. See
https://rocm.docs.amd.com/projects/amdsmi/en/latest/reference/amdsmi-py-api.html; what a release does not have, or does
not permit, is null.
"""

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any


def main() -> None:
    """Print all GPUs in the library's order."""
    amdsmi = importlib.import_module("amdsmi")
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        sys.exit(f"amdsmi finds no driver: {' '.join(str(error).split())}")
    try:
        gpus = [describe_gpu(amdsmi, handle) for handle in amdsmi.amdsmi_get_processor_handles()]
    finally:
        amdsmi.amdsmi_shut_down()
    print(json.dumps(gpus))  # noqa: T201  # the output of a program


def describe_gpu(amdsmi: Any, handle: Any) -> dict[str, Any]:
    """Return all that the library reports of one GPU."""

    def query(function: str, *arguments: Any) -> Any:
        return _query(amdsmi, lambda: getattr(amdsmi, function)(handle, *arguments))

    vram = _query(amdsmi, lambda: amdsmi.AmdSmiMemoryType.VRAM)
    kfd = query("amdsmi_get_gpu_kfd_info") or {}
    processes = query("amdsmi_get_gpu_process_list")
    return {
        "asic": query("amdsmi_get_gpu_asic_info") or {},
        "memory_bytes": query("amdsmi_get_gpu_memory_total", vram),
        "used_bytes": query("amdsmi_get_gpu_memory_usage", vram),
        "performance_level": query("amdsmi_get_gpu_perf_level"),
        "metrics": query("amdsmi_get_gpu_metrics_info"),
        "energy": query("amdsmi_get_energy_count"),
        "power_cap": (query("amdsmi_get_power_cap_info") or {}).get("power_cap"),
        "driver": (query("amdsmi_get_gpu_driver_info") or {}).get("driver_version"),
        "node_id": kfd.get("node_id"),
        "gpu_id": kfd.get("kfd_id"),
        "processes": None if processes is None else list(describe_processes(amdsmi, handle, processes)),
    }


def describe_processes(amdsmi: Any, handle: Any, processes: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the processes on a GPU; releases before 6.2 list handles, of which the library is asked one by one."""
    for process in processes:
        info = process
        if not isinstance(process, dict):
            info = _query(amdsmi, partial(amdsmi.amdsmi_get_gpu_process_info, handle, process))
        if info:
            memory = info.get("memory_usage") or {}
            yield {"pid": info.get("pid"), "name": info.get("name"), "held_bytes": memory.get("vram_mem")}


def _query(amdsmi: Any, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (amdsmi.AmdSmiException, AttributeError):
        return None


if __name__ == "__main__":
    main()
