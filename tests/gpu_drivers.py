"""Stand-ins for drivers' tools: executables rocm-smi and nvidia-smi, modules amdsmi and pynvml; and for /sys.

They answer from one file, in the formats of the real tools, and behave like drivers: the memory of a process is freed
when it ends, and a changed setting stays.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20
GIB = 1 << 30
IDLE_BYTES = 283 * MIB  #: what an MI300X holds when nothing runs


@dataclass
class Card:
    """A GPU of the stand-ins."""

    name: str = "AMD Instinct MI300X OAM"
    unique_id: int = 0x33D8808F71BF6CD4
    total_bytes: int = 192 * GIB
    idle_bytes: int = IDLE_BYTES
    held: dict[str, int] = field(default_factory=dict)  #: bytes by pid
    level: str = "auto"
    node_id: int | None = None
    persistence: str = "Disabled"
    clock_mhz: int = 1980
    power_cap_w: int = 700
    power_w: float = 71.2
    thermal_throttle_us: int = 0  #: for which it was slowed by heat since the driver was loaded
    temperature_c: int = 31


STATE = """
import json, os, sys, time
HERE = os.path.dirname(os.path.abspath(__file__))

def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

def state():
    with open(os.path.join(HERE, "cards.json")) as file:
        facts = json.load(file)
    if facts["hangs"]:
        time.sleep(600)
    if facts["fails"]:
        print(facts["fails"], file=sys.stderr)
        sys.exit(9)
    for card in facts["cards"]:
        card["held"] = {pid: held for pid, held in card["held"].items() if is_alive(pid)}
        card["used_bytes"] = card["idle_bytes"] + sum(card["held"].values())
    with open(os.path.join(HERE, "asked"), "a") as file:
        file.write("+")
    if facts["slow_polls"]:
        facts["cards"][0]["used_bytes"] = facts["cards"][0]["total_bytes"]
        write({"slow_polls": facts["slow_polls"] - 1})
    return facts

def change(name, value):
    with open(os.path.join(HERE, "cards.json")) as file:
        cards = json.load(file)["cards"]
    write({"cards": [{**card, name: value} for card in cards]})

def write(changed):
    path = os.path.join(HERE, "cards.json")
    with open(path) as file:
        facts = {**json.load(file), **changed}
    with open(path + ".part", "w") as file:
        json.dump(facts, file)
    os.replace(path + ".part", path)
"""

ROCM_SMI = """
cards = state()["cards"]
if "--setperfdeterminism" in sys.argv:
    change("level", "perf_determinism")
    sys.exit()
answer, processes = {}, {}
for number, card in enumerate(cards):
    facts = {
        "Unique ID": hex(card["unique_id"]), "Performance Level": card["level"], "Serial Number": "N/A",
        "VRAM Total Memory (B)": str(card["total_bytes"]), "VRAM Total Used Memory (B)": str(card["used_bytes"]),
        "Card Series": card["name"], "Card Model": "0x74a1", "Card SKU": "M3000100",
        "sclk clock speed:": "(345Mhz)", "mclk clock speed:": "(2619Mhz)",
        "Temperature (Sensor junction) (C)": f"{card['temperature_c']}.0",
        "Current Socket Graphics Package Power (W)": str(card["power_w"]),
        "Max Graphics Package Power (W)": str(card["power_cap_w"]),
    }
    if card["node_id"] is not None:
        facts["Node ID"] = str(card["node_id"])
    answer[f"card{number}"] = facts
    for pid, held in card["held"].items():
        processes[f"PID{pid}"] = f"python3, 1, {held}, 0, 0"
print("WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\\n")
print(json.dumps({**answer, "system": {"Driver version": "6.8.5", **processes}}))
"""

NVIDIA_SMI = """
cards = state()["cards"]
if "-pm" in sys.argv:
    change("persistence", "Enabled")
elif "-ac" in sys.argv:
    change("clock_mhz", int(sys.argv[sys.argv.index("-ac") + 1].split(",")[1]))
elif sys.argv[1].startswith("--query-gpu="):
    for number, card in enumerate(cards):
        values = {
            "index": number, "name": card["name"], "serial": "[N/A]", "uuid": f"GPU-{card['unique_id']:x}",
            "memory.total": card["total_bytes"] >> 20, "memory.used": card["used_bytes"] >> 20,
            "driver_version": "550.54.15", "persistence_mode": card["persistence"],
            "clocks.applications.graphics": card["clock_mhz"], "clocks.max.graphics": 1980, "clocks.max.memory": 2619,
            "clocks.sm": 345, "clocks.mem": 2619, "power.draw": f"{card['power_w']:.2f}",
            "power.limit": card["power_cap_w"],
            "temperature.gpu": card["temperature_c"],
            "clocks_event_reasons_counters.sw_thermal_slowdown": card["thermal_throttle_us"],
            "clocks_event_reasons_counters.hw_thermal_slowdown": 0,
            "clocks_event_reasons_counters.hw_power_brake_slowdown": "[N/A]",
            "clocks_event_reasons_counters.sw_power_cap": 5_000_000,
        }
        print(", ".join(str(values[name]) for name in sys.argv[1].partition("=")[2].split(",")))
else:
    for card in cards:
        for pid, held in card["held"].items():
            print(f"GPU-{card['unique_id']:x}, {pid}, python3, {held >> 20}")
"""

AMDSMI = """
class AmdSmiException(Exception):
    pass

class AmdSmiMemoryType:
    VRAM = 0

def amdsmi_init():
    state()

def amdsmi_shut_down():
    pass

def amdsmi_get_processor_handles():
    return state()["cards"]

def amdsmi_get_gpu_asic_info(card):
    return {"market_name": card["name"], "asic_serial": f"0x{card['unique_id']:016X}"}

def amdsmi_get_gpu_memory_total(card, kind):
    return card["total_bytes"]

def amdsmi_get_gpu_memory_usage(card, kind):
    return card["used_bytes"]

def amdsmi_get_gpu_perf_level(card):
    level = {"perf_determinism": "DETERMINISM"}.get(card["level"], card["level"].upper())
    return f"AMDSMI_DEV_PERF_LEVEL_{level}"

def amdsmi_get_gpu_driver_info(card):
    return {"driver_name": "amdgpu", "driver_version": "6.8.5", "driver_date": "2015/01/01 00:00"}

def amdsmi_get_gpu_metrics_info(card):
    counted = {"accumulation_counter": 1000, "socket_thm_residency_acc": 7, "ppt_residency_acc": 0}
    return {"current_gfxclks": [345, 345], "current_uclk": 2619, "current_socket_power": 71, **counted}

def amdsmi_get_energy_count(card):
    return {"energy_accumulator": time.time() * 71 / 15.3e-6, "counter_resolution": 15.3, "timestamp": 0}

def amdsmi_get_power_cap_info(card):
    return {"power_cap": card["power_cap_w"] * 10**6, "dpm_cap": 0}

def amdsmi_get_gpu_kfd_info(card):
    if card["node_id"] is None:
        raise AmdSmiException("not supported")
    return {"kfd_id": 41463, "node_id": card["node_id"], "current_partition_id": 0}

def amdsmi_get_gpu_process_list(card):
    usage = lambda held: {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": held}
    return [
        {"name": "python3", "pid": int(pid), "mem": held, "engine_usage": {}, "memory_usage": usage(held)}
        for pid, held in card["held"].items()
    ]
"""

PYNVML = """
from types import SimpleNamespace

NVML_PERF_POLICY_POWER, NVML_PERF_POLICY_THERMAL = 0, 1
NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
NVML_TEMPERATURE_GPU = 0
nvmlMemory_v2 = 0x02000028

class NVMLError(Exception):
    pass

def nvmlInit():
    state()

def nvmlShutdown():
    pass

def nvmlSystemGetDriverVersion():
    return "550.54.15"

def nvmlDeviceGetCount():
    return len(state()["cards"])

def nvmlDeviceGetHandleByIndex(index):
    return state()["cards"][index]

def nvmlDeviceGetName(card):
    return card["name"]

def nvmlDeviceGetSerial(card):
    raise NVMLError("Not Supported")

def nvmlDeviceGetUUID(card):
    return f"GPU-{card['unique_id']:x}"

def nvmlDeviceGetMemoryInfo(card, version=None):
    if version:
        raise NVMLError("Function Not Found")  # as before release 510
    return SimpleNamespace(total=card["total_bytes"], used=card["used_bytes"])

def nvmlDeviceGetPersistenceMode(card):
    return int(card["persistence"] == "Enabled")

def nvmlDeviceGetApplicationsClock(card, kind):
    return card["clock_mhz"]

def nvmlDeviceGetMaxClockInfo(card, kind):
    return {NVML_CLOCK_GRAPHICS: 1980, NVML_CLOCK_MEM: 2619}[kind]

def nvmlDeviceGetClockInfo(card, kind):
    return {NVML_CLOCK_SM: 345, NVML_CLOCK_MEM: 2619}[kind]

def nvmlDeviceGetPowerUsage(card):
    return 71_200

def nvmlDeviceGetTotalEnergyConsumption(card):
    return int(time.time() * 71_200)

def nvmlDeviceGetPowerManagementLimit(card):
    return card["power_cap_w"] * 1000

def nvmlDeviceGetTemperature(card, sensor):
    return card["temperature_c"]

def nvmlDeviceGetCurrentClocksThrottleReasons(card):
    return 0

def nvmlDeviceGetViolationStatus(card, policy):
    counted_us = {NVML_PERF_POLICY_THERMAL: card["thermal_throttle_us"], NVML_PERF_POLICY_POWER: 5_000_000}
    return SimpleNamespace(referenceTime=0, violationTime=counted_us[policy] * 1000)

def nvmlDeviceGetComputeRunningProcesses_v3(card):
    raise NVMLError("Function Not Found")  # as before release 510

def nvmlDeviceGetComputeRunningProcesses_v2(card):
    return [SimpleNamespace(pid=int(pid), usedGpuMemory=held) for pid, held in card["held"].items()]
"""

#: Run by an attempt: hold some of a card's memory. Its arguments: cards.json, the card's number, bytes.
HOLD = """
import json, os, sys
with open(sys.argv[1]) as file:
    facts = json.load(file)
facts["cards"][int(sys.argv[2])]["held"][str(os.getpid())] = int(sys.argv[3])
with open(sys.argv[1] + ".part", "w") as file:
    json.dump(facts, file)
os.replace(sys.argv[1] + ".part", sys.argv[1])
"""


class KernelBooks:
    """A stand-in for /sys with the files of the compute driver of AMD GPUs, in the kernel's format.

    Unlike the tools, it still lists ended processes, as a driver does for a moment.
    """

    def __init__(self, root: Path, cards: int = 2) -> None:
        self.root, self.kfd = root, root / "sys/class/kfd/kfd"
        self._write("topology/nodes/0/gpu_id", 0)
        self._write("topology/nodes/0/properties", "cpu_cores_count 96\nunique_id 0")
        for card in range(cards):
            node = f"topology/nodes/{card + 1}"
            self._write(f"{node}/gpu_id", self.gpu_id(card))
            properties = {"simd_count": 1216, "drm_render_minor": 128 + 8 * card, "unique_id": 0xA0 + card}
            self._write(f"{node}/properties", "\n".join(f"{name} {value}" for name, value in properties.items()))
            self.use(card, IDLE_BYTES)
        (self.kfd / "proc").mkdir()

    @staticmethod
    def gpu_id(card: int) -> int:
        """Return the driver's name for a card."""
        return 41463 + card

    def use(self, card: int, used_bytes: int) -> None:
        """Set how much of a card's memory all processes hold together."""
        self._write(f"../../drm/renderD{128 + 8 * card}/device/mem_info_vram_used", used_bytes)

    def give(self, card: int, pid: int, held_bytes: int, compute_units: int = 0) -> None:
        """Let a process have the driver open and hold memory of one card."""
        self._write(f"proc/{pid}/vram_{self.gpu_id(card)}", held_bytes)
        self._write(f"proc/{pid}/stats_{self.gpu_id(card)}/cu_occupancy", compute_units)

    def take(self, pid: int) -> None:
        """Forget a process."""
        shutil.rmtree(self.kfd / "proc" / str(pid))

    def _write(self, path: str, value: object) -> None:
        file = Path(os.path.normpath(self.kfd / path))
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".new")
        part.write_text(f"{value}\n")
        part.replace(file)


class Drivers:
    """The stand-ins in one folder, to be put on PATH and on PYTHONPATH, and the GPUs that they report."""

    def __init__(self, folder: Path, *tools: str, cards: int = 2, **facts: Any) -> None:
        self.folder, self.file = folder, folder / "cards.json"
        self.asked = folder / "asked"  #: as long as the tools were asked often
        self.cards = [Card(**{"unique_id": 0xA0 + index, **facts}) for index in range(cards)]
        self.hangs, self.fails = False, ""
        self.slow_polls = 0  #: in which the first card's memory is still all in use
        folder.mkdir(exist_ok=True)
        self.write()
        if "rocm-smi" in tools:
            self._install("rocm-smi", ROCM_SMI)
        if "nvidia-smi" in tools:
            self._install("nvidia-smi", NVIDIA_SMI)
        if "amdsmi" in tools:
            (folder / "amdsmi.py").write_text(STATE + AMDSMI)
        if "pynvml" in tools:
            (folder / "pynvml.py").write_text(STATE + PYNVML)

    def write(self) -> None:
        """Write the changed state where the tools read it."""
        behaviour = {"hangs": self.hangs, "fails": self.fails, "slow_polls": self.slow_polls}
        text = json.dumps({**behaviour, "cards": [asdict(card) for card in self.cards]})
        part = self.file.with_suffix(".new")
        part.write_text(text)
        part.replace(self.file)

    def read(self) -> list[Card]:
        """The cards as others left them."""
        return [Card(**card) for card in json.loads(self.file.read_text())["cards"]]

    def give(self, card: int, pid: int, held_bytes: int) -> None:
        """Let a process hold memory of a card, for as long as it lives."""
        self.cards[card].held[str(pid)] = held_bytes
        self.write()

    def take(self, card: int, pid: int) -> None:
        """Let a process hold no more memory of a card."""
        del self.cards[card].held[str(pid)]
        self.write()

    @contextmanager
    def silent(self, *, hangs: bool = False, fails: str = "") -> Iterator[None]:
        """No tool answers."""
        self.hangs, self.fails = hangs, fails
        self.write()
        try:
            yield
        finally:
            self.hangs, self.fails = False, ""
            self.write()

    def environment(self, inherited: Mapping[str, str] = os.environ) -> dict[str, str]:
        """An environment in which the tools are found before all others."""
        more = [inherited["PYTHONPATH"]] if inherited.get("PYTHONPATH") else []
        return {
            **inherited,
            "PATH": f"{self.folder}{os.pathsep}{inherited.get('PATH', '')}",
            "PYTHONPATH": os.pathsep.join([str(self.folder), *more]),
        }

    def _install(self, name: str, body: str) -> None:
        tool = self.folder / name
        tool.write_text(f"#!{sys.executable} -IS\n{STATE}{body}")
        tool.chmod(0o755)
