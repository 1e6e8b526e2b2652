"""Job files set options of compilers that change generated code, and no others."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.compiler_flags import COMPILER_FLAGS, flag_problem
from jobs.inductor_options import INDUCTOR_OPTIONS, inductor_problem
from jobs.job_file.job_checks import flags_problem, job_problem
from jobs.runtime_flags import RUNTIME_FLAGS
from jobs.stages.compile import UNPACKED_IN_PLACE
from jobs.targets import TARGETS
from jobs.toolchain_table import TOOLCHAINS
from tests.stored_jobs import spec_of

#: What a name says of a flag that runs programs, or reads or writes files.
DANGEROUS = re.compile(
    r"path|file|dir\b|-to$|-from$|plugin|linker|bitcode$|import|export|pipeline|params|library|dump|exec"
)


@pytest.mark.parametrize(
    "flag",
    [
        "--iree-opt-level=O3",
        "--iree-hal-indirect-command-buffers=true",
        "--iree-stream-resource-memory-model=discrete",
        "--iree-hal-memoization=true",
        "--iree-hip-target=gfx942",
        "--iree-rocm-target-features=+sramecc,-xnack",
        "--iree-dispatch-creation-enable-aggressive-fusion",
        "--iree-opt-data-tiling=false",
        "--iree-input-type=none",
        "--iree-execution-model=async-external",
        "--iree-llvmcpu-target-cpu=host",
        "--iree-llvmcpu-target-vector-width-in-bytes=32",
        "--iree-opt-const-expr-max-size-increase-threshold=-1",
        *UNPACKED_IN_PLACE,
        *(flag.spelled([name]) for target in TARGETS.values() for flag in target.flags[-1:] for name in flag.names),
    ],
)
def test_flags_of_code_generation_are_allowed(flag: str) -> None:
    assert flag_problem(flag) is None


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--iree-llvmcpu-embedded-linker-path=id>pwned;#", "not among the flags"),
        ("--iree-hal-dump-executable-files-to=/anywhere", "not among the flags"),
        ("--iree-hal-preprocess-executables-with=touch pwned", "not among the flags"),
        ("--iree-preprocessing-pass-pipeline=builtin.module()", "not among the flags"),
        ("--iree-load-plugin=./evil.so", "not among the flags"),
        ("--iree-plugin=evil", "not among the flags"),
        ("--mlir-print-ir-after-all", "HALOCTL_COMPILER_FLAGS"),
        ("--iree-opt-levle=O3", "did you mean --iree-opt-level?"),
        ("--iree-opt-level=/etc/passwd", "should have O0, O1, O2 or O3"),
        ("--iree-opt-level", "should have O0, O1, O2 or O3"),
        ("--iree-hip-target=../x", "without blanks or slashes"),
        ("--iree-hip-target=a;b", "without blanks or slashes"),
        ("--iree-hip-target=$(id)", "without blanks or slashes"),
        ("--iree-hip-target=x\n", "without blanks or slashes"),
        ("--iree-opt-data-tiling=perhaps", "true or false"),
        ("--iree-vm-target-index-bits=many", "a whole number"),
        ("-o=/tmp/x", "not among the flags"),
    ],
)
def test_other_flags_are_refused_with_the_reason(flag: str, reason: str) -> None:
    problem = flag_problem(flag)
    assert problem is not None
    assert reason in problem


def test_no_name_in_the_table_is_that_of_a_flag_for_files_or_programs() -> None:
    links = {"--iree-hal-link-executables", "--iree-hal-executable-debug-level", "--iree-execution-model"}
    links |= {"--iree-llvmcpu-link-ukernel-bitcode", "--iree-codegen-llvmgpu-vectorize-pipeline"}
    assert [name for name in COMPILER_FLAGS if DANGEROUS.search(name) and name not in links] == []
    of_files = re.compile(r"_path$|(?<!pro)file$|_dir$|cxx|_home|log$")
    assert [name for name in INDUCTOR_OPTIONS if of_files.search(name)] == []


@pytest.mark.parametrize(
    ("key", "flag", "reason"),
    [
        ("benchmark", "--hip_use_streams=true", None),
        ("benchmark", "--task_topology_nodes=0,2", None),
        ("benchmark", "--task_topology_group_count=all", "should have a whole number, not 'all'"),
        ("benchmark", "--hip_dylib_path=./evil.so", "is not among the runtime's flags"),
        ("benchmark", "--executable_plugin=./evil.so", "is not among the runtime's flags"),
        ("benchmark", "--device=hip://1", "is not among the runtime's flags"),
        ("benchmark", "--device_profiling_output=/tmp/x", "is not among the runtime's flags"),
        ("benchmark", "--iree-opt-level=O3", "is not among the runtime's flags"),
        ("compile", "--hip_use_streams=true", "is not among the flags"),
        ("variants", "--hip_use_stream=true", "did you mean --hip_use_streams?"),
        ("variants", "--hip_use_streams=true", None),
    ],
)
def test_flags_of_the_runtime_change_its_speed_and_nothing_else(key: str, flag: str, reason: str | None) -> None:
    flags: object = {"a": [flag]} if key == "variants" else [flag]
    problem = flags_problem(spec_of(**{key: {"flags": flags}}), ())
    assert (problem is None) == (reason is None)
    if problem and reason:
        assert reason in problem.message
        assert problem.keys[0][:2] == (key, "flags")


def test_the_runtime_has_every_flag_of_the_table() -> None:
    tool = Path(sys.executable).with_name("iree-benchmark-module")
    described = subprocess.run([tool, "--help"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    known = set(re.findall(r"^(?:# )?(--\w+)=", described.stdout, re.MULTILINE))
    assert set(RUNTIME_FLAGS) - known == set()


def test_a_site_allows_names_and_still_no_paths() -> None:
    assert flag_problem("--amdgpu-dpp-combine=false", {"--amdgpu-dpp-combine"}) is None
    assert flag_problem("--amdgpu-dpp-combine", {"--amdgpu-dpp-combine"}) is None
    problem = flag_problem("--dump-to=/tmp/x", {"--dump-to"})
    assert problem is not None
    assert "not '/tmp/x'" in problem


def test_the_problem_of_a_flag_names_its_key() -> None:
    spec = spec_of(compile={"flags": ["--iree-opt-level=O3", "--x"]})
    problem = flags_problem(spec, ())
    assert problem is not None
    assert problem.keys == (("compile", "flags", 1),)
    assert flags_problem(spec, {"--x"}) is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"freezing": True, "max_autotune_gemm_backends": "ATEN,TRITON", "cpp.simdlen": 512}, None),
        ({"cpp.cxx": "touch pwned"}, "is not among the options"),
        ({"cuda.cutlass_dir": "/tmp"}, "is not among the options"),
        ({"frezing": True}, "did you mean freezing?"),
        ({"max_autotune_gemm_backends": "/tmp/x"}, "should be a name"),
        ({"freezing": 7}, "should be true or false"),
    ],
)
def test_options_of_inductor_are_those_of_code_generation(options: dict[str, object], reason: str | None) -> None:
    problem = job_problem(spec_of(variants={"engine": "torch-compile"}, torch={"inductor": options}), TOOLCHAINS)
    if reason is None:
        assert problem is None
        return
    assert problem is not None
    assert reason in problem.message
    assert problem.keys == (("torch", "inductor", next(iter(options))),)


def test_a_wrong_value_of_inductor_is_refused_by_itself() -> None:
    assert inductor_problem("freezing", "yes") is not None
    assert inductor_problem("freezing", False) is None
