"""What a node says of itself, from what drivers' tools print."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.errors import BadSetting
from jobs.task import Device
from workers import devices
from workers.devices import Gpu, amd_gpus, amd_gpus_in, describe_node, gpu_devices, kind_of_gpu, nvidia_gpus_in

NVIDIA_SMI = """\
0, NVIDIA H100 80GB HBM3, 1652823012345, GPU-7b6f6e6c-0000
1, NVIDIA H200, [N/A], GPU-7b6f6e6c-1111
"""

#: of ROCm 6 and of ROCm 5: keys and the place of the full name changed
ROCM_SMI = [
    '{"card0": {"Card Series": "AMD Instinct MI300X OAM", "Card Model": "0x74a1", "Serial Number": "692432000123"}}',
    'WARNING: low power\n{"card0": {"Card series": "0x74a1", "Card model": "MI300X", "Serial Number": "692432000123"}, '
    '"system": {"Driver version": "6.7.0"}}',
]

AMDSMI = """
class AmdSmiException(Exception):
    pass
def amdsmi_init(): pass
def amdsmi_shut_down(): pass
def amdsmi_get_processor_handles(): return ["a", "b"]
def amdsmi_get_gpu_asic_info(handle): return {"market_name": "AMD Instinct MI325X", "asic_serial": "0x" + handle}
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def fake_amdsmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "amdsmi.py").write_text(AMDSMI)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("amdsmi", None)


def install(tools: Path, name: str, body: str) -> None:
    tool = tools / name
    tool.write_text(f"#!{sys.executable}\n{body}\n")
    tool.chmod(0o755)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD Instinct MI350X", "mi350x"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", None),
        ("AMD Instinct MI300A", None),
        ("NVIDIA GeForce RTX 4090", None),
    ],
)
def test_a_gpus_marketing_name_says_which_target_it_is(name: str, kind: str | None) -> None:
    assert kind_of_gpu(name) == kind


def test_nvidia_cards_without_a_serial_number_are_known_by_their_uuid() -> None:
    assert nvidia_gpus_in(NVIDIA_SMI) == [
        Gpu(0, "NVIDIA H100 80GB HBM3", "1652823012345"),
        Gpu(1, "NVIDIA H200", "GPU-7b6f6e6c-1111"),
    ]


@pytest.mark.parametrize("text", ROCM_SMI, ids=["ROCm 6", "ROCm 5"])
def test_amd_cards_are_found_whatever_the_release_calls_their_name(text: str) -> None:
    assert list(gpu_devices(amd_gpus_in(text))) == [Device("mi300x", 0, "692432000123")]


def test_a_driver_that_prints_nothing_has_no_cards() -> None:
    assert amd_gpus_in("") == []
    assert nvidia_gpus_in("No devices were found\n") == []


def test_amds_library_is_asked_before_its_tool(tools: Path, fake_amdsmi: Path) -> None:
    install(tools, "rocm-smi", 'print(\'{"card0": {"Card Series": "AMD Instinct MI300X"}}\')')
    assert amd_gpus() == [Gpu(0, "AMD Instinct MI325X", "0xa"), Gpu(1, "AMD Instinct MI325X", "0xb")]


def test_a_node_lists_logical_cpu_devices_and_the_gpus_of_its_tools(tools: Path) -> None:
    install(tools, "nvidia-smi", f"print({NVIDIA_SMI!r}, end='')")
    install(tools, "rocm-smi", f"print({ROCM_SMI[0]!r})")
    node = describe_node("n1")
    assert [node.count(kind) for kind in ("cpu", "mi300x", "h100", "h200")] == [8, 1, 1, 1]


def test_a_gpu_that_is_no_target_is_told_of_and_not_offered(caplog: pytest.LogCaptureFixture) -> None:
    assert list(gpu_devices([Gpu(0, "NVIDIA GeForce RTX 4090", "1")])) == []
    assert "RTX 4090, which is no target" in caplog.text


def test_a_tool_that_fails_is_told_of_and_its_gpus_are_not_offered(
    tools: Path, caplog: pytest.LogCaptureFixture
) -> None:
    install(tools, "nvidia-smi", "raise SystemExit(9)")
    assert describe_node("n1").count("h100") == 0
    assert "nvidia-smi does not answer" in caplog.text


def test_the_number_of_logical_cpu_devices_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALOCTL_CPU_DEVICES", "3")
    assert [device.index for device in describe_node("n1").devices if device.kind == "cpu"] == [0, 1, 2]


@pytest.mark.parametrize("value", ["-1", "eight", "1.5"])
def test_a_number_of_devices_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(BadSetting, match="HALOCTL_CPU_DEVICES"):
        devices.cpu_device_count(value)


def test_a_containers_share_of_processors_and_memory_counts(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert devices.cpu_count(tmp_path) == 1
    assert devices.memory_bytes(tmp_path) == 1 << 30


def test_a_container_without_limits_has_the_whole_machine(tmp_path: Path) -> None:
    unlimited, nowhere = tmp_path, tmp_path / "no-cgroup"
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert devices.cpu_count(unlimited) == devices.cpu_count(nowhere)
    assert devices.memory_bytes(unlimited) == devices.memory_bytes(nowhere)
