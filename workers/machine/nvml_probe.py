"""Print what NVML reports of this machine's NVIDIA GPUs, as JSON on stdout.

A program of its own, run by workers.machine.nvidia_gpus with a time limit: a call that hangs in a driver can't be
interrupted in any other way. Uses nvidia-ml-py (imported as `pynvml`, https://pypi.org/project/nvidia-ml-py/); see
https://docs.nvidia.com/deploy/nvml-api/. What a driver does not support, or does not permit, is null.

Throttle times come from nvmlDeviceGetViolationStatus, in ns. The field values NVML_FI_DEV_CLOCKS_EVENT_REASON_* would
be finer, but their numbers differ between releases (SW_THERM_SLOWDOWN is 251 in nvidia-ml-py 12 and 269 in 13), so a
library that is newer than the driver would read another field.
"""

import importlib
import json
import sys
from typing import Any


def main() -> None:
    """Print all GPUs in the order of their indices, which is that of their PCI addresses."""
    pynvml = importlib.import_module("pynvml")
    try:
        pynvml.nvmlInit()
        try:
            driver = pynvml.nvmlSystemGetDriverVersion()
            gpus = [describe_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        sys.exit(f"NVML: {error}")
    print(json.dumps({"driver": driver, "gpus": gpus}))  # noqa: T201  # the output of a program


def describe_gpu(pynvml: Any, index: int) -> dict[str, Any]:
    """Return all that NVML reports of one GPU; clocks in MHz, power in mW, energy in mJ, times in ns."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)

    def query(function: str, *arguments: Any) -> Any:
        try:
            return getattr(pynvml, function)(handle, *arguments)
        except (pynvml.NVMLError, AttributeError):
            return None

    # The second version counts what the driver reserves apart, as nvidia-smi does; drivers before 510 lack it.
    memory = query("nvmlDeviceGetMemoryInfo", pynvml.nvmlMemory_v2) or query("nvmlDeviceGetMemoryInfo")
    processes = query("nvmlDeviceGetComputeRunningProcesses_v3")
    if processes is None:
        processes = query("nvmlDeviceGetComputeRunningProcesses_v2")  # drivers before 510 lack the third version
    thermal = query("nvmlDeviceGetViolationStatus", pynvml.NVML_PERF_POLICY_THERMAL)
    power = query("nvmlDeviceGetViolationStatus", pynvml.NVML_PERF_POLICY_POWER)
    return {
        "index": index,
        "name": query("nvmlDeviceGetName"),
        "serial": query("nvmlDeviceGetSerial"),
        "uuid": query("nvmlDeviceGetUUID"),
        "memory_bytes": memory and memory.total,
        "used_bytes": memory and memory.used,
        "persistence_mode": query("nvmlDeviceGetPersistenceMode"),
        "application_clock": query("nvmlDeviceGetApplicationsClock", pynvml.NVML_CLOCK_GRAPHICS),
        "max_graphics_clock": query("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_GRAPHICS),
        "max_memory_clock": query("nvmlDeviceGetMaxClockInfo", pynvml.NVML_CLOCK_MEM),
        "sm_clock": query("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_SM),
        "memory_clock": query("nvmlDeviceGetClockInfo", pynvml.NVML_CLOCK_MEM),
        "power_mw": query("nvmlDeviceGetPowerUsage"),
        "power_cap_mw": query("nvmlDeviceGetPowerManagementLimit"),
        "energy_mj": query("nvmlDeviceGetTotalEnergyConsumption"),
        "temperature_c": query("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU),
        "throttle_reasons": query("nvmlDeviceGetCurrentClocksThrottleReasons"),
        "thermal_throttle_ns": thermal and thermal.violationTime,
        "power_throttle_ns": power and power.violationTime,
        "processes": processes and [{"pid": process.pid, "held_bytes": process.usedGpuMemory} for process in processes],
    }


if __name__ == "__main__":
    main()
