"""Energy counters of CPU packages and their memory (RAPL), as the kernel's powercap framework shows them.

Most kernels let only root read them. See https://www.kernel.org/doc/html/latest/power/powercap/powercap.html.
"""

from dataclasses import dataclass
from pathlib import Path

from workers.machine.machine_settings import Machine

#: Packages, and the memory below them, which is not part of theirs; `psys` and cores are counted elsewhere already.
ZONES = "/sys/class/powercap/intel-rapl:*"
COUNTED_ZONES = ("package", "dram")
MICROJOULES = 1e6


@dataclass(frozen=True)
class EnergyCounter:
    """A counter of energy, which begins again at 0 when it reaches its range."""

    joules: float
    range_j: float


def read_energy_counters(machine: Machine) -> dict[str, EnergyCounter]:
    """Return the readable counters by the names of their zones; empty where there are none."""
    counters = {zone.name: _read_counter(zone) for zone in machine.files(ZONES) if _is_counted(zone)}
    return {name: counter for name, counter in counters.items() if counter}


def _is_counted(zone: Path) -> bool:
    try:
        return (zone / "name").read_text().startswith(COUNTED_ZONES)
    except OSError:
        return False


def _read_counter(zone: Path) -> EnergyCounter | None:
    try:
        value, limit = (int((zone / name).read_text()) for name in ("energy_uj", "max_energy_range_uj"))
    except (OSError, ValueError):
        return None
    return EnergyCounter(value / MICROJOULES, limit / MICROJOULES)
