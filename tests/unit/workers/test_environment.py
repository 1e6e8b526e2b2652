"""What stage processes get to see, and what is found out about a toolchain."""

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from jobs.targets import TARGETS
from jobs.task import Command, Device
from workers.environment import (
    MissingTool,
    find_tool,
    held_back_variables,
    is_passed,
    passed_variables,
    resolve_command,
    stage_environment,
    visible_devices,
)
from workers.toolchain_probe import parse_flags, probe_toolchain

HELP = """\
OPTIONS:

  --iree-rocm-target=<string>     - ROCM target; was --iree-hip-target once
  --iree-cuda-use-ptxas           - Whether to use ptxas
    =none                         -   No compression
  -o <filename>                   - Specify output filename
"""


PASSED = {
    "PATH": "/bin",
    "HF_HOME": "/models",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "4",
    "LC_ALL": "C",
    "https_proxy": "http://proxy:3128",
    "LD_LIBRARY_PATH": "/opt/rocm/lib",
    "HIP_FORCE_DEV_KERNARG": "1",
    "PYTORCH_NO_HIP_MEMORY_CACHING": "1",
    "no_proxy": "localhost,10.0.0.0/8",
}

HELD_BACK = {
    "CUDA_PRIVATE_KEY": "x",
    "TORCH_PAT": "x",
    "VLLM_API_KEY": "x",
    "HF_TOKEN_PATH": "/home/halo/token",
    "HTTPS_PROXY": "user:word@proxy:3128",
    "http_proxy": "user:wo/rd@proxy:3128",
    "HF_ENDPOINT": "https://user@mirror/",
    "HF_TOKEN": "hf_x",
    "HF_API_KEY": "x",
    "AWS_SECRET_ACCESS_KEY": "x",
    "HALOCTL_DATABASE_URL": "postgresql://halo:x@db/halo",
    "RAY_AUTH_TOKEN": "x",
    "https_proxy": "http://user:word@proxy:3128",
    "PGPASSWORD": "x",
    "CUDA_VISIBLE_DEVICES": "0",
    "ROCR_VISIBLE_DEVICES": "0",
    "PYTHONSTARTUP": "x.py",
    "LD_PRELOAD": "x.so",
    "PYTORCH_TUNABLEOP_ENABLED": "1",
}


def test_a_site_adds_exact_names_but_no_secrets_and_no_masks() -> None:
    given = {
        "OUR_FLAG": "1",
        "OUR_FLAG_2": "1",
        "OUR_TOKEN": "x",
        "HIP_VISIBLE_DEVICES": "3",
        "OUR_MIRROR": "u:p@host:1",
    }
    site = {"HALOCTL_STAGE_VARIABLES": "OUR_FLAG, OUR_TOKEN HIP_VISIBLE_DEVICES,OUR_MIRROR"}
    assert passed_variables(given) == {}
    assert passed_variables(given | site) == {"OUR_FLAG": "1"}


def test_what_changes_results_is_for_job_files_unless_a_site_wants_it() -> None:
    given = {"MKL_CBWR": "AVX2", "HSA_ENABLE_SDMA": "0", "LD_LIBRARY_PATH": "/opt/rocm/lib", "OUR_FLAG": "1"}
    assert passed_variables(given) == {"HSA_ENABLE_SDMA": "0", "LD_LIBRARY_PATH": "/opt/rocm/lib"}
    assert held_back_variables(given) == ["MKL_CBWR"]
    site = {"HALOCTL_STAGE_VARIABLES": "MKL_CBWR"}
    assert passed_variables(given | site)["MKL_CBWR"] == "AVX2"
    assert held_back_variables(given | site) == []


@pytest.mark.parametrize(("name", "value"), PASSED.items())
def test_what_tools_need_is_passed_on(name: str, value: str) -> None:
    assert is_passed(name, value)


@pytest.mark.parametrize(("name", "value"), HELD_BACK.items())
def test_secrets_masks_and_the_unknown_are_not_passed_on(name: str, value: str) -> None:
    assert not is_passed(name, value)


def test_a_clean_environment_keeps_what_was_given_and_no_more() -> None:
    variables = stage_environment((), None, {"HOME": "/home/halo", "EDITOR": "vi", "HF_TOKEN": "x"})
    assert variables["HOME"] == "/home/halo"
    assert not {"EDITOR", "HF_TOKEN"} & variables.keys()


def test_gpus_are_shown_by_their_own_variable_and_no_other() -> None:
    assert visible_devices((Device("mi300x", 1), Device("mi300x", 7))) == {"HIP_VISIBLE_DEVICES": "1,7"}
    assert visible_devices((Device("h100", 3),)) == {"CUDA_VISIBLE_DEVICES": "3"}


def test_an_attempt_without_gpus_sees_none() -> None:
    variables = {variable for target in TARGETS.values() for variable in target.visible_devices}
    assert visible_devices((Device("cpu", 0),)) == dict.fromkeys(variables, "-1")


def test_a_commands_tools_are_those_of_this_interpreter() -> None:
    assert resolve_command(Command(("python", "-V"))).argv == (sys.executable, "-V")
    assert find_tool("iree-compile") == str(Path(sys.executable).with_name("iree-compile"))


def test_a_commands_own_variables_win() -> None:
    assert (
        resolve_command(Command(("python",), {"TOKENIZERS_PARALLELISM": "true"})).env["TOKENIZERS_PARALLELISM"]
        == "true"
    )


def test_a_tool_that_is_missing_is_named_with_where_it_was_looked_for() -> None:
    with pytest.raises(MissingTool, match=r"iree-levitate is neither beside .* nor on PATH"):
        resolve_command(Command(("iree-levitate",)))


def test_flags_are_read_from_a_compilers_help() -> None:
    assert parse_flags(HELP) == {"--iree-rocm-target", "--iree-cuda-use-ptxas"}


def test_a_toolchain_is_what_is_installed_here(tmp_path: Path) -> None:
    toolchain = probe_toolchain(tmp_path)
    assert toolchain.versions["torch"].startswith("2.")
    assert "--iree-hal-target-device" in toolchain.compiler_flags
    assert len(toolchain.programs) == 64
    assert toolchain.host_cpu.startswith(os.uname().machine)


def test_a_compiler_is_asked_once(tmp_path: Path) -> None:
    first = probe_toolchain(tmp_path)
    (kept,) = tmp_path.iterdir()
    assert frozenset(json.loads(kept.read_text())) == first.compiler_flags
    kept.write_text('["--remembered"]')
    assert probe_toolchain(tmp_path).compiler_flags == {"--remembered"}


def test_a_damaged_cache_is_no_harm(tmp_path: Path) -> None:
    first = probe_toolchain(tmp_path)
    (kept,) = tmp_path.iterdir()
    kept.write_text('["--remem')
    assert probe_toolchain(tmp_path) == first


def test_a_cache_that_cannot_be_written_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "--iree-hal-target-device" in probe_toolchain(tmp_path / "file" / "cache").compiler_flags


def test_several_may_ask_at_once(tmp_path: Path) -> None:
    flags: list[frozenset[str]] = []
    threads = [
        threading.Thread(target=lambda: flags.append(probe_toolchain(tmp_path / "cache").compiler_flags))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(flags) == 4
    assert len(set(flags)) == 1
    assert len(list((tmp_path / "cache").iterdir())) == 1
