"""What profilers write, and what is read of it; the tools of GPUs' vendors are stood in for by scripts on PATH."""

from pathlib import Path

import pytest

from workers.llm.command_line import BadInput
from workers.llm.kernels.collectors import KernelTime, collect, parse_iree, parse_nsys, parse_rocprofv3

MATMUL, NORM = "prefill_bs1_t64_dispatch_1_matmul_64x128x128_f16xf16xf32", "prefill_bs1_t64_dispatch_0_reduction_64_f32"

IREE = "\n".join(
    f'{{"type":"{kind}","physical_device_ordinal":{device},"key":"{key}","duration_ns":{duration}}}'
    for kind, device, key, duration in (
        ("dispatch_summary", 0, "", 0),
        *(
            ("host_dispatch_event", 0, MATMUL, duration) for duration in (90_000, 5_000, 6_000)
        ),  # the first one was cold
        ("host_dispatch_event", 1, MATMUL, 7_000),
        ("host_dispatch_event", 0, NORM, 400),
    )
)
ROCPROFV3 = f"""\
"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",\
"Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count"
"KERNEL_DISPATCH","Agent 10",1,0,7,1,16,"{MATMUL}.kd",1,1000000,1090000,18432,0,140
"KERNEL_DISPATCH","Agent 4",1,0,7,2,16,"{MATMUL}.kd",2,2000000,2005000,18432,0,140
"KERNEL_DISPATCH","Agent 4",1,0,7,3,17,"{NORM}",3,3000000,3000400,0,0,20
"""
NSYS = f"""\
Processing [profile.sqlite] with [cuda_gpu_trace.py]...

Start (ns),Duration (ns),CorrId,GrdX,Device,Ctx,Strm,Name
1000,5000,1,4,NVIDIA H100 80GB HBM3 (0),1,7,{MATMUL}
9000,800,2,,NVIDIA H100 80GB HBM3 (0),1,7,[CUDA memcpy Host-to-Device]
12000,7000,3,4,NVIDIA H100 80GB HBM3 (1),2,7,{MATMUL}
"""


def test_the_median_call_stands_for_all_calls_of_a_kernel() -> None:
    times = parse_iree(IREE)
    assert times == [KernelTime(MATMUL, 0, 3, 6.0), KernelTime(MATMUL, 1, 1, 7.0), KernelTime(NORM, 0, 1, 0.4)]
    assert times[0].total_us == 18.0


def test_rocprofv3_names_agents_that_are_numbered_as_devices() -> None:
    assert parse_rocprofv3(ROCPROFV3) == [
        *(KernelTime(MATMUL, 1, 1, 90.0), KernelTime(MATMUL, 0, 1, 5.0), KernelTime(NORM, 0, 1, 0.4))
    ]


def test_nsys_lists_copies_too_which_are_no_kernels() -> None:
    assert parse_nsys(NSYS) == [KernelTime(MATMUL, 0, 1, 5.0), KernelTime(MATMUL, 1, 1, 7.0)]
    assert parse_nsys("no CUDA trace data") == []


def script(folder: Path, name: str, body: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{body}\n")
    file.chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is in front of others on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_rocprofv3_runs_the_command_and_its_trace_is_read(tools: Path, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(ROCPROFV3)
    body = f'cp {tmp_path}/trace.csv "$5/1234_kernel_trace.csv"; while [ "$1" != -- ]; do shift; done; shift; "$@"'
    script(tools, "rocprofv3", body)
    script(tools, "benchmark", f"echo $1 > {tmp_path}/ran")
    times = collect("rocprofv3", [str(tools / "benchmark"), "--function=f"], tmp_path)
    assert ((tmp_path / "ran").read_text(), len(times)) == ("--function=f\n", 3)


def test_nsys_runs_the_command_and_is_asked_for_its_trace(tools: Path, tmp_path: Path) -> None:
    (tmp_path / "trace.txt").write_text(NSYS)
    script(tools, "nsys", f'[ "$1" = stats ] && cat {tmp_path}/trace.txt || shift 3; [ "$1" = stats ] || "$@"')
    script(tools, "benchmark", f"echo $1 > {tmp_path}/ran")
    times = collect("nsys", [str(tools / "benchmark"), "--function=f"], tmp_path)
    assert ((tmp_path / "ran").read_text(), len(times)) == ("--function=f\n", 2)


def test_a_collector_that_is_not_installed_is_told_with_what_to_install(tools: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"rocprofv3 is not on PATH: install rocprofiler-sdk"):
        collect("rocprofv3", ["benchmark"], tmp_path)


def test_a_tool_that_crashes_is_tried_once_more(tools: Path, tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text(ROCPROFV3)
    crash = f"[ -e {tmp_path}/crashed ] || {{ touch {tmp_path}/crashed; exit 139; }}"
    script(tools, "rocprofv3", f'{crash}; cp {tmp_path}/trace.csv "$5/1_kernel_trace.csv"')
    assert len(collect("rocprofv3", ["benchmark"], tmp_path)) == 3
