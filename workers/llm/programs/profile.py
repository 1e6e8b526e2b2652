r"""Measure how long each kernel of a compiled program takes, beside the least that it can take.

    python -m workers.llm.programs.profile --kernels inputs/analyse/kernels.json --collector ireeprof --calls 20 \
        --entry '{"function": "decode_bs1_c96", "flags": ["--input=1x1xi64=5", ...]}' -- --module=... --device=...

What stands behind `--` goes to iree-benchmark-module for each entry point: once as it is, for the time of a call, then
under the collector, which makes it slower. Writes outputs/profile.json, and as text outputs/profile.txt.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from workers.llm.command_line import positive_int, run, write_json, write_text
from workers.llm.kernels.collectors import COLLECTORS, collect, find_tool, run_tool
from workers.llm.kernels.profile_report import entry_profile
from workers.llm.kernels.profile_table import to_text

REPORT, TEXT = Path("outputs/profile.json"), Path("outputs/profile.txt")
BENCHMARK = "iree-benchmark-module"
REPETITIONS = 5  #: of the calls that are timed without a profiler; the first is warm-up
MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}


def main() -> None:
    """Profile each entry point."""
    args = parse_arguments()
    analysis = json.loads(args.kernels.read_text())
    report: dict[str, Any] = {"format": 1, "collector": args.collector, "peaks": analysis["peaks"], "entries": {}}
    for entry in map(json.loads, args.entry):
        report["entries"][entry["function"]] = profile(entry, analysis, args)
        print(f"profiled {entry['function']}", flush=True)
    write_json(REPORT, report)
    write_text(TEXT, to_text(report))


def parse_arguments() -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m workers.llm.programs.profile", description=__doc__.split("\n")[0])
    parser.add_argument("--kernels", type=Path, required=True, help="the report of workers.llm.programs.analyse")
    parser.add_argument("--collector", choices=COLLECTORS, required=True)
    parser.add_argument("--calls", type=positive_int, required=True, help="of each entry point")
    parser.add_argument("--entry", action="append", required=True, help="function and flags, in JSON; may be repeated")
    parser.add_argument("flags", nargs="+", help="of iree-benchmark-module, for all entry points")
    return parser.parse_args()


def profile(entry: dict[str, Any], analysis: dict[str, Any], args: argparse.Namespace) -> dict[str, Any]:
    """Return the profile of one entry point."""
    name = entry["function"]
    command = [find_tool(BENCHMARK) or BENCHMARK, *args.flags, f"--function={name}", *entry["flags"]]
    wall_ms, _ = time_calls(command, args.calls)
    with TemporaryDirectory(dir=".") as scratch:
        out = Path(scratch) / "benchmark.json"
        times = collect(args.collector, [*command, *timing_flags(args.calls, out)], Path(scratch))
        _, runs = read_times(out)
        for file in Path(scratch).glob("profile.*"):
            file.rename(f"outputs/{name}{file.suffix}")
    return entry_profile(name, analysis, times, runs, wall_ms)


def time_calls(command: Sequence[str], calls: int) -> tuple[float, int]:
    """Return the time of one call in milliseconds, and how many there were."""
    with TemporaryDirectory(dir=".") as scratch:
        out = Path(scratch) / "benchmark.json"
        run_tool([*command, f"--benchmark_repetitions={REPETITIONS}", *timing_flags(calls, out)])
        return read_times(out)


def timing_flags(calls: int, out: Path) -> list[str]:
    """Return the flags that let iree-benchmark-module call a function so often, and write its report."""
    return [f"--benchmark_min_time={calls}x", "--benchmark_out_format=json", f"--benchmark_out={out}"]


def read_times(out: Path) -> tuple[float, int]:
    """Return the time of one call in milliseconds, the median of all repetitions, and how many calls each had."""
    runs = [run for run in json.loads(out.read_text())["benchmarks"] if run["run_type"] == "iteration"]
    return median(run["real_time"] * MILLISECONDS[run["time_unit"]] for run in runs), runs[0]["iterations"]


if __name__ == "__main__":
    run(main)
