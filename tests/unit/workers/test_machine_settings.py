"""The settings that timings depend on: their values, and how they are changed. The root is a folder of the test's."""

import os
from pathlib import Path

import pytest

from jobs.task import Check
from tests.gpu_drivers import Drivers
from workers.machine.devices import read_machine
from workers.machine.gpu_listing import Gpu, GpuListing
from workers.machine.machine_settings import SETTINGS, Machine, RunTool, WriteFile, apply_fixes, checks

FILES = {
    "/proc/sys/kernel/numa_balancing": "1\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]\n",
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
    "/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
    "/sys/class/iommu/ivhd0/name": "",
    "/sys/kernel/iommu_groups/0/type": "DMA-FQ\n",
    "/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=/dev/sda1 quiet\n",
}
MI300X = Gpu(0, "AMD Instinct MI300X OAM", settings={"performance_level": "auto"})
AMD = GpuListing(
    "amd", "rocm-smi", (MI300X, Gpu(1, "AMD Instinct MI300X OAM", settings={"performance_level": "manual"}))
)
NVIDIA_SETTINGS = {
    "persistence_mode": "Disabled",
    "clocks.applications.graphics": "1980",
    "clocks.max.graphics": "1980",
    "clocks.max.memory": "2619",
}
NVIDIA = GpuListing("nvidia", "nvidia-smi", (Gpu(0, "NVIDIA H100 80GB HBM3", settings=NVIDIA_SETTINGS),))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine on which nothing is as wanted."""
    for name, text in FILES.items():
        file = tmp_path / name.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def values(machine: Machine) -> dict[str, str]:
    return {check.name: check.found for check in checks(machine)}


def bad(machine: Machine) -> set[str]:
    return {check.name for check in checks(machine) if not check.is_ok}


def test_each_setting_has_a_name_of_its_own_and_says_what_to_do() -> None:
    assert len({setting.name for setting in SETTINGS}) == len(SETTINGS)
    assert all(setting.advice and setting.wanted for setting in SETTINGS)


def test_settings_are_told_as_they_are_found(root: Path) -> None:
    assert values(Machine((AMD,), root)) == {
        "amd_tool": "rocm-smi lists 2",
        "numa_balancing": "1",
        "transparent_huge_pages": "never",
        "cpu_governor": "performance, powersave",
        "iommu": "DMA-FQ",
        "hip_force_dev_kernarg": "1",
        "amd_clocks": "auto, manual",
    }
    assert bad(Machine((AMD,), root)) == values(Machine((AMD,), root)).keys() - {"amd_tool", "hip_force_dev_kernarg"}


def test_what_a_machine_does_not_have_is_not_checked(tmp_path: Path, root: Path) -> None:
    assert checks(Machine((), tmp_path / "nothing")) == ()
    assert not {"iommu", "hip_force_dev_kernarg", "amd_clocks"} & values(Machine((NVIDIA,), root)).keys()
    assert not {"nvidia_persistence", "nvidia_clocks"} & values(Machine((AMD,), root)).keys()


@pytest.mark.parametrize(
    ("file", "text", "name"),
    [
        ("/proc/sys/kernel/numa_balancing", "0\n", "numa_balancing"),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n", "transparent_huge_pages"),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never\n", "transparent_huge_pages"),
        ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n", "cpu_governor"),
        ("/proc/cmdline", "root=/dev/sda1 iommu=pt quiet\n", "iommu"),
        ("/proc/cmdline", "root=/dev/sda1 amd_iommu=off\n", "iommu"),
        ("/sys/kernel/iommu_groups/0/type", "identity\n", "iommu"),
    ],
)
def test_a_setting_that_is_as_wanted_passes(root: Path, file: str, text: str, name: str) -> None:
    assert name in bad(Machine((AMD,), root))
    (root / file.lstrip("/")).write_text(text)
    assert name not in bad(Machine((AMD,), root))


def test_a_virtual_machine_without_an_iommu_needs_no_setting_of_it(root: Path) -> None:
    (root / "sys/class/iommu/ivhd0/name").unlink()
    (root / "sys/class/iommu/ivhd0").rmdir()
    assert "iommu" not in values(Machine((AMD,), root))


def test_files_are_changed_and_read_back(root: Path) -> None:
    machine = Machine((), root)
    changes = list(apply_fixes(machine))
    assert [(change.setting, change.error) for change in changes] == [
        ("numa_balancing", ""),
        ("transparent_huge_pages", ""),
        ("cpu_governor", ""),
    ]
    assert str(changes[0].fix) == "echo 0 | sudo tee /proc/sys/kernel/numa_balancing"
    assert values(machine)["cpu_governor"] == "performance"
    assert (root / "sys/kernel/mm/transparent_hugepage/enabled").read_text() == "madvise"
    assert "numa_balancing" not in bad(machine)


def test_a_change_that_is_refused_says_why_and_the_rest_goes_on(root: Path) -> None:
    file = root / "proc/sys/kernel/numa_balancing"
    governor = root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    for unlinked in (file, governor):
        unlinked.unlink()
    file.symlink_to("/proc/version")  # which nobody may write, not even root
    changes = {change.setting: change.error for change in apply_fixes(Machine((), root))}
    assert "/numa_balancing: " in changes["numa_balancing"]
    assert changes["transparent_huge_pages"] == ""
    assert "cpu_governor" not in changes


@pytest.mark.skipif(os.geteuid() != 0, reason="tools change nothing for a user without rights: see the test below")
def test_tools_change_gpus_and_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = Drivers(tmp_path / "tools", "rocm-smi")
    monkeypatch.setenv("PATH", str(drivers.folder))
    before, _ = read_machine(), list(apply_fixes(Machine(read_machine().listings, tmp_path)))
    assert values(before)["amd_clocks"] == "auto"
    assert values(read_machine())["amd_clocks"] == "perf_determinism"
    assert {card.level for card in drivers.read()} == {"perf_determinism"}


@pytest.mark.skipif(os.geteuid() != 0, reason="tools change nothing for a user without rights: see the test below")
def test_nvidias_clocks_are_capped_at_a_step_that_its_chips_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drivers = Drivers(tmp_path / "tools", "nvidia-smi", name="NVIDIA H100 80GB HBM3", cards=1)
    monkeypatch.setenv("PATH", str(drivers.folder))
    changes = [change.fix for change in apply_fixes(Machine(read_machine().listings, tmp_path))]
    tool = str(drivers.folder / "nvidia-smi")
    assert changes == [RunTool((tool, "-pm", "1")), RunTool((tool, "-i", "0", "-ac", "2619,1770"))]
    assert not bad(Machine(read_machine().listings, tmp_path))


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        (AMD, ["sudo rocm-smi --setperfdeterminism 1900"]),
        (GpuListing("amd", "rocm-smi", (Gpu(0, "AMD Instinct MI350X", settings={"performance_level": "auto"}),)), []),
        (NVIDIA, ["sudo nvidia-smi -pm 1", "sudo nvidia-smi -i 0 -ac 2619,1770"]),
    ],
    ids=["the guide's clock", "a chip that the guide does not name", "NVIDIA"],
)
def test_what_a_person_with_rights_would_run_is_told(listing: GpuListing, expected: list[str], tmp_path: Path) -> None:
    machine = Machine((listing,), tmp_path)
    fixes = [str(fix) for setting in SETTINGS if setting.check(machine) for fix in setting.fixes(machine)]
    assert fixes == expected


def test_clocks_that_a_driver_does_not_tell_are_not_checked(tmp_path: Path) -> None:
    silent = GpuListing("nvidia", "nvidia-smi", (Gpu(0, "NVIDIA H200", settings={"clocks.max.graphics": "1980"}),))
    assert values(Machine((silent,), tmp_path)) == {"nvidia_tool": "nvidia-smi lists 1"}


def test_a_tool_that_does_not_answer_is_a_check_with_what_to_do(tmp_path: Path) -> None:
    silent = GpuListing("amd", "rocm-smi", error="rocm-smi did not answer within 30 s")
    (check,) = checks(Machine((silent,), tmp_path))
    advice = "run rocm-smi on the machine: its GPUs are not used until it answers"
    assert check == Check("amd_tool", silent.error, "an answer", False, advice)


def test_a_change_reads_as_a_command_for_people() -> None:
    assert str(RunTool(("rocm-smi", "-d", "a b"))) == "sudo rocm-smi -d 'a b'"
    assert str(WriteFile("/sys/x", "performance")) == "echo performance | sudo tee /sys/x"
