"""The table of peaks: what one device of a target reaches at most, as its vendor states it. Floors follow from it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Waves:
    """What limits how many waves a SIMD of an AMD GPU holds at once (LLVM, AMDGPUUsage and AMDGPUBaseInfo)."""

    max_waves: int
    registers: int  #: vector registers of a lane, of both files together
    register_granule: int  #: they are allocated in multiples of it
    simds: int  #: of a compute unit
    lds_bytes: int  #: of a compute unit


@dataclass(frozen=True)
class Peaks:
    """What one device reaches at most."""

    source: str
    tflops: Mapping[str, float]  #: dense, of matrix units, by the element type that is multiplied, as MLIR names it
    vector_tflops: float  #: of f32 outside of the matrix units
    gb_per_s: float  #: of its memory
    link_gb_per_s: float  #: from one device of a node to another, one direction
    compute_units: int
    launch_us: float = 2.0  #: from one small kernel to the next; no vendor's figure, and no part of a floor
    waves: Waves | None = None

    def to_settings(self) -> dict[str, Any]:
        """Return it as a stage's settings contain it."""
        return asdict(self)


def _types(f64: float, f32: float, f16: float, fp8: float, int8: float) -> dict[str, float]:
    floats8 = ("f8E4M3FN", "f8E4M3FNUZ", "f8E5M2", "f8E5M2FNUZ")
    return {"f64": f64, "f32": f32, "f16": f16, "bf16": f16, "i8": int8, **dict.fromkeys(floats8, fp8)}


_CDNA3_WAVES = Waves(max_waves=8, registers=512, register_granule=8, simds=4, lds_bytes=64 << 10)
_CDNA4_WAVES = Waves(max_waves=8, registers=512, register_granule=8, simds=4, lds_bytes=160 << 10)
_CDNA3_TYPES = _types(163.4, 163.4, 1307.4, 2614.9, 2614.9)
_HOPPER_TYPES = _types(66.9, 66.9, 989.4, 1978.9, 1978.9)

#: Links: the Infinity Fabric of AMD's platforms joins each pair of 8 GPUs (128 GB/s, MI350X 153.6, both directions
#: together); NVLink through switches lets one pair have all of a GPU's 900 GB/s.
PEAKS: dict[str, Peaks] = {
    "mi300x": Peaks(
        "AMD Instinct MI300X data sheet (2023)", _CDNA3_TYPES, 163.4, 5300.0, 64.0, 304, waves=_CDNA3_WAVES
    ),
    "mi325x": Peaks(
        "AMD Instinct MI325X data sheet (2024)", _CDNA3_TYPES, 163.4, 6000.0, 64.0, 304, waves=_CDNA3_WAVES
    ),
    "mi350x": Peaks(
        "AMD Instinct MI350X data sheet (2025)",
        _types(72.1, 144.2, 2306.9, 4613.7, 4613.7),
        144.2,
        8000.0,
        76.8,
        256,
        waves=_CDNA4_WAVES,
    ),
    "h100": Peaks("NVIDIA H100 SXM data sheet (2023)", _HOPPER_TYPES, 66.9, 3350.0, 450.0, 132),
    "h200": Peaks("NVIDIA H200 SXM data sheet (2024)", _HOPPER_TYPES, 66.9, 4800.0, 450.0, 132),
}
