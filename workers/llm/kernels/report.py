"""The report on a program's kernels: for each entry point its sums, for each kernel its work, code and floor."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from iree.compiler import ir

from workers.llm.command_line import BadInput
from workers.llm.kernels.code import KernelCode, read_code
from workers.llm.kernels.configurations import read_configurations, read_workgroups
from workers.llm.kernels.dispatch_cost import DispatchCost, cost_of, walk
from workers.llm.kernels.schedule import EntrySchedule, read_schedules, symbol

FORMAT = 1
COMPUTE, MEMORY = "compute", "memory"


def build_report(folder: Path, peaks: Mapping[str, Any], matrix_instruction: str) -> dict[str, Any]:
    """Return the report on the program whose dump lies in a folder. Raises BadInput without the phase `stream`."""
    phase = next(iter(sorted(folder.glob("*.stream.mlir"))), None)
    if phase is None:
        raise BadInput("the compiler dumped no phase stream, which says what the program runs: use another toolchain")
    with ir.Context() as context:
        context.allow_unregistered_dialects = True
        module = ir.Module.parse(phase.read_text())
        costs = dict(_costs(module))
        schedules = read_schedules(module, peaks["link_gb_per_s"] * 1e9)
    codes = read_code(folder, peaks["waves"], matrix_instruction)
    configurations, workgroups = read_configurations(folder), read_workgroups(folder)
    kernels = {
        name: {
            **_cost_row(costs[name], peaks),
            "workgroups": workgroups.get(name),
            **configurations.get(name, {"pipeline": "", "lowering": ""}),
            **codes.get(name, KernelCode()).to_json(),
        }
        for name in sorted({name for schedule in schedules.values() for name, _ in schedule.calls} & costs.keys())
    }
    has_matrix_units = bool(matrix_instruction)
    entries = {name: entry_row(schedule, kernels, peaks, has_matrix_units) for name, schedule in schedules.items()}
    return {"format": FORMAT, "peaks": dict(peaks), "entries": entries, "kernels": kernels}


def _costs(module: Any) -> Iterable[tuple[str, DispatchCost]]:
    for operation in (each.operation for each in module.body.operations):
        if operation.name == "stream.executable":
            for inner in walk(operation):
                if inner.name == "func.func":
                    yield symbol(inner), cost_of(inner)


def _cost_row(cost: DispatchCost, peaks: Mapping[str, Any]) -> dict[str, Any]:
    floor_us, bound = floor_of(cost, peaks)
    return {**asdict(cost), "floor_us": floor_us, "bound": bound}


def floor_of(cost: DispatchCost, peaks: Mapping[str, Any]) -> tuple[float, str]:
    """Return the least time of a dispatch in microseconds, and what bounds it: its arithmetic or its memory."""
    tflops = peaks["tflops"].get(cost.operand, peaks["tflops"]["f32"])
    compute_us = cost.flops / tflops / 1e6 + cost.other_ops / peaks["vector_tflops"] / 1e6
    memory_us = (cost.read_bytes + cost.written_bytes) / peaks["gb_per_s"] / 1e3
    return (compute_us, COMPUTE) if compute_us > memory_us else (memory_us, MEMORY)


def entry_row(
    schedule: EntrySchedule, kernels: Mapping[str, Mapping[str, Any]], peaks: Mapping[str, Any], has_matrix_units: bool
) -> dict[str, Any]:
    """Return the sums of one call of an entry point, over all devices; its floor is that of the busiest device."""
    floor_us: Counter[int] = Counter()
    calls: Counter[str] = Counter()
    for (name, device), count in schedule.calls.items():
        if name in kernels:
            calls[name] += count
            floor_us[device] += count * kernels[name]["floor_us"]
    for device, copied in schedule.copied_bytes.items():
        floor_us[device] += 2 * copied / peaks["gb_per_s"] / 1e3  # read and written
    launches = Counter[int]()
    for (_, device), count in schedule.calls.items():
        launches[device] += count
    rows = [(kernels[name], count) for name, count in calls.items()]
    moved = sum((row["read_bytes"] + row["written_bytes"]) * count for row, count in rows)
    waves = [row["waves_per_simd"] for row, _ in rows if "waves_per_simd" in row]
    spills = [row["spills"] for row, _ in rows if "spills" in row]
    return {
        "devices": len(floor_us) or 1,
        "dispatches": schedule.calls.total(),
        "kernels": len(calls),
        "flops": sum((row["flops"] + row["other_ops"]) * count for row, count in rows),
        "bytes": moved + 2 * sum(schedule.copied_bytes.values()),
        "floor_ms": max(floor_us.values(), default=0.0) / 1e3,
        "launch_ms": max(launches.values(), default=0) * peaks["launch_us"] / 1e3,
        "copies": schedule.copies,
        "copied_bytes": sum(schedule.copied_bytes.values()),
        "few_workgroups": sum(
            count for row, count in rows if row["workgroups"] is not None and row["workgroups"] < peaks["compute_units"]
        ),
        **({"spills": sum(spills)} if spills else {}),
        **({"min_waves": min(waves)} if waves else {}),
        **({"mfma": sum(sum(row["mfma"].values()) for row, _ in rows)} if has_matrix_units else {}),
        "dynamic_kernels": sum(row["is_dynamic"] for row, _ in rows),
        "link_bytes": sum(schedule.sent_bytes.values()),
        "link_steps": schedule.last.steps,
        "link_floor_ms": 1e3 * schedule.link_floor_s(peaks["link_gb_per_s"] * 1e9),
        "links": [
            {"from": source, "to": target, "bytes": sent, "transfers": schedule.transfers[source, target]}
            for (source, target), sent in sorted(schedule.sent_bytes.items())
        ],
        "calls": dict(calls),
    }
