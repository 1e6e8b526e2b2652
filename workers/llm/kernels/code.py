"""What kernels take of a device, from the assembly that the compiler wrote: registers, LDS, spills, instructions."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

METADATA = re.compile(r"^\s*\.amdgpu_metadata\n(.*?)^\s*\.end_amdgpu_metadata", re.DOTALL | re.MULTILINE)
KEY = re.compile(r"^ {2}(?:- | {2})(\.\w+):\s*(.*)$")  #: of a kernel; those of its arguments stand deeper
ITEM = re.compile(r"^ {6}- (\d+)$")
FUNCTION = re.compile(r"^\s*\.type\s+\"?([^\s,\"]+)\"?,\s*@function")
#: A line of assembly that is neither a label, a directive nor a comment.
INSTRUCTION = re.compile(r"^\t([a-z][\w.]*)")
WAVE_LANES = 64
SGPRS_OF_ALL_WAVES = 100  #: a kernel with more of them leaves room for 7 waves a SIMD (LLVM, AMDGPUBaseInfo)


@dataclass
class KernelCode:
    """The code of one kernel; what only GPUs have is None elsewhere."""

    instructions: int = 0
    vgpr: int | None = None  #: of both files together
    agpr: int | None = None
    sgpr: int | None = None
    spills: int | None = None  #: registers that are kept in memory
    lds_bytes: int | None = None
    scratch_bytes: int | None = None
    threads: int | None = None  #: of a workgroup
    waves_per_simd: int | None = None  #: that a SIMD holds at once
    mfma: dict[str, int] = field(default_factory=dict)  #: matrix instructions by name

    def to_json(self) -> dict[str, Any]:
        """Return it for programs, without what it does not have."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def read_code(folder: Path, waves: Mapping[str, int] | None, matrix_instruction: str) -> dict[str, KernelCode]:
    """Return the code of each kernel by name; `waves` says what a compute unit has (`jobs.peaks.Waves`)."""
    codes: dict[str, KernelCode] = {}
    for path in sorted((*folder.glob("*.rocmasm"), *folder.glob("*.s"))):
        text = path.read_text(errors="replace")
        match = METADATA.search(text)
        for name, facts in _kernels(match[1]) if match else ():
            codes[name] = _code_of(facts, waves)
        _count_instructions(text[: match.start()] if match else text, matrix_instruction, codes)
    return codes


def _kernels(metadata: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each kernel's name and metadata, which LLVM writes as YAML."""
    facts: dict[str, Any] = {}
    key = ""
    for line in metadata.partition("amdhsa.kernels:")[2].splitlines():
        if match := KEY.match(line):
            if line.startswith("  - ") and facts:
                yield facts[".name"].strip("'\""), facts
                facts = {}
            key = match[1]
            facts[key] = match[2]
        elif (match := ITEM.match(line)) and key == ".reqd_workgroup_size":
            facts[key] = [*(facts[key] or []), int(match[1])]
    if facts:
        yield facts[".name"].strip("'\""), facts


def _code_of(facts: Mapping[str, Any], waves: Mapping[str, int] | None) -> KernelCode:
    code = KernelCode(
        vgpr=int(facts[".vgpr_count"]),
        agpr=int(facts.get(".agpr_count", 0)),
        sgpr=int(facts[".sgpr_count"]),
        spills=int(facts[".vgpr_spill_count"]) + int(facts[".sgpr_spill_count"]),
        lds_bytes=int(facts[".group_segment_fixed_size"]),
        scratch_bytes=int(facts[".private_segment_fixed_size"]),
        threads=math.prod(facts.get(".reqd_workgroup_size") or [int(facts[".max_flat_workgroup_size"])]),
    )
    code.waves_per_simd = waves_per_simd(code, waves) if waves else None
    return code


def waves_per_simd(code: KernelCode, waves: Mapping[str, int]) -> int:
    """Return the waves that a SIMD holds at once, limited by registers and by the LDS of its workgroups."""
    registers = max(code.vgpr or 0, 1)
    allocated = math.ceil(registers / waves["register_granule"]) * waves["register_granule"]
    limit = min(waves["max_waves"], waves["registers"] // allocated)
    if (code.sgpr or 0) > SGPRS_OF_ALL_WAVES:
        limit = min(limit, waves["max_waves"] - 1)
    if not code.lds_bytes:
        return limit
    groups = waves["lds_bytes"] // code.lds_bytes
    waves_of_group = math.ceil((code.threads or WAVE_LANES) / WAVE_LANES)
    return min(limit, math.ceil(groups * waves_of_group / waves["simds"]))


def _count_instructions(text: str, matrix_instruction: str, codes: dict[str, KernelCode]) -> None:
    """Count the instructions of each function, those of its matrix units by name."""
    code = KernelCode()
    kinds: Counter[str] = Counter()
    for line in text.splitlines():
        if match := INSTRUCTION.match(line):
            code.instructions += 1
            if matrix_instruction and match[1].startswith(matrix_instruction):
                kinds[match[1]] += 1
        elif match := FUNCTION.match(line):
            code.mfma = dict(kinds)
            kinds.clear()
            code = codes.setdefault(match[1], KernelCode())
    code.mfma = dict(kinds)
