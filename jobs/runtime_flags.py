"""The flags of IREE's runtime that job files may set: those that change how fast a program runs, not what it computes.

The runtime also has flags that load libraries, write files, or choose other devices; they are in no job file.
`iree-benchmark-module --help` says what each flag does.
"""

import difflib
from collections.abc import Mapping

from jobs.tool_options import COUNT, NAME, SWITCH, Kind, choice

#: Flags without the dashes in front, by the kind of their values.
_NAMES: Mapping[Kind, str] = {
    SWITCH: """
        cuda_allow_inline_execution cuda_async_allocations cuda_use_streams hip_allow_inline_execution
        hip_async_allocations hip_async_caching hip_use_streams
        """,
    COUNT: """
        task_topology_group_count task_topology_max_group_count task_worker_local_memory task_worker_spin_us
        task_worker_stack_size
        """,
    NAME: "task_topology_cpu_ids task_topology_nodes",
    choice("physical_cores"): "task_topology_mode",
    choice("any", "low", "efficiency", "high", "performance"): "task_topology_performance_level",
    choice("compact", "scatter"): "task_topology_distribution",
    choice("latency", "throughput", "efficiency"): "task_topology_favor",
}

RUNTIME_FLAGS: dict[str, Kind] = {f"--{name}": kind for kind, names in _NAMES.items() for name in names.split()}


def is_runtime_flag(flag: str) -> bool:
    """Return whether a flag is for the runtime, rather than for the compiler."""
    return flag.partition("=")[0] in RUNTIME_FLAGS


def runtime_flag_problem(flag: str) -> str | None:
    """Return why a job file can't set a flag of the runtime."""
    name, equals, text = flag.partition("=")
    kind = RUNTIME_FLAGS.get(name)
    if kind is None:
        close = difflib.get_close_matches(name, RUNTIME_FLAGS, n=1, cutoff=0.85)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(RUNTIME_FLAGS))}"
        return f"{name} is not among the runtime's flags that only change how fast a program runs: {hint}"
    value = text if equals else None
    return None if kind.allows(value) else f"{name} should have {kind.description}, not {text[:100]!r}"
